"""Use the loss in a LightningModule. Needs lightning.

python examples/lightning_module.py

With several processes, `Trainer(strategy="ddp", devices=...)`, `gather_across_devices=True` gives
the gradients of the whole batch.
"""

import lightning as L
import torch
from points import COMMON, accuracy, encoder, sample
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from scs_supcon import SCSSupCon


class Embedder(L.LightningModule):
    """An encoder that is trained with the pair loss."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = encoder()
        self.loss = SCSSupCon(common_dim=COMMON, preset="learned", gather_across_devices=True)

    def training_step(self, batch: list[Tensor], _: int) -> Tensor:
        """Return the loss of a batch of points and labels."""
        points, labels = batch
        value: Tensor = self.loss(self.encoder(points), labels)
        return value

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return an optimiser that has t and b as well, without weight decay."""
        network = {"params": self.encoder.parameters(), "weight_decay": 1e-4}
        return torch.optim.SGD([network, *self.loss.param_groups(lr=0.05)], lr=0.5, momentum=0.9)


def main() -> None:
    """Train on 40 batches and print the decision boundary and the accuracy on new points."""
    module = Embedder()
    trainer = L.Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, DataLoader(TensorDataset(*sample(10240, seed=1)), batch_size=256))
    boundary = float(module.loss.boundary)
    correct = accuracy(module.encoder, boundary)
    print(f"boundary {boundary:.3f}, test pairs classified correctly {correct:.1%}")


if __name__ == "__main__":
    main()
