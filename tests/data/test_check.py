from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from scs_supcon.data.check import (
    check_images,
    keep_duplicates_together,
    single_image_classes,
    unusable,
)
from scs_supcon.data.folder import load_images, without
from scs_supcon.data.shapes import drawn
from scs_supcon.data.splits import assign_splits

ClassFolders = Callable[[dict[str, int]], Path]


def copy(root: Path, source: str, target: str) -> None:
    (root / target).write_bytes((root / source).read_bytes())


@pytest.mark.parametrize("workers", [0, 2])
def test_a_good_set_has_no_problems(class_folders: ClassFolders, workers: int) -> None:
    done: list[int] = []
    images = load_images(class_folders({"a": 3, "b": 3}))
    assert check_images(images, workers, done.append) == []
    assert done == [1, 2, 3, 4, 5, 6]


@pytest.mark.filterwarnings("error::PIL.Image.DecompressionBombWarning")
def test_images_that_cannot_be_used(
    class_folders: ClassFolders, paint: Callable[..., Path]
) -> None:
    root = class_folders({"a": 3, "b": 3})
    (root / "a/000.png").write_text("no image")
    jpeg = paint(root / "a/cut.jpg", 7, size=(200, 100))
    jpeg.write_bytes(jpeg.read_bytes()[:-200])
    bomb = paint(root / "b/bomb.bmp", 8)
    header = bytearray(bomb.read_bytes())
    header[18:22] = header[22:26] = (10_000).to_bytes(4, "little")
    bomb.write_bytes(header)

    images = load_images(root)
    problems = check_images(images, workers=2)
    assert {(problem.kind, problem.name) for problem in problems} == {
        ("unreadable", "a/000.png"),
        ("truncated", "a/cut.jpg"),
        ("too large", "b/bomb.bmp"),
    }
    for problem in problems:
        assert problem.name in problem.detail
    left = without(images, unusable(images, problems))
    assert len(left) == 5
    assert check_images(left, workers=2) == []


def test_duplicates_inside_and_across(class_folders: ClassFolders) -> None:
    root = class_folders({"train/a": 2, "train/b": 2, "test/a": 1, "test/b": 1})
    copy(root, "train/a/000.png", "train/a/again.png")
    copy(root, "train/a/001.png", "test/a/again.png")
    copy(root, "train/b/000.png", "train/a/other.png")
    problems = check_images(load_images(root), workers=1)
    assert {(problem.kind, problem.name, problem.same_as) for problem in problems} == {
        ("duplicate", "train/a/again.png", "train/a/000.png"),
        ("duplicate across splits", "train/a/001.png", "test/a/again.png"),
        ("duplicate with another label", "train/b/000.png", "train/a/other.png"),
    }


def test_a_class_with_one_training_image(class_folders: ClassFolders) -> None:
    images = load_images(class_folders({"a": 1, "b": 2}))
    (problem,) = check_images(images, workers=1)
    assert (problem.kind, problem.name) == ("one image", "a")
    split = replace(images, splits=np.array(["train", "train", "test"]))
    problems = check_images(split, workers=1)
    assert {problem.name for problem in problems} == {"a", "b"}
    assert single_image_classes(np.array([0, 1]), ("a", "b")) == problems


def test_a_group_in_two_splits() -> None:
    images = drawn(per_class=2)
    groups = np.array(["", "", "g", "g", *[f"g{n}" for n in range(8)]])
    splits = np.array(["train", "test"] * 6)
    problems = check_images(replace(images, groups=groups, splits=splits), workers=1)
    torn = [problem for problem in problems if problem.kind == "group across splits"]
    assert [problem.name for problem in torn] == ["g"]


def test_copies_and_groups_torn_by_given_folds(class_folders: ClassFolders) -> None:
    root = class_folders({"a": 3, "b": 3})
    copy(root, "a/000.png", "a/001.png")
    copy(root, "b/000.png", "b/002.png")
    images = replace(
        load_images(root),
        folds=np.array([0, 1, 0, 0, 1, 0]),
        groups=np.array(["", "", "g", "", "g", ""]),
    )
    problems = check_images(images, workers=1)
    assert {(problem.kind, problem.name) for problem in problems} == {
        ("duplicate across folds", "a/001.png"),
        ("duplicate", "b/002.png"),
        ("group across folds", "g"),
    }
    torn = next(problem for problem in problems if problem.kind == "duplicate across folds")
    assert torn.detail == "a/001.png has the same content as a/000.png (fold 0)"


def test_duplicates_are_never_torn_apart_by_a_drawn_split(class_folders: ClassFolders) -> None:
    root = class_folders({"a": 12, "b": 12})
    for number in range(6):
        copy(root, f"a/{number:03d}.png", f"a/copy{number}.png")
        copy(root, f"a/{number:03d}.png", f"a/third{number}.png")
    images = load_images(root)
    problems = check_images(images, workers=2)
    together = keep_duplicates_together(images, problems)
    for seed in range(5):
        splits = assign_splits(together, 0.1, 0.2, seed)
        place = dict(zip(images.names, splits.tolist(), strict=True))
        for number in range(6):
            names = (f"a/{number:03d}.png", f"a/copy{number}.png", f"a/third{number}.png")
            assert len({place[name] for name in names}) == 1
    assert keep_duplicates_together(images, []) is images


def test_duplicates_join_the_groups_they_are_in() -> None:
    images = replace(drawn(per_class=1), groups=np.array(["g", "g", "h", "h", "", ""]))
    names = images.names
    duplicate = check_images(images, workers=1)[0]
    pairs = [(names[0], names[2]), (names[3], names[4])]
    problems = [replace(duplicate, name=again, same_as=first) for first, again in pairs]
    joined = keep_duplicates_together(images, problems).groups
    assert joined is not None
    assert joined.tolist() == ["g", "g", "g", "g", "g", ""]
