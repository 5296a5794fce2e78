"""Clean tables: the images that are kept, their splits, and training on the table."""

import csv
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from scs_supcon.data.audit import diagnose
from scs_supcon.data.clean import clean, table_csv
from scs_supcon.data.load import load_images
from scs_supcon.errors import UserError

Scene = Callable[..., Image.Image]


@pytest.fixture
def root(tmp_path: Path, scene: Scene) -> Path:
    """Two classes of eight images, no splits."""
    for index in range(16):
        folder = tmp_path / "birds" / ("owl", "wren")[index % 2]
        folder.mkdir(parents=True, exist_ok=True)
        scene(index, (48, 40)).save(folder / f"{index:02d}.png")
    return tmp_path / "birds"


def with_splits(root: Path, test: set[str]) -> Path:
    """Write the images as a table; the given names are the test split."""
    names = sorted(path.relative_to(root.parent).as_posix() for path in root.rglob("*.*"))
    rows = [
        f"{name},{name.split('/')[1]},{'test' if Path(name).name in test else 'train'}"
        for name in names
    ]
    table = root.parent / "birds.csv"
    table.write_text("\n".join(["image_path,label,split", *rows]))
    return table


def names(images) -> set[str]:
    return {Path(name).name for name in images.names}


def splits(images) -> dict[str, str]:
    return {
        Path(name).name: split
        for name, split in zip(images.names, images.splits.tolist(), strict=True)
    }


def test_a_healthy_dataset_gets_splits(root: Path) -> None:
    cleaned = clean(diagnose(load_images(root, forgiving=True)))
    assert cleaned.left_out == {}
    assert cleaned.moved == 0
    assert len(cleaned.images) == 16
    assert set(cleaned.images.splits.tolist()) == {"train", "val", "test"}


def test_unusable_images_copies_and_two_labels_are_left_out(root: Path) -> None:
    (root / "owl/bad.png").write_text("not an image")
    shutil.copy(root / "owl/02.png", root / "owl/copy.png")
    shutil.copy(root / "owl/04.png", root / "wren/other.png")
    cleaned = clean(diagnose(load_images(root, forgiving=True)))
    assert cleaned.left_out == {"unusable": 1, "copy": 1, "two_labels": 2}
    assert names(cleaned.images) == {f"{index:02d}.png" for index in range(16) if index != 4}


def test_the_copy_in_the_test_split_is_kept(root: Path) -> None:
    for name in ("a.png", "z.png"):
        shutil.copy(root / "owl/02.png", root / "owl" / name)
    cleaned = clean(diagnose(load_images(with_splits(root, {"z.png", "01.png"}), forgiving=True)))
    assert cleaned.left_out == {"copy": 2}
    assert splits(cleaned.images)["z.png"] == "test"
    assert not {"02.png", "a.png"} & names(cleaned.images)


def test_a_class_keeps_its_last_training_image(root: Path) -> None:
    shutil.copy(root / "owl/02.png", root / "owl/z.png")
    test = {f"{index:02d}.png" for index in range(0, 16, 2)} - {"02.png"} | {"z.png"}
    cleaned = clean(diagnose(load_images(with_splits(root, test), forgiving=True)))
    assert splits(cleaned.images)["02.png"] == "train"
    assert "z.png" not in names(cleaned.images)


def test_near_duplicates_move_to_the_split_of_most_of_them(root: Path) -> None:
    for number, quality in enumerate((90, 70)):
        Image.open(root / "owl/02.png").save(root / f"owl/like{number}.jpg", quality=quality)
    cleaned = clean(diagnose(load_images(with_splits(root, {"02.png", "01.png"}), forgiving=True)))
    assert cleaned.moved == 1
    split_of = splits(cleaned.images)
    assert {split_of[name] for name in ("02.png", "like0.jpg", "like1.jpg")} == {"train"}
    assert len(set(cleaned.images.groups.tolist()) - {""}) == 1


