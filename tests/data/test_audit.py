import os
import shutil
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from scs_supcon.data.audit import (
    check_images,
    diagnose,
    keep_duplicates_together,
    single_image_classes,
    unusable_indices,
)
from scs_supcon.data.builtin import shapes
from scs_supcon.data.dataset import PROBLEM_KINDS, Problem, without
from scs_supcon.data.load import load_images
from scs_supcon.data.splits import assign_splits

ClassFolders = Callable[[dict[str, int]], Path]


def copy(root: Path, source: str, target: str) -> None:
    (root / target).write_bytes((root / source).read_bytes())


@pytest.mark.parametrize("workers", [0, 2])
def test_a_valid_dataset_has_no_problems(class_folders: ClassFolders, workers: int) -> None:
    done: list[int] = []
    images = load_images(class_folders({"a": 3, "b": 3}))
    assert check_images(images, workers, done.append) == []
    assert done == [1, 2, 3, 4, 5, 6]


@pytest.mark.filterwarnings("error::PIL.Image.DecompressionBombWarning")
def test_unusable_images_are_reported(
    class_folders: ClassFolders, paint: Callable[..., Path], bomb: Callable[..., Path]
) -> None:
    root = class_folders({"a": 3, "b": 3})
    (root / "a/000.png").write_text("not an image")
    jpeg = paint(root / "a/cut.jpg", 7, size=(200, 100))
    jpeg.write_bytes(jpeg.read_bytes()[:-200])
    bomb(root / "b/bomb.bmp")

    images = load_images(root)
    problems = check_images(images, workers=2)
    assert {(problem.kind, problem.name) for problem in problems} == {
        ("unreadable", "a/000.png"),
        ("truncated", "a/cut.jpg"),
        ("too_large", "b/bomb.bmp"),
    }
    for problem in problems:
        assert problem.name in problem.detail
    remaining = without(images, unusable_indices(images, problems))
    assert len(remaining) == 5
    assert check_images(remaining, workers=2) == []


def test_duplicates_are_reported_by_kind(class_folders: ClassFolders) -> None:
    root = class_folders({"train/a": 2, "train/b": 2, "test/a": 1, "test/b": 1})
    copy(root, "train/a/000.png", "train/a/again.png")
    copy(root, "train/a/001.png", "test/a/again.png")
    copy(root, "train/b/000.png", "train/a/other.png")
    problems = check_images(load_images(root), workers=1)
    assert {(problem.kind, problem.name, problem.same_as) for problem in problems} == {
        ("duplicate", "train/a/again.png", "train/a/000.png"),
        ("duplicate_across_splits", "train/a/001.png", "test/a/again.png"),
        ("duplicate_with_other_label", "train/b/000.png", "train/a/other.png"),
    }


def test_a_class_with_one_training_image_is_reported(class_folders: ClassFolders) -> None:
    images = load_images(class_folders({"a": 1, "b": 2}))
    (problem,) = check_images(images, workers=1)
    assert (problem.kind, problem.name) == ("single_image_class", "a")
    split = replace(images, splits=np.array(["train", "train", "test"]))
    problems = check_images(split, workers=1)
    assert {problem.name for problem in problems} == {"a", "b"}
    assert single_image_classes(np.array([0, 1]), ("a", "b")) == problems


def test_a_group_in_two_splits_is_reported() -> None:
    images = shapes(per_class=2)
    groups = np.array(["", "", "g", "g", *[f"g{n}" for n in range(8)]])
    splits = np.array(["train", "test"] * 6)
    problems = check_images(replace(images, groups=groups, splits=splits), workers=1)
    separated = [problem for problem in problems if problem.kind == "group_across_splits"]
    assert [problem.name for problem in separated] == ["g"]


def test_duplicates_and_groups_across_folds_are_reported(class_folders: ClassFolders) -> None:
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
        ("duplicate_across_folds", "a/001.png"),
        ("duplicate", "b/002.png"),
        ("group_across_folds", "g"),
    }
    duplicate = next(problem for problem in problems if problem.kind == "duplicate_across_folds")
    assert duplicate.detail == "a/001.png has the same content as a/000.png (fold 0)"


