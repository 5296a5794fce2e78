"""Images that change while a command reads them or afterwards, and names that are hard to store."""

import csv
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from scs_supcon.data.arrays import dataset_from_images
from scs_supcon.data.dataset import ImageDataset
from scs_supcon.data.feature_cache import frozen_features, keyed_views
from scs_supcon.data.load import load_images
from scs_supcon.data.shift import shifted
from scs_supcon.errors import UserError
from scs_supcon.recipe import DataRecipe

DATA = DataRecipe(source="anywhere", image_size=8, mean=(0.5,) * 3, std=(0.25,) * 3)


class Pixels(nn.Module):
    """An encoder whose features are the pixels themselves."""

    num_features = 3 * 8 * 8

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, images: Tensor) -> Tensor:
        return images.flatten(1) * self.scale


def extract(images: ImageDataset, cache: Path, **options) -> np.ndarray:
    return frozen_features(
        images,
        range(len(images)),
        encoder=Pixels(),
        encoder_key="pixels",
        transforms=keyed_views("eval", DATA),
        cache_dir=cache,
        **options,
    )


def save(path: Path, seed: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    noise = np.random.default_rng(seed).integers(0, 256, (8, 8, 3), dtype=np.uint8)
    Image.fromarray(noise).save(path)


def class_folders(root: Path, per_class: int = 6) -> Path:
    for label in ("circle", "square"):
        for number in range(per_class):
            save(root / label / f"{number}.png", 100 * (label == "circle") + number)
    return root


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("kind", ["folder", "table", "list of files", "shifted"])
def test_an_image_that_changes_while_features_are_computed(tmp_path, kind, workers):
    """The features of the new image must not be stored under the hash of the old one."""
    root = class_folders(tmp_path / "data", per_class=2)
    files = sorted(root.glob("*/*.png"))
    changed, kept = files[1], files[1].read_bytes()
    if kind == "table":
        lines = [f"{file},{file.parent.name}\n" for file in files]
        (tmp_path / "table.csv").write_text("image_path,label\n" + "".join(lines))

    def read() -> ImageDataset:
        if kind == "list of files":
            labels = np.array([0, 0, 1, 1])
            return dataset_from_images(files, labels, ("circle", "square"))
        images = load_images(tmp_path / "table.csv" if kind == "table" else root)
        return shifted(images, "blur", 0) if kind == "shifted" else images

    def change(done: int, total: int) -> None:
        if done == 0:  # all hashes are known, no image is decoded yet
            save(changed, 900)

    cache = tmp_path / "cache"
    with pytest.raises(UserError, match="changed while it was read: run the command again"):
        extract(read(), cache, progress=change, workers=workers)
    changed.write_bytes(kept)
    images = read()
    assert np.array_equal(extract(images, cache), extract(images, tmp_path / "other cache"))


SMALL = (
    *("--epochs", "1", "--batch-size", "8", "--workers", "0", "--device", "cpu", "--no-report"),
    *("--set", "probe.epochs=1", "--set", "probe.views=1", "--encoder", "tiny", "--from-scratch"),
)


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    """A folder with `data` and a finished run `run`."""
    from scs_supcon.training.train import train

    folder = tmp_path_factory.mktemp("trained")
    options = {"encoder": "tiny", "from_scratch": True, "epochs": 1, "batch_size": 8}
    train(
        class_folders(folder / "data"),
        out=folder / "run",
        settings=("probe.epochs=1", "probe.views=1"),
        report=False,
        quiet=True,
        workers=0,
        device="cpu",
        **options,
    )
    return folder


@pytest.fixture
def place(trained, tmp_path, monkeypatch) -> Path:
    """The working directory, with data and a finished run that a test may change."""
    folder = tmp_path / "place"
    shutil.copytree(trained, folder)
    recipe = folder / "run" / "recipe.toml"
    recipe.write_text(recipe.read_text().replace(str(trained / "data"), "data"))
    monkeypatch.chdir(folder)
    return folder


def change_one(data: Path) -> None:
    save(data / "circle" / "3.png", 901)


def add_one(data: Path) -> None:
    save(data / "square" / "new.png", 902)


def remove_one(data: Path) -> None:
    (data / "circle" / "0.png").unlink()


def move_one(data: Path) -> None:
    (data / "circle" / "0.png").rename(data / "square" / "moved.png")


def replace_a_class(data: Path) -> None:
    for number in range(6):
        save(data / "circle" / f"{number}.png", 910 + number)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (change_one, "1 changed ('circle/3.png')"),
        (add_one, "1 added ('square/new.png')"),
        (remove_one, "1 removed ('circle/0.png')"),
        (move_one, "1 added ('square/moved.png'), 1 removed ('circle/0.png')"),
        (replace_a_class, "6 changed ('circle/0.png', …)"),
    ],
)
def test_a_finished_run_is_not_the_result_of_other_images(scs, place, change, expected):
    change(place / "data")
    result = scs("train", "data", "--out", "run", *SMALL)
    assert result.code == 2
    assert "is finished" not in result.out + result.err and "accuracy" not in result.out
    message = " ".join(result.err.split())
    assert expected in message
    assert "Restore them, or start another run with another --out" in message


def test_a_finished_run_on_the_same_images_is_still_only_read(scs, place):
    files = [file for file in (place / "run").rglob("*") if file.name != ".lock"]
    before = {file: file.stat().st_mtime_ns for file in files}
    result = scs("train", "data", "--out", "run", *SMALL)
    assert result.code == 0, result.err
    assert "run is finished: " in result.out + result.err
    assert {file: file.stat().st_mtime_ns for file in files} == before


def test_names_with_a_carriage_return(scs, tmp_path, monkeypatch):
    """They are legal, and splits.csv must give them back."""
    monkeypatch.chdir(tmp_path)
    data = class_folders(tmp_path / "data")
    for label in ("circle", "square"):
        (data / label / "0.png").rename(data / label / "a\rb.png")
    result = scs("train", "data", "--out", "run", *SMALL)
    assert result.code == 0, result.err
    with Path("run/splits.csv").open(newline="", encoding="utf-8") as file:
        names = [row["name"] for row in csv.DictReader(file, strict=True)]
    assert names == sorted(file.relative_to(data).as_posix() for file in data.glob("*/*"))

    from scs_supcon.server.workspace import Workspace

    workspace = Workspace(Path("run"))
    assert "circle/a\rb.png" in workspace.names
    table = workspace.write_table("again")
    workspace.close()
    again = load_images(table)
    assert sorted(path.resolve() for path in again.paths) == sorted(data.glob("*/*"))

    result = scs("train", "data", "--out", "run", *SMALL)
    assert result.code == 0, result.err
    Path("run/finished.json").unlink()
    result = scs("train", "data", "--out", "run", *SMALL)
    assert result.code == 0, result.err
