"""A folder with every problem: each is found, and nothing else."""

import os
import shutil
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from scs_supcon.data.dataset import Problem
from scs_supcon.data.doctor import HARMFUL, HARMLESS, diagnose

Scene = Callable[..., Image.Image]


def found(problems: tuple[Problem, ...]) -> set[tuple[str, str, str]]:
    return {(problem.kind, problem.name, problem.same_as) for problem in problems}


@pytest.fixture
def root(tmp_path: Path, scene: Scene) -> Path:
    """Healthy: three classes, split, different images of several sizes."""
    seed = 0
    for split, count in (("train", 6), ("test", 2)):
        for name in ("finch", "owl", "wren"):
            folder = tmp_path / "birds" / split / name
            folder.mkdir(parents=True)
            for number in range(count):
                scene(seed, (90 + 10 * number, 80)).save(folder / f"{number}.jpg")
                seed += 1
    return tmp_path / "birds"


def test_a_healthy_folder_has_nothing(root: Path) -> None:
    told: list[tuple[int, int]] = []
    diagnosis = diagnose(root, 2, lambda done, total: told.append((done, total)))
    assert diagnosis.problems == ()
    assert diagnosis.handled == {}
    assert diagnosis.healthy
    assert told[0] == (1, 48)
    assert told[-1] == (48, 48)


@pytest.mark.parametrize("name", ["digits", "drawn"])
def test_the_built_in_sets_are_healthy(name: str) -> None:
    assert diagnose(name).problems == ()


def test_every_problem_and_nothing_else(root: Path, scene: Scene) -> None:
    train, test = root / "train", root / "test"
    (train / "finch/page.jpg").write_text("<html>404</html>")
    cut = scene(100).resize((400, 300))
    cut.save(train / "finch/cut.jpg")
    (train / "finch/cut.jpg").write_bytes((train / "finch/cut.jpg").read_bytes()[:-3000])
    scene(101).save(train / "finch/bomb.bmp")
    header = bytearray((train / "finch/bomb.bmp").read_bytes())
    header[18:22] = header[22:26] = (10_000).to_bytes(4, "little")
    (train / "finch/bomb.bmp").write_bytes(header)
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

    diagnosis = diagnose(root, 2)
    assert found(diagnosis.problems) == {
        ("unreadable", "train/finch/page.jpg", ""),
        ("truncated", "train/finch/cut.jpg", ""),
        ("too large", "train/finch/bomb.bmp", ""),
        ("too large", "train/finch/thin.png", ""),
        ("duplicate", "train/owl/again.jpg", "train/owl/0.jpg"),
        ("duplicate across splits", "train/owl/1.jpg", "test/owl/leak.jpg"),
        ("duplicate with another label", "train/wren/owl.jpg", "train/owl/2.jpg"),
        ("near duplicate", "train/owl/small.jpg", "train/owl/3.jpg"),
        ("near duplicate across splits", "train/owl/4.jpg", "test/owl/small.png"),
        ("near duplicate with another label", "train/wren/owlet.jpg", "train/owl/5.jpg"),
        ("wrong extension", "train/wren/really.jpg", ""),
        ("empty folder", "train/empty", ""),
        ("skipped file", "train/wren/list.txt", ""),
        ("hidden", "train/.ipynb_checkpoints", ""),
        ("one image", "lone", ""),
        ("tiny class", "Wren ", ""),
        ("alike labels", "wren", "Wren "),
        ("untrained class", "robin", ""),
    }
    assert not diagnosis.healthy
    order = [*HARMFUL, *HARMLESS]
    ranks = [order.index(problem.kind) for problem in diagnosis.problems]
    assert ranks == sorted(ranks)
    for problem in diagnosis.problems:
        assert problem.name in problem.detail


@pytest.mark.skipif(sys.platform != "linux", reason="other systems refuse such names")
def test_names_that_are_no_utf_8_can_be_printed(root: Path) -> None:
    for name in (b"wren/\xff.txt", b"wren/.\xfe", b"\xfd/"):
        path = root / "train" / os.fsdecode(name)
        if name.endswith(b"/"):
            path.mkdir()
        else:
            path.touch()
    problems = diagnose(root).problems
    assert found(problems) == {
        ("skipped file", r"train/wren/\xff.txt", ""),
        ("hidden", r"train/wren/.\xfe", ""),
        ("empty folder", r"train/\xfd", ""),
    }
    for problem in problems:
        assert problem.name in problem.detail
        problem.detail.encode()