def test_no_split_separates_duplicates(class_folders: ClassFolders) -> None:
    root = class_folders({"a": 12, "b": 12})
    for number in range(6):
        copy(root, f"a/{number:03d}.png", f"a/copy{number}.png")
        copy(root, f"a/{number:03d}.png", f"a/third{number}.png")
    images = load_images(root)
    problems = check_images(images, workers=2)
    grouped = keep_duplicates_together(images, problems)
    for seed in range(5):
        splits = assign_splits(grouped, 0.1, 0.2, seed)
        split_of = dict(zip(images.names, splits.tolist(), strict=True))
        for number in range(6):
            names = (f"a/{number:03d}.png", f"a/copy{number}.png", f"a/third{number}.png")
            assert len({split_of[name] for name in names}) == 1
    assert keep_duplicates_together(images, []) is images


def test_duplicates_merge_their_groups() -> None:
    images = replace(shapes(per_class=1), groups=np.array(["g", "g", "h", "h", "", ""]))
    names = images.names
    duplicate = check_images(images, workers=1)[0]
    pairs = [(names[0], names[2]), (names[3], names[4])]
    problems = [replace(duplicate, name=again, same_as=first) for first, again in pairs]
    groups = keep_duplicates_together(images, problems).groups
    assert groups is not None
    assert groups.tolist() == ["g", "g", "g", "g", "g", ""]


Scene = Callable[..., Image.Image]


def listed(problems: tuple[Problem, ...]) -> set[tuple[str, str, str]]:
    return {(problem.kind, problem.name, problem.same_as) for problem in problems}


@pytest.fixture
def root(tmp_path: Path, scene: Scene) -> Path:
    """A valid dataset: three classes in two splits, different images of several sizes."""
    seed = 0
    for split, count in (("train", 6), ("test", 2)):
        for name in ("finch", "owl", "wren"):
            folder = tmp_path / "birds" / split / name
            folder.mkdir(parents=True)
            for number in range(count):
                scene(seed, (90 + 10 * number, 80)).save(folder / f"{number}.jpg")
                seed += 1
    return tmp_path / "birds"


def test_a_healthy_folder_has_no_problems(root: Path) -> None:
    progress: list[tuple[int, int]] = []
    diagnosis = diagnose(
        load_images(root, forgiving=True), 2, lambda done, total: progress.append((done, total))
    )
    assert diagnosis.problems == ()
    assert diagnosis.conversions == {}
    assert diagnosis.healthy
    assert progress[0] == (1, 48)
    assert progress[-1] == (48, 48)


@pytest.mark.parametrize("name", ["digits", "shapes"])
def test_the_built_in_datasets_are_healthy(name: str) -> None:
    assert diagnose(load_images(name, forgiving=True)).problems == ()


