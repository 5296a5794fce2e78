"""Use the loss with the Trainer of Hugging Face transformers. Needs transformers and accelerate.

python examples/hf_trainer.py    (or torchrun, for several processes)

The model returns the loss. `weight_decay_groups` leaves t and b out of weight decay.
"""

from tempfile import TemporaryDirectory

import torch
from points import COMMON, accuracy, encoder, sample
from torch import Tensor, nn
from transformers import Trainer, TrainingArguments

from scs_supcon import SCSSupCon, weight_decay_groups


class Embedder(nn.Module):
    """An encoder with its loss."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = encoder()
        self.loss = SCSSupCon(common_dim=COMMON, preset="learned", gather_across_devices=True)

    def forward(self, points: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Return the loss and the embeddings."""
        embeddings = self.encoder(points)
        return {"loss": self.loss(embeddings, labels), "embeddings": embeddings}


def main() -> None:
    """Train on 40 batches and print the decision boundary and the accuracy on new points."""
    model = Embedder()
    optimizer = torch.optim.AdamW(weight_decay_groups(model, weight_decay=0.01), lr=0.01)
    points, labels = sample(10240, seed=1)
    with TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            use_cpu=True,
            per_device_train_batch_size=256,
            num_train_epochs=1,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
        )
        dataset = [{"points": x, "labels": y} for x, y in zip(points, labels, strict=True)]
        Trainer(model, arguments, train_dataset=dataset, optimizers=(optimizer, None)).train()
    boundary = float(model.loss.boundary)
    correct = accuracy(model.encoder, boundary)
    print(f"boundary {boundary:.3f}, test pairs classified correctly {correct:.1%}")


if __name__ == "__main__":
    main()
