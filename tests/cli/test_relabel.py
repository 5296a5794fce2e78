"""`scs relabel`: suspected labels out, corrected table in."""

import csv
import shutil

import pytest

from scs_supcon.data.load import load_images
from scs_supcon.runs.corrections import Corrections


@pytest.fixture(scope="module")
def trained(tmp_path_factory, shapes, train_small):
    """A finished run and its images."""
    root = tmp_path_factory.mktemp("relabel")
    shutil.copytree(shapes, root / "data")
    train_small(root / "data", root / "run")
    return root


def rows_of(file):
    with file.open(newline="") as text:
        return list(csv.DictReader(text))


def test_labels_are_listed_corrected_and_applied(scs, trained, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = trained / "run"
    result = scs("relabel", run)
    assert result.code == 0
    assert "suspected labels: run-labels.csv" in result.out
    listed = rows_of(tmp_path / "run-labels.csv")
    assert {"image", "split", "label", "suggested", "suspicion", "new_label"} == set(
        next(csv.reader((tmp_path / "run-labels.csv").open()))
    )
    assert [float(r["suspicion"]) for r in listed] == sorted(
        (float(r["suspicion"]) for r in listed), reverse=True
    )
    before = {row["name"]: row for row in rows_of(run / "splits.csv")}
    of_bars = [name for name in before if before[name]["label"] == "bar"]
    tested = next(name for name in of_bars if before[name]["split"] == "test")
    first, second, third, *_ = [name for name in of_bars if before[name]["split"] != "test"]
    rows = [(first, "circle"), (second, "-"), (tested, "cross"), (third, "")]
    with (tmp_path / "mine.csv").open("w") as file:
        csv.writer(file).writerows([("image", "new_label"), *rows])
    result = scs("relabel", run, "mine.csv", "-o", tmp_path / "out" / "new.csv")
    assert "2 labels corrected, 1 images left out" in result.out
    assert "1 of them are test images" in result.out
    images = load_images(tmp_path / "out" / "new.csv")
    assert len(images) == len(before) - 1
    labels = {
        path.relative_to(trained.resolve() / "data").as_posix(): images.classes[label]
        for path, label in zip((p.resolve() for p in images.paths), images.labels, strict=True)
    }
    assert labels[first] == "circle"
    assert second not in labels
    assert labels[tested] == "cross"
    unchanged = [name for name in labels if name not in (first, tested)]
    assert all(labels[name] == before[name]["label"] for name in unchanged)
    moved = shutil.copytree(trained / "data", tmp_path / "moved")
    assert scs("relabel", run, "mine.csv", "-o", "moved.csv", "--data", moved).code == 0
    assert all(moved in path.resolve().parents for path in load_images("moved.csv").paths)


def test_corrections_of_the_server_are_accepted(scs, trained, tmp_path):
    names = [row["name"] for row in rows_of(trained / "run" / "splits.csv")]
    text = f"time,image,old_label,new_label,action\n1,{names[0]},bar,cross,label\n"
    text += f"2,{names[0]},cross,bar,undo\n3,{names[1]},bar,,label\n"
    (tmp_path / "corrections.csv").write_text(text)
    file = tmp_path / "new.csv"
    result = scs("relabel", trained / "run", tmp_path / "corrections.csv", "-o", file)
    assert "0 labels corrected, 1 images left out" in result.out
    assert len(rows_of(file)) == len(names) - 1
    Corrections(tmp_path / "corrections.jsonl", {})  # converts the table
    result = scs("relabel", trained / "run", tmp_path / "corrections.jsonl", "-o", file)
    assert "0 labels corrected, 1 images left out" in result.out


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("image,new_label\ngone.png,bar\n", "which is not an image of"),
        ("image,new_label\n{name},barr\n", "did you mean 'bar'?"),
        ("image,label\n{name},bar\n", "has no column 'new_label'"),
    ],
)
def test_wrong_tables_are_explained(scs, trained, tmp_path, text, message):
    name = rows_of(trained / "run" / "splits.csv")[0]["name"]
    (tmp_path / "mine.csv").write_text(text.format(name=name))
    result = scs("relabel", trained / "run", tmp_path / "mine.csv", "-o", tmp_path / "x.csv")
    assert result.code == 2
    assert message in result.err
    assert not (tmp_path / "x.csv").exists()