def test_exactly_the_existing_problems_are_reported(
    root: Path, scene: Scene, bomb: Callable[..., Path]
) -> None:
    train, test = root / "train", root / "test"
    (train / "finch/page.jpg").write_text("<html>404</html>")
    cut = scene(100).resize((400, 300))
    cut.save(train / "finch/cut.jpg")
    (train / "finch/cut.jpg").write_bytes((train / "finch/cut.jpg").read_bytes()[:-3000])
    bomb(train / "finch/bomb.bmp")
    Image.new("RGB", (6000, 1)).save(train / "finch/thin.png")

    shutil.copy(train / "owl/0.jpg", train / "owl/again.jpg")
    shutil.copy(train / "owl/1.jpg", test / "owl/leak.jpg")
    shutil.copy(train / "owl/2.jpg", train / "wren/owl.jpg")
    Image.open(train / "owl/3.jpg").save(train / "owl/small.jpg", quality=40)
    Image.open(train / "owl/4.jpg").resize((60, 50)).save(test / "owl/small.png")
    Image.open(train / "owl/5.jpg").crop((3, 2, 140, 80)).save(train / "wren/owlet.jpg")

    scene(110).save(train / "wren/really.jpg", "PNG")
    (train / "empty").mkdir()
    (train / "wren/list.txt").write_text("wrens")
    (train / ".ipynb_checkpoints").mkdir()
    shutil.copy(train / "wren/0.jpg", train / ".ipynb_checkpoints/0.jpg")
    (train / "lone").mkdir()
    scene(111).save(train / "lone/0.jpg")
    (train / "Wren ").mkdir()
    for number in range(2):
        scene(112 + number).save(train / "Wren " / f"{number}.jpg")
    (test / "robin").mkdir()
    scene(115).save(test / "robin/0.jpg")

    diagnosis = diagnose(load_images(root, forgiving=True), 2)
    assert listed(diagnosis.problems) == {
        ("unreadable", "train/finch/page.jpg", ""),
        ("truncated", "train/finch/cut.jpg", ""),
        ("too_large", "train/finch/bomb.bmp", ""),
        ("too_large", "train/finch/thin.png", ""),
        ("duplicate", "train/owl/again.jpg", "train/owl/0.jpg"),
        ("duplicate_across_splits", "train/owl/1.jpg", "test/owl/leak.jpg"),
        ("duplicate_with_other_label", "train/wren/owl.jpg", "train/owl/2.jpg"),
        ("near_duplicate", "train/owl/small.jpg", "train/owl/3.jpg"),
        ("near_duplicate_across_splits", "train/owl/4.jpg", "test/owl/small.png"),
        ("near_duplicate_with_other_label", "train/wren/owlet.jpg", "train/owl/5.jpg"),
        ("wrong_extension", "train/wren/really.jpg", ""),
        ("empty_folder", "train/empty", ""),
        ("skipped_file", "train/wren/list.txt", ""),
        ("hidden", "train/.ipynb_checkpoints", ""),
        ("single_image_class", "lone", ""),
        ("small_class", "Wren ", ""),
        ("similar_labels", "wren", "Wren "),
        ("class_without_training_images", "robin", ""),
    }
    assert not diagnosis.healthy
    order = list(PROBLEM_KINDS)
    ranks = [order.index(problem.kind) for problem in diagnosis.problems]
    assert ranks == sorted(ranks)
    for problem in diagnosis.problems:
        assert problem.name in problem.detail


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not allow such names")
def test_names_that_are_not_utf_8_can_be_printed(root: Path) -> None:
    for name in (b"wren/\xff.txt", b"wren/.\xfe", b"\xfd/"):
        path = root / "train" / os.fsdecode(name)
        if name.endswith(b"/"):
            path.mkdir()
        else:
            path.touch()
    problems = diagnose(load_images(root, forgiving=True)).problems
    assert listed(problems) == {
        ("skipped_file", r"train/wren/\xff.txt", ""),
        ("hidden", r"train/wren/.\xfe", ""),
        ("empty_folder", r"train/\xfd", ""),
    }
    for problem in problems:
        assert problem.name in problem.detail
        problem.detail.encode()


def test_conversions_are_counted_but_are_not_problems(root: Path, scene: Scene) -> None:
    folder = root / "train/finch"
    scene(100).convert("CMYK").save(folder / "ink.jpg")
    scene(101).convert("P").save(folder / "palette.png")
    scene(102).convert("RGBA").save(folder / "alpha.png")
    levels = np.asarray(scene(103).convert("L")).astype(np.uint16) * 257
    Image.fromarray(levels).save(folder / "deep.png")
    exif = Image.Exif()
    exif[0x0112] = 6
    scene(104).save(folder / "turned.jpg", exif=exif)
    frames = [scene(105), scene(106)]
    frames[0].save(folder / "frames.webp", save_all=True, append_images=frames[1:], lossless=True)
    diagnosis = diagnose(load_images(root, forgiving=True))
    assert diagnosis.problems == ()
    assert diagnosis.conversions == {
        "CMYK colours": ("train/finch/ink.jpg",),
        "palette": ("train/finch/palette.png",),
        "EXIF orientation": ("train/finch/turned.jpg",),
        "more than 8 bits": ("train/finch/deep.png",),
        "animation (first frame)": ("train/finch/frames.webp",),
        "transparency": ("train/finch/alpha.png",),
    }


