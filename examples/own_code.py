"""Your own loss, encoder and views in one comparison, from Python.

python examples/own_code.py

The names below (`Triplet`, `build_encoder`, `build_views`) can be given on the command line too:

scs compare digits --methods supcon,examples/own_code.py:Triplet \
    --encoder examples/own_code.py:build_encoder --transform examples/own_code.py:build_views

A table file may name them too, if the command allows it: `scs compare table.toml --allow-code
examples/own_code.py`. The runs record the SHA-256 of this file.
"""

from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import Tensor, nn
from torchvision.transforms import v2

import scs_supcon
from scs_supcon import LossMethod
from scs_supcon.benchmark.table import Column, Row, Table


class TripletLoss(nn.Module):
    """Any module that is called with embeddings and labels, such as the losses of
    pytorch-metric-learning: here the hardest triplet of each row.
    """

    def __init__(self, margin: float = 0.2) -> None:
        super().__init__()
        self.margin = margin

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Return the mean of max(0, farthest positive − nearest negative + margin)."""
        z = nn.functional.normalize(embeddings, dim=1)
        distance = 1 - z @ z.T
        same = labels[:, None] == labels
        positive = distance.masked_fill(~same, -torch.inf).amax(1)
        negative = distance.masked_fill(same, torch.inf).amin(1)
        return (positive - negative + self.margin).clamp_min(0).mean()


class Triplet(LossMethod):
    """The adapter: the arguments of the loss become options of the method."""

    loss_class = TripletLoss


def build_encoder() -> nn.Module:
    """Return a module from images (n, 3, height, width) to features (n, columns)."""
    encoder = nn.Sequential(
        nn.Conv2d(3, 16, 3, 2, 1), nn.GroupNorm(4, 16), nn.ReLU(),
        nn.Conv2d(16, 32, 3, 2, 1), nn.GroupNorm(4, 32), nn.ReLU(),
        nn.AdaptiveAvgPool2d(2), nn.Flatten(),
    )  # fmt: skip
    # What it expects; the default is 224 pixels and the channel statistics of ImageNet.
    encoder.data_config = {"image_size": 16, "mean": (0.5, 0.5, 0.5), "std": (0.5, 0.5, 0.5)}
    return encoder


def build_views(image_size: int) -> v2.Compose:
    """Return a function from an image to a view of it; random numbers come from torch."""
    return v2.Compose([v2.Resize((image_size, image_size)), v2.RandomAffine(10, (0.1, 0.1))])


def build_from_transformers(folder: str) -> nn.Module:
    """Return a vision model of a Hugging Face folder; give it to `build` of your own file."""
    from transformers import AutoModel

    return PooledFeatures(AutoModel.from_pretrained(folder, local_files_only=True))


class PooledFeatures(nn.Module):
    """The pooled output of a vision model of transformers."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        """Return features (n, columns)."""
        features: Tensor = self.model(images).pooler_output
        return features.flatten(1)


def main() -> None:
    """Compare two losses on two datasets with small runs, and print the table."""
    here = Path(__file__)
    table = Table(
        methods=(
            Row(method="supcon"),
            Row(
                method=f"{here}:Triplet",
                name="Triplet, margin 0.1",
                settings=("method.options.margin=0.1",),
            ),
        ),
        columns=(
            Column(data="digits", encoder="tiny"),
            Column(
                data="shapes",
                name="shapes, own encoder and views",
                encoder=f"{here}:build_encoder",
                transform=f"{here}:build_views",
            ),
        ),
        settings=(
            "pretrain.epochs=2",
            "probe.epochs=3",
            "probe.views=1",
            "data.images_per_class=20",
        ),
    )
    with TemporaryDirectory() as folder:
        report = scs_supcon.compare(
            table, out=f"{folder}/out", runs=f"{folder}/runs", device="cpu", quiet=True
        )
        print(report.text)
        for result in report.results:
            digest = result.cell.recipe.method.code
            if digest is not None:
                print(
                    f"{result.cell}: code {digest[:12]}, accuracy {result.evaluation.accuracy:.1%}"
                )
        print(report.to_pandas().groupby(["column", "method"])["accuracy"].mean())


if __name__ == "__main__":
    main()