def test_a_class_keeps_training_images_when_near_duplicates_move(root: Path) -> None:
    Image.open(root / "owl/02.png").save(root / "owl/like.jpg", quality=90)
    test = {f"{index:02d}.png" for index in range(0, 16, 2)} - {"02.png"} | {"like.jpg"}
    split_of = splits(clean(diagnose(load_images(with_splits(root, test), forgiving=True))).images)
    assert split_of["02.png"] == split_of["like.jpg"] == "train"


def test_assigned_splits_keep_near_duplicates_together(root: Path) -> None:
    for index in range(0, 8, 2):
        Image.open(root / f"owl/{index:02d}.png").save(root / f"owl/like{index}.jpg", quality=80)
    diagnosis = diagnose(load_images(root, forgiving=True))
    for seed in range(5):
        split_of = splits(clean(diagnosis, seed).images)
        assert all(
            split_of[f"{index:02d}.png"] == split_of[f"like{index}.jpg"] for index in range(0, 8, 2)
        )


def test_a_group_is_in_one_fold(root: Path) -> None:
    Image.open(root / "owl/02.png").save(root / "owl/like.jpg", quality=90)
    diagnosis = diagnose(load_images(root, forgiving=True))
    folds = np.arange(len(diagnosis.images)) % 5
    cleaned = clean(replace(diagnosis, images=replace(diagnosis.images, folds=folds)))
    fold = dict(zip(cleaned.images.names, cleaned.images.folds.tolist(), strict=True))
    assert fold["owl/02.png"] == fold["owl/like.jpg"]


def test_classes_without_training_images_are_left_out(root: Path, scene: Scene) -> None:
    (root / "robin").mkdir()
    scene(99).save(root / "robin/99.png")
    cleaned = clean(diagnose(load_images(with_splits(root, {"99.png", "01.png"}), forgiving=True)))
    assert cleaned.left_out == {"untrained_class": 1}
    assert cleaned.images.classes == ("owl", "wren")


def test_a_class_of_unusable_images_is_removed(root: Path) -> None:
    (root / "auk").mkdir()
    (root / "auk/bad.png").write_text("not an image")
    assert clean(diagnose(load_images(root, forgiving=True))).images.classes == ("owl", "wren")
    for path in (root / "owl").iterdir():
        path.write_text("not an image")
    with pytest.raises(UserError, match="fewer than two classes"):
        clean(diagnose(load_images(root, forgiving=True)))


def test_a_built_in_dataset_is_an_error() -> None:
    with pytest.raises(UserError, match="--fix needs image files; built-in datasets have none"):
        clean(diagnose(load_images("shapes", forgiving=True)))


def test_the_table_can_be_read_from_any_folder(root: Path, tmp_path: Path) -> None:
    Image.open(root / "owl/02.png").save(root / "owl/like, here.jpg", quality=90)
    cleaned = clean(diagnose(load_images(root, forgiving=True)))
    for folder in (tmp_path, root, tmp_path / "lists" / "deep"):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "fixed.csv").write_text(table_csv(cleaned, folder))
        loaded = load_images(folder / "fixed.csv")
        assert names(loaded) == names(cleaned.images)
        assert splits(loaded) == splits(cleaned.images)
    header = next(csv.reader((tmp_path / "fixed.csv").open()))
    assert header == ["image_path", "label", "split", "group"]
    link = tmp_path / "elsewhere" / "link"
    link.parent.mkdir()
    link.symlink_to(tmp_path / "lists" / "deep")
    (link / "linked.csv").write_text(table_csv(cleaned, link))
    assert len(load_images(link / "linked.csv")) == 17


@pytest.mark.slow
def test_the_table_can_be_trained_on(root: Path, train_small, tmp_path: Path) -> None:
    (root / "owl/bad.png").write_text("not an image")
    shutil.copy(root / "owl/02.png", root / "owl/copy.png")
    (root / "empty").mkdir()
    table = tmp_path / "fixed.csv"
    table.write_text(table_csv(clean(diagnose(load_images(root, forgiving=True))), tmp_path))
    result = train_small(table, tmp_path / "run", epochs=1)
    assert result.evaluation.images == 4
