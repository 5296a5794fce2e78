from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from scs_supcon.data.builtin import shapes
from scs_supcon.data.dataset import content_digest
from scs_supcon.data.load import find_images, load_dataset
from scs_supcon.errors import UserError


def test_unusable_images_are_left_out_and_duplicates_are_grouped(shapes, tmp_path):
    copy = tmp_path / "shapes"
    for folder in shapes.iterdir():
        (copy / folder.name).mkdir(parents=True)
        for file in folder.iterdir():
            (copy / folder.name / file.name).write_bytes(file.read_bytes())
    first = next(folder for folder in copy.iterdir())
    (first / "broken.png").write_bytes(b"not an image")
    (first / "again.png").write_bytes(next(shapes.glob(f"{first.name}/*.png")).read_bytes())
    progress = []
    images, problems = load_dataset(str(copy), 1, lambda *done: progress.append(done))
    assert {problem.kind for problem in problems} == {"unreadable", "duplicate"}
    assert len(images) == 25
    assert sorted(np.unique(images.groups, return_counts=True)[1].tolist()) == [2, 23]
    assert progress[-1] == (26, 26)


@pytest.mark.parametrize(
    "change",
    [
        lambda p: {"names": ("other", *p.names[1:])},
        lambda p: {"labels": np.roll(p.labels, 1)},
        lambda p: {"file_hash": lambda index: "0" * 64},
        lambda p: {"splits": np.array(["train"] * len(p))},
        lambda p: {"folds": np.arange(len(p)) % 3},
    ],
)
def test_the_digest_depends_on_names_labels_contents_and_splits(change):
    images = shapes(per_class=3)
    assert content_digest(images) == content_digest(shapes(per_class=3))
    assert content_digest(replace(images, **change(images))) != content_digest(images)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    for name in (
        "a.png",
        "b.JPG",
        "notes.txt",
        "deep/c.webp",
        "deep/er/f.txt",
        ".hidden/d.png",
        ".e.png",
    ):
        path = tmp_path / "x" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def names(*arguments):
    return [str(path) for path in find_images(arguments)]


def test_a_folder_matches_all_images_below_it(folder):
    assert names("x") == ["x/a.png", "x/b.JPG", "x/deep/c.webp"]


def test_files_keep_their_order_and_may_have_any_extension(folder):
    assert names("x/notes.txt", "x/a.png") == ["x/notes.txt", "x/a.png"]


def test_a_pattern_matches_as_in_a_shell(folder):
    assert names("x/*.png") == ["x/a.png"]
    assert names("x/[ab].*") == ["x/a.png", "x/b.JPG"]
    assert names("x/**/*.webp") == ["x/deep/c.webp"]
    assert names("x/**/*.txt") == ["x/deep/er/f.txt", "x/notes.txt"]
    assert names("x/d*") == ["x/deep/c.webp"], "a matching folder is replaced by its images"
    assert names(str(folder / "x" / "*.png")) == [str(folder / "x" / "a.png")]


def test_each_image_is_returned_once(folder):
    assert names("x/b.JPG", "x", "x/*.png", "x") == ["x/b.JPG", "x/a.png", "x/deep/c.webp"]


def test_an_existing_file_is_not_treated_as_a_pattern(folder):
    Path("x/[1].png").touch()
    assert names("x/[1].png") == ["x/[1].png"]


def test_a_hidden_folder_is_read_if_it_is_an_argument(folder):
    assert names("x/.hidden") == ["x/.hidden/d.png"]


def test_a_missing_file_is_returned_so_that_opening_reports_it(folder):
    assert names("x/a.png", "gone.png") == ["x/a.png", "gone.png"]


@pytest.mark.parametrize("argument", ["x/*.gif", "empty", "x/a.png/*"])
def test_an_argument_without_images_is_an_error(folder, argument):
    Path("empty").mkdir()
    with pytest.raises(UserError, match=r"no images at .*files, folders or patterns"):
        find_images(["x/a.png", argument])