def test_imbalance_is_not_harmful(root: Path, scene: Scene) -> None:
    for seed in range(60):
        scene(200 + seed, (40, 40)).save(root / f"train/owl/more{seed}.png")
    diagnosis = diagnose(load_images(root, forgiving=True))
    assert listed(diagnosis.problems) == {("imbalance", "finch", "owl")}
    assert diagnosis.healthy


def test_missing_files_groups_and_unread_columns_of_a_table_are_reported(root: Path) -> None:
    rows = ["image_path,label,split,group,camera"]
    for index, path in enumerate(sorted(root.rglob("*.jpg"))):
        split, label, _ = path.relative_to(root).parts
        rows.append(f"birds/{path.relative_to(root)},{label},{split},g{index % 23},x")
    rows.append("birds/gone.jpg,owl,train,,x")
    table = root.parent / "birds.csv"
    table.write_text("\n".join(rows))
    kinds = Counter(
        problem.kind for problem in diagnose(load_images(table, forgiving=True)).problems
    )
    assert kinds == {"unreadable": 1, "group_across_splits": 1, "unread_column": 1}


def test_duplicates_across_the_folds_of_a_table_are_reported(root: Path) -> None:
    shutil.copy(root / "train/owl/0.jpg", root / "train/owl/again.jpg")
    Image.open(root / "train/owl/1.jpg").save(root / "train/owl/like.jpg", quality=90)
    rows = ["image_path,label,fold"]
    for path in sorted(root.rglob("*.jpg")):
        label = path.relative_to(root).parts[1]
        rows.append(f"birds/{path.relative_to(root)},{label},{int(path.stem in ('0', '1'))}")
    table = root.parent / "birds.csv"
    table.write_text("\n".join(rows))
    kinds = Counter(
        problem.kind for problem in diagnose(load_images(table, forgiving=True)).problems
    )
    assert kinds == {"duplicate_across_folds": 1, "near_duplicate_across_folds": 1}


def test_the_most_harmful_near_duplicate_is_reported(root: Path) -> None:
    copy = Image.open(root / "train/owl/0.jpg")
    copy.save(root / "train/owl/y.jpg", quality=90)
    copy.save(root / "train/wren/z.jpg", quality=50)
    problems = {
        problem.name: problem for problem in diagnose(load_images(root, forgiving=True)).problems
    }
    assert problems["train/owl/y.jpg"].kind == "near_duplicate"
    assert problems["train/wren/z.jpg"].kind == "near_duplicate_with_other_label"


def test_near_duplicates_in_one_group_are_not_reported(root: Path) -> None:
    Image.open(root / "train/owl/0.jpg").save(root / "train/owl/y.jpg", quality=90)
    for group, problems in (("", {"near_duplicate"}), ("owl 0", set())):
        rows = ["image_path,label,split,group"]
        for path in sorted(root.rglob("*.jpg")):
            split, label, name = path.relative_to(root).parts
            alike = (split, label) == ("train", "owl") and name in ("0.jpg", "y.jpg")
            rows.append(f"{path.relative_to(root)},{label},{split},{group if alike else ''}")
        (root / "birds.csv").write_text("\n".join(rows))
        assert {
            p.kind for p in diagnose(load_images(root / "birds.csv", forgiving=True)).problems
        } == problems


def test_labels_in_two_unicode_forms_are_one_class(tmp_path: Path, scene: Scene) -> None:
    for seed, name in enumerate(("Käuzchen", "Ka\u0308uzchen", "käuz chen")):
        (tmp_path / name).mkdir()
        for number in range(6):
            scene(10 * seed + number).save(tmp_path / name / f"{number}.png")
    images = load_images(tmp_path, forgiving=True)
    assert images.classes == ("Käuzchen", "käuz chen")
    (problem,) = diagnose(images).problems
    assert problem.kind == "similar_labels"
