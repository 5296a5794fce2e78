"""Small models trained on real handwritten digits."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from lightning_fabric import Fabric
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn

from scs_supcon.data.builtin import digits
from scs_supcon.data.transforms import eval_view
from scs_supcon.inference import Evidence, Model, Network, build_model
from scs_supcon.inference.classifier import LinearClassifier
from scs_supcon.methods.scs_supcon import SCSSupCon
from scs_supcon.nn.encoder import build_encoder
from scs_supcon.nn.head import Projection, unit
from scs_supcon.recipe import Recipe, make_recipe, merge, write_toml
from scs_supcon.runs.run_dir import RunDir
from scs_supcon.training.probe import ProbeData, fit_probe

VALUES = {
    "data": {"source": "digits", "image_size": 8, "crop_pct": 1.0},
    "encoder": {"name": "tiny", "weights": "scratch"},
    "head": {"common_dim": 24, "style_dim": 8},
    "probe": {"epochs": 30, "views": 1},
}


@dataclass(frozen=True)
class Trained:
    """All that training left, and the images it did not see."""

    recipe: Recipe
    classes: tuple[str, ...]
    network: Network
    classifier: LinearClassifier
    evidence: Evidence
    boundary: float
    test: list[Image.Image]
    test_labels: NDArray[np.int64]
    left_out: list[Image.Image]

    def model(self) -> Model:
        boundary = self.boundary if self.network.readout == "common" else None
        return build_model(
            self.recipe, self.classes, self.network, self.classifier, self.evidence, boundary
        )


@cache
def _networks(known: int) -> tuple[nn.Module, nn.Module, float]:
    """Encoder and head after a few seconds of stage 1 on the digits below `known`."""
    recipe = make_recipe(VALUES)
    dataset, view = digits(), eval_view(recipe.data)
    rows = np.flatnonzero(dataset.labels < known)[:600]
    images = torch.stack([view(dataset.open(int(row))) for row in rows])
    labels = torch.tensor(dataset.labels[rows])
    torch.manual_seed(0)
    encoder = build_encoder("tiny", small_stem=False, in_size=8)
    head = Projection(encoder.num_features, recipe.head.dim, centre=True)
    method = SCSSupCon(recipe.head.common_dim)
    network = nn.Sequential(encoder, head)
    optimizer = torch.optim.AdamW(network.parameters(), lr=3e-3)
    for _ in range(20):
        for batch in torch.randperm(len(labels)).split(200):
            optimizer.zero_grad()
            method(network(images[batch]), labels[batch]).backward()
            optimizer.step()
    return encoder.eval(), head.eval(), float(method.boundary)


@cache
def _trained(known: int, readout: str, folder: Path) -> Trained:
    recipe = make_recipe(merge(VALUES, {"method": {"name": "scs_supcon"}}))
    encoder, head, boundary = _networks(known)
    dataset, view = digits(), eval_view(recipe.data)
    labels = torch.tensor(dataset.labels)
    with torch.no_grad():
        images = torch.stack([view(dataset.open(row)) for row in range(len(dataset))])
        features = torch.cat([encoder(part) for part in images.split(100)])
    rows = torch.where(labels < known)[0]
    train, val, test = rows[:600], rows[600:800], rows[800:]

    def seen(part: Tensor) -> Tensor:
        if readout == "features":
            return features[part]
        with torch.no_grad():
            return unit(head(features[part])[:, : recipe.head.common_dim])

    data = ProbeData(seen(train)[:, None], labels[train], seen(val), labels[val], known)
    with RunDir.open(folder / f"{known}-{readout}", write_toml(recipe)) as run:
        fabric = Fabric(accelerator="cpu", devices=1)
        classifier = fit_probe(fabric, run, "probe", data, recipe.probe, 0).classifier
    return Trained(
        recipe=recipe,
        classes=dataset.classes[:known],
        network=Network(encoder, head, readout),  # type: ignore[arg-type]
        classifier=classifier,
        evidence=Evidence(
            [dataset.names[int(row)] for row in train],
            (features[train], labels[train]),
            (features[val], labels[val]),
        ),
        boundary=boundary,
        test=[dataset.open(int(row)) for row in test],
        test_labels=dataset.labels[test.numpy()],
        left_out=[dataset.open(int(row)) for row in torch.where(labels >= known)[0]],
    )


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Trained]:
    """`trained(known=10, readout="common")`: a network and classifier of the first digits."""
    folder = tmp_path_factory.mktemp("trained")
    return lambda known=10, readout="common": _trained(known, readout, folder)


@pytest.fixture
def photos(tmp_path: Path, trained: Callable[..., Trained]) -> list[Path]:
    """Twelve test digits as PNG files."""
    folder = tmp_path / "photos"
    folder.mkdir()
    paths = [folder / f"{number}.png" for number in range(12)]
    for path, image in zip(paths, trained().test, strict=False):
        image.save(path)
    return paths