def test_odd_files_are_handled_and_counted_but_no_problem(root: Path, scene: Scene) -> None:
    folder = root / "train/finch"
    scene(100).convert("CMYK").save(folder / "ink.jpg")
    scene(101).convert("P").save(folder / "palette.png")
    scene(102).convert("RGBA").save(folder / "alpha.png")
    levels = np.asarray(scene(103).convert("L")).astype(np.uint16) * 257
    Image.fromarray(levels).save(folder / "deep.png")
    turned = Image.Exif()
    turned[0x0112] = 6
    scene(104).save(folder / "turned.jpg", exif=turned)
    frames = [scene(105), scene(106)]
    frames[0].save(folder / "frames.webp", save_all=True, append_images=frames[1:], lossless=True)
    diagnosis = diagnose(root)
    assert diagnosis.problems == ()
    assert diagnosis.handled == {
        "CMYK colours": ("train/finch/ink.jpg",),
        "a palette": ("train/finch/palette.png",),
        "a turn by EXIF": ("train/finch/turned.jpg",),
        "more than 8 bits": ("train/finch/deep.png",),
        "several frames": ("train/finch/frames.webp",),
        "transparency": ("train/finch/alpha.png",),
    }


def test_one_class_far_larger_than_another_is_a_note(root: Path, scene: Scene) -> None:
    for seed in range(60):
        scene(200 + seed, (40, 40)).save(root / f"train/owl/more{seed}.png")
    diagnosis = diagnose(root)
    assert found(diagnosis.problems) == {("imbalance", "finch", "owl")}
    assert diagnosis.healthy


def test_a_table_with_missing_files_groups_and_an_unknown_column(root: Path) -> None:
    rows = ["image_path,label,split,group,camera"]
    for at, path in enumerate(sorted(root.rglob("*.jpg"))):
        split, label, _ = path.relative_to(root).parts
        rows.append(f"birds/{path.relative_to(root)},{label},{split},g{at % 23},x")
    rows.append("birds/gone.jpg,owl,train,,x")
    table = root.parent / "birds.csv"
    table.write_text("\n".join(rows))
    kinds = Counter(problem.kind for problem in diagnose(table).problems)
    assert kinds == {"unreadable": 1, "group across splits": 1, "unread column": 1}


def test_copies_and_look_alikes_across_the_folds_of_a_table(root: Path) -> None:
    shutil.copy(root / "train/owl/0.jpg", root / "train/owl/again.jpg")
    Image.open(root / "train/owl/1.jpg").save(root / "train/owl/like.jpg", quality=90)
    rows = ["image_path,label,fold"]
    for path in sorted(root.rglob("*.jpg")):
        label = path.relative_to(root).parts[1]
        rows.append(f"birds/{path.relative_to(root)},{label},{int(path.stem in ('0', '1'))}")
    table = root.parent / "birds.csv"
    table.write_text("\n".join(rows))
    kinds = Counter(problem.kind for problem in diagnose(table).problems)
    assert kinds == {"duplicate across folds": 1, "near duplicate across folds": 1}


def test_of_several_look_alikes_the_worst_is_named(root: Path) -> None:
    copy = Image.open(root / "train/owl/0.jpg")
    copy.save(root / "train/owl/y.jpg", quality=90)
    copy.save(root / "train/wren/z.jpg", quality=50)
    problems = {problem.name: problem for problem in diagnose(root).problems}
    assert problems["train/owl/y.jpg"].kind == "near duplicate"
    assert problems["train/wren/z.jpg"].kind == "near duplicate with another label"


def test_look_alikes_of_one_group_are_known_about(root: Path) -> None:
    Image.open(root / "train/owl/0.jpg").save(root / "train/owl/y.jpg", quality=90)
    for group, problems in (("", {"near duplicate"}), ("owl 0", set())):
        rows = ["image_path,label,split,group"]
        for path in sorted(root.rglob("*.jpg")):
            split, label, name = path.relative_to(root).parts
            alike = (split, label) == ("train", "owl") and name in ("0.jpg", "y.jpg")
            rows.append(f"{path.relative_to(root)},{label},{split},{group if alike else ''}")
        (root / "birds.csv").write_text("\n".join(rows))
        assert {p.kind for p in diagnose(root / "birds.csv").problems} == problems


def test_accents_stored_in_two_ways_are_alike(tmp_path: Path, scene: Scene) -> None:
    for seed, name in enumerate(("Käuzchen", "Ka\u0308uzchen", "käuz chen")):
        (tmp_path / name).mkdir()
        for number in range(6):
            scene(10 * seed + number).save(tmp_path / name / f"{number}.png")
    problems = diagnose(tmp_path).problems
    assert {problem.kind for problem in problems} == {"alike labels"}
    assert len(problems) == 2
