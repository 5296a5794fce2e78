"""Loading the images to evaluate on."""

import shutil

import numpy as np
import pytest

from scs_supcon.errors import UserError
from scs_supcon.evaluation.dataset import load_evaluation_set
from scs_supcon.progress import Display

QUIET = Display(quiet=True)
CLASSES = ("bar", "circle", "cross", "square")


def test_a_folder_without_splits_is_used_completely(shapes):
    images = load_evaluation_set(str(shapes), CLASSES, 1, QUIET)
    assert (images.split, len(images.indices), images.unreadable, images.unknown_classes) == (
        "all",
        24,
        [],
        [],
    )
    assert images.label_names == [name.split("/")[0] for name in images.names]
    assert [CLASSES[label] for label in images.labels] == images.label_names


def test_data_with_splits_uses_the_test_split(shapes, tmp_path):
    for split in ("train", "test"):
        shutil.copytree(shapes / "bar", tmp_path / split / "bar")
        shutil.copytree(shapes / "cross", tmp_path / split / "cross")
    images = load_evaluation_set(str(tmp_path), CLASSES, 1, QUIET)
    assert images.split == "test"
    assert all(name.startswith("test/") for name in images.names)
    assert len(images.names) == 12
    assert set(images.labels.tolist()) == {0, 2}
    shutil.rmtree(tmp_path / "test")
    with pytest.raises(UserError, match="no test split: give the folder"):
        load_evaluation_set(str(tmp_path), CLASSES, 1, QUIET)


def test_unknown_classes_get_label_minus_1(shapes):
    images = load_evaluation_set(str(shapes), ("square", "star", "bar"), 2, QUIET)
    assert images.unknown_classes == ["circle", "cross"]
    labels = dict(zip(images.label_names, images.labels.tolist(), strict=True))
    assert labels == {"bar": 2, "circle": -1, "cross": -1, "square": 0}


def test_data_may_have_unknown_classes_only(shapes, tmp_path):
    images = load_evaluation_set(str(shapes), ("a", "b"), 1, QUIET)
    assert set(images.labels.tolist()) == {-1}
    assert images.unknown_classes == ["bar", "circle", "cross", "square"]
    folder = tmp_path / "data"
    shutil.copytree(shapes / "bar", folder / "bar")
    good = load_evaluation_set(str(folder), ("a",), 1, QUIET)
    assert len(good.names) == 6


def test_unreadable_images_are_listed_and_left_out(shapes, tmp_path):
    folder = tmp_path / "data"
    shutil.copytree(shapes, folder)
    (folder / "bar" / "text.png").write_text("not an image")
    whole = next((folder / "circle").iterdir())
    whole.write_bytes(whole.read_bytes()[:60])
    images = load_evaluation_set(str(folder), CLASSES, 2, QUIET)
    names = {unreadable.image for unreadable in images.unreadable}
    assert names == {"bar/text.png", f"circle/{whole.name}"}
    assert all(
        unreadable.image.split("/")[1] in unreadable.detail for unreadable in images.unreadable
    )
    assert not names & set(images.names)
    assert len(images.names) == len(images.labels) == 23


def test_at_least_one_readable_image_is_needed(shapes, tmp_path):
    folder = tmp_path / "data"
    shutil.copytree(shapes, folder)
    for file in (folder / "bar").iterdir():
        file.write_bytes(b"")
    images = load_evaluation_set(str(folder), CLASSES, 1, QUIET)
    assert set(images.labels.tolist()) == {1, 2, 3}
    with pytest.raises(UserError, match=r"no readable image of a class.*\(0 bytes\)"):
        load_evaluation_set(str(folder), ("bar",), 1, QUIET)


def test_built_in_datasets_can_be_evaluated():
    images = load_evaluation_set("shapes", CLASSES, 1, QUIET)
    assert images.unknown_classes == ["star", "triangle"]
    assert np.array_equal(images.indices, np.arange(240))
