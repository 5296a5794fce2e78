"""Which images a model is asked about."""

import shutil

import numpy as np
import pytest

from scs_supcon.errors import UserError
from scs_supcon.evaluation.dataset import read_asked
from scs_supcon.progress import Display

QUIET = Display(quiet=True)
CLASSES = ("bar", "circle", "cross", "square")


def test_all_of_a_folder_without_parts(shapes):
    asked = read_asked(str(shapes), CLASSES, 1, QUIET)
    assert (asked.split, len(asked.indices), asked.unreadable, asked.strange) == ("all", 24, [], [])
    assert asked.label_names == [name.split("/")[0] for name in asked.names]
    assert [CLASSES[label] for label in asked.labels] == asked.label_names


def test_the_test_part_of_data_with_parts(shapes, tmp_path):
    for split in ("train", "test"):
        shutil.copytree(shapes / "bar", tmp_path / split / "bar")
        shutil.copytree(shapes / "cross", tmp_path / split / "cross")
    asked = read_asked(str(tmp_path), CLASSES, 1, QUIET)
    assert asked.split == "test"
    assert all(name.startswith("test/") for name in asked.names)
    assert len(asked.names) == 12
    assert set(asked.labels.tolist()) == {0, 2}
    shutil.rmtree(tmp_path / "test")
    with pytest.raises(UserError, match="no test part: name the folder"):
        read_asked(str(tmp_path), CLASSES, 1, QUIET)


def test_classes_it_does_not_know_are_held_out(shapes):
    asked = read_asked(str(shapes), ("square", "star", "bar"), 2, QUIET)
    assert asked.strange == ["circle", "cross"]
    labels = dict(zip(asked.label_names, asked.labels.tolist(), strict=True))
    assert labels == {"bar": 2, "circle": -1, "cross": -1, "square": 0}


def test_nothing_it_knows_is_an_error_that_names_both_sides(shapes):
    with pytest.raises(UserError) as told:
        read_asked(str(shapes), ("Bar", "b", "c", "d", "e", "f", "g"), 1, QUIET)
    for part in (
        "knows none of the classes",
        "which are bar, circle, cross, square; it knows Bar, b, c, d, e and 2 more",
        "did you mean 'Bar'",
    ):
        assert part in str(told.value)


def test_unreadable_images_are_named_and_left_out(shapes, tmp_path):
    folder = tmp_path / "data"
    shutil.copytree(shapes, folder)
    (folder / "bar" / "text.png").write_text("no image")
    whole = next((folder / "circle").iterdir())
    whole.write_bytes(whole.read_bytes()[:60])
    asked = read_asked(str(folder), CLASSES, 2, QUIET)
    names = {one["name"] for one in asked.unreadable}
    assert names == {"bar/text.png", f"circle/{whole.name}"}
    assert all(one["name"].split("/")[1] in one["detail"] for one in asked.unreadable)
    assert not names & set(asked.names)
    assert len(asked.names) == len(asked.labels) == 23


def test_a_class_without_a_readable_image_is_no_error_unless_it_is_the_last(shapes, tmp_path):
    folder = tmp_path / "data"
    shutil.copytree(shapes, folder)
    for file in (folder / "bar").iterdir():
        file.write_bytes(b"")
    asked = read_asked(str(folder), CLASSES, 1, QUIET)
    assert set(asked.labels.tolist()) == {1, 2, 3}
    with pytest.raises(UserError, match=r"no readable image of a class.*\(0 bytes\)"):
        read_asked(str(folder), ("bar",), 1, QUIET)


def test_built_in_sets_are_asked_about_too():
    asked = read_asked("drawn", CLASSES, 1, QUIET)
    assert asked.strange == ["star", "triangle"]
    assert np.array_equal(asked.indices, np.arange(240))
