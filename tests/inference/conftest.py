"""Small models trained on real handwritten digits."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lightning_fabric import Fabric
from numpy.typing import NDArray
from PIL import Image
from torch import nn

from scs_supcon.data.builtin import digits
from scs_supcon.data.transforms import eval_view
from scs_supcon.inference import Model
from scs_supcon.methods.scs_supcon import SCSSupCon
from scs_supcon.nn.encoder import build_encoder
from scs_supcon.nn.head import Projection
from scs_supcon.nn.network import Output, ProbeInput, probe_features
from scs_supcon.recipe import make_recipe, merge, write_toml
from scs_supcon.runs.run_dir import RunDir
from scs_supcon.training.probe import ProbeData, fit_probe

VALUES = {
    "data": {"source": "digits", "image_size": 8, "crop_pct": 1.0},
    "encoder": {"name": "tiny", "weights": "scratch"},
    "head": {"common_dim": 24, "style_dim": 8},
    "probe": {"epochs": 30, "views": 1},
}


@dataclass(frozen=True)
class TrainedParts:
    """The arguments of `Model.from_training`, and images that were not used for training."""

    arguments: dict[str, Any]
    test: list[Image.Image]
    test_labels: NDArray[np.int64]
    unknown: list[Image.Image]

    def model(self, **changes: Any) -> Model:
        return Model.from_training(**self.arguments | changes)


@cache
def _networks(known: int) -> tuple[nn.Module, nn.Module, tuple[float, float] | None]:
    """Train encoder and head for a few seconds on the digits below `known`."""
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
    return encoder.eval(), head.eval(), method.pair_parameters()


@cache
def _trained(known: int, probe_input: ProbeInput, folder: Path) -> TrainedParts:
    recipe = make_recipe(merge(VALUES, {"method": {"name": "scs_supcon"}}))
    encoder, head, pairs = _networks(known)
    dataset, view = digits(), eval_view(recipe.data)
    labels = torch.tensor(dataset.labels)
    with torch.no_grad():
        images = torch.stack([view(dataset.open(row)) for row in range(len(dataset))])
        features = torch.cat([encoder(chunk) for chunk in images.split(100)])
        output = Output(features, head(features))
        inputs = probe_features(output, probe_input, recipe.head.common_dim)
    rows = torch.where(labels < known)[0]
    train, val, test = rows[:600], rows[600:800], rows[800:]
    data = ProbeData(inputs[train][:, None], labels[train], inputs[val], labels[val], known)
    with RunDir.open(folder / f"{known}-{probe_input}", write_toml(recipe)) as run:
        fabric = Fabric(accelerator="cpu", devices=1)
        classifier = fit_probe(fabric, run, "probe", data, recipe.probe, 0).classifier
    return TrainedParts(
        arguments={
            "recipe": recipe,
            "classes": dataset.classes[:known],
            "encoder": encoder,
            "projection": head,
            "probe_input": probe_input,
            "classifier": classifier,
            "train": (features[train], labels[train]),
            "val": (features[val], labels[val]),
            "train_names": [dataset.names[int(row)] for row in train],
            "learned_pairs": pairs if probe_input == "common" else None,
        },
        test=[dataset.open(int(row)) for row in test],
        test_labels=dataset.labels[test.numpy()],
        unknown=[dataset.open(int(row)) for row in torch.where(labels >= known)[0]],
    )


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., TrainedParts]:
    """`trained(known=10, probe_input="common")`: the parts of a model of the first digits."""
    folder = tmp_path_factory.mktemp("trained")
    return lambda known=10, probe_input="common": _trained(known, probe_input, folder)


@pytest.fixture
def photos(tmp_path: Path, trained: Callable[..., TrainedParts]) -> list[Path]:
    """Twelve test digits as PNG files."""
    folder = tmp_path / "photos"
    folder.mkdir()
    paths = [folder / f"{number}.png" for number in range(12)]
    for path, image in zip(paths, trained().test, strict=False):
        image.save(path)
    return paths
