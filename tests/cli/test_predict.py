"""`scs predict` and `scs embed` with files, folders and patterns."""

import csv
import io
import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from scs_supcon.inference import load


@pytest.fixture
def folder(tmp_path, shapes):
    """A folder with two images, a truncated image and a text file named .jpg."""
    folder = tmp_path / "photos"
    folder.mkdir()
    first, second, third = sorted((shapes / "bar").iterdir())[:3]
    shutil.copy(first, folder / "a.png")
    shutil.copy(second, folder / "b.png")
    (folder / "cut.png").write_bytes(third.read_bytes()[:60])
    (folder / "text.jpg").write_text("hello")
    return folder


def test_predict_accepts_files_folders_and_patterns(scs, runs, shapes):
    result = scs(
        "predict", runs / "x", shapes / "bar", shapes / "circle" / "06.png", f"{shapes}/cross/*"
    )
    assert result.code == 0
    lines = result.out.splitlines()
    assert len(lines) == 6 + 1 + 6
    assert str(shapes / "circle" / "06.png") in lines[6]
    assert lines[0].count("%") == 3, "three classes by default"
    assert "predict: 13 of 13" in result.err


def test_csv_and_json_lines_agree_with_the_model(scs, runs, shapes, tmp_path):
    model = load(runs / "x")
    files = sorted((shapes / "square").iterdir())
    expected = model.predict(files, topk=4).records
    json_lines = scs("predict", runs / "x", *files, "--format", "jsonl", "--topk", "4", "--quiet")
    assert json_lines.err == ""
    rows = [json.loads(line) for line in json_lines.out.splitlines()]
    assert [tuple(row["top"].items()) for row in rows] == [record.top for record in expected]
    file = tmp_path / "names.csv"
    csv_file = scs(
        "predict", runs / "x" / "model", *files, "--format", "csv", "-o", file, "--quiet"
    )
    assert (csv_file.code, csv_file.out) == (0, "")
    with file.open(newline="") as text:
        table = list(csv.DictReader(text))
    assert [row["label"] for row in table] == [record.label for record in expected]


def test_unreadable_files_are_listed_and_skipped(scs, runs, folder):
    result = scs("predict", runs / "x", folder, folder / "gone.png", "--format", "csv")
    assert result.code == 1
    classified = [row["image"] for row in csv.DictReader(io.StringIO(result.out))]
    assert classified == [str(folder / "a.png"), str(folder / "b.png")]
    failures = [line for line in result.err.splitlines() if line.startswith("not read: ")]
    assert len(failures) == 3
    for name, reason in (("cut.png", "truncated"), ("text.jpg", "not a"), ("gone.png", "exist")):
        assert sum(name in line and reason in line for line in failures) == 1


def test_the_threshold_can_be_chosen(scs, runs, shapes):
    for options, expected in ((("--threshold", "1"), 6), (("--threshold", "-1"), 0)):
        result = scs("predict", runs / "x", shapes / "bar", "--quiet", *options)
        assert result.out.count("unknown;") == expected
    model = load(runs / "x")
    records = model.predict(shapes / "bar", false_rejection=0.6).records
    options = ("--false-rejection", "0.6", "--quiet", "--format", "jsonl")
    rows = scs("predict", runs / "x", shapes / "bar", *options).out.splitlines()
    assert [json.loads(row)["unknown"] for row in rows] == [r.unknown for r in records]
    assert [json.loads(row)["threshold"] for row in rows] == [r.threshold for r in records]


def test_many_images_are_summarised(scs, runs, shapes):
    result = scs("predict", runs / "x", shapes, "--quiet", "--threshold", "-1")
    assert result.out.startswith("24 images: 24 classified, 0 unknown\n\n")
    labels = [record.label for record in load(runs / "x").predict(shapes).records]
    rows = {tuple(line.split()[:2]) for line in result.out.splitlines() if line}
    assert {(name, str(labels.count(name))) for name in labels} <= rows
    assert "all images: --format table" in result.out
    table = scs("predict", runs / "x", shapes, "--quiet", "--format", "table")
    assert len(table.out.splitlines()) == 24


def test_a_page_shows_thumbnails_by_class(scs, runs, folder, tmp_path):
    page = tmp_path / "page.html"
    result = scs("predict", runs / "x", folder, "--format", "html", "-o", page, "--quiet")
    assert result.code == 1, "two files cannot be read"
    text = page.read_text()
    assert text.count("data:image/jpeg;base64,") == 2
    assert "Content-Security-Policy" in text
    assert "cut.png is truncated" in text
    missing = scs("predict", runs / "x", folder, "--format", "html")
    assert "add -o FILE.html" in missing.err


def test_images_are_copied_into_class_folders(scs, runs, folder, tmp_path):
    target = tmp_path / "sorted"
    before = {path: path.read_bytes() for path in folder.iterdir()}
    for _ in range(2):  # a second time, nothing is copied twice
        result = scs("predict", runs / "x", folder, "--sort-into", target, "--threshold", "-1")
        assert f"2 images are in {target}" in result.err
        copies = sorted(path for path in target.rglob("*") if path.is_file())
        assert sorted(path.name for path in copies) == ["a.png", "b.png"]
    records = load(runs / "x").predict(folder).records
    assert {p.name: p.parent.name for p in copies} == {
        r.name.rpartition("/")[2]: r.label for r in records
    }
    assert {path: path.read_bytes() for path in folder.iterdir()} == before
    scs("predict", runs / "x", folder, "--sort-into", target, "--threshold", "1")
    assert sorted(path.name for path in (target / "unknown").iterdir()) == ["a.png", "b.png"]


def test_similar_images_are_listed(scs, runs, shapes, folder):
    first = shapes / "bar" / "00.png"
    result = scs("search", runs / "x", first, shapes, "-k", "3", "--json", "--quiet")
    rows = json.loads(result.out)
    assert (len(rows), rows[0]["image"]) == (3, str(first))
    assert rows[0]["similarity"] == max(row["similarity"] for row in rows)
    stored = scs("search", runs / "x", first, "--quiet")
    names = [line.split()[-1] for line in stored.out.splitlines()[:-1]]
    neighbours = load(runs / "x").neighbours(first)
    assert [Path(name).resolve() for name in names] == [shapes / n.name for n in neighbours]
    assert "decision boundary: " in stored.out
    style = scs("search", runs / "x", first, "--field", "style", "--quiet")
    assert len(style.out.splitlines()) == 10
    assert scs("search", runs / "x", first, folder, "--quiet").code == 1
    assert "must be common or style" in scs("search", runs / "x", first, "--field", "x").err


def test_embed_writes_the_embeddings(scs, runs, folder, tmp_path):
    expected = load(runs / "x").embed([folder / "a.png", folder / "b.png"])
    result = scs("embed", runs / "x", folder, "-o", tmp_path / "v.parquet")
    assert result.code == 1, "two images cannot be read"
    assert result.err.count("not read: ") == 2
    assert result.out == f"2 images: {tmp_path / 'v.parquet'}\n"
    table = pq.read_table(tmp_path / "v.parquet").to_pydict()
    assert table["image"] == list(expected.names)
    assert np.array_equal(np.array(table["common"], dtype=np.float32), expected.common)
    assert scs("embed", runs / "x", folder / "a.png", "-o", tmp_path / "v.npz").code == 0
    with np.load(tmp_path / "v.npz") as arrays:
        assert np.array_equal(arrays["style"], expected.style[:1])


def test_embed_in_parts_writes_the_same_file(scs, runs, folder, tmp_path):
    line = ("embed", runs / "x", folder)
    assert scs(*line, "-o", tmp_path / "whole.parquet").code == 1, "two images cannot be read"
    in_parts = (*line, "--parts", tmp_path / "parts", "-o")
    for name in ("first.parquet", "again.parquet"):
        result = scs(*in_parts, tmp_path / name)
        assert result.code == 1
        assert result.err.count("not read: ") == 2
        assert (tmp_path / name).read_bytes() == (tmp_path / "whole.parquet").read_bytes()
    assert len(list((tmp_path / "parts").glob("*.parquet"))) == 1


def test_stored_vectors_are_searched(scs, runs, folder, tmp_path):
    file = tmp_path / "v.parquet"
    images = sorted(folder.glob("[ab].png"))
    assert scs("embed", runs / "x", *images, "-o", file, "--half").code == 0
    line = ("search", runs / "x", folder / "a.png", "--vectors", file)
    exact = scs(*line, "--json")
    assert exact.code == 0, exact.err
    nearest = json.loads(exact.out)
    assert nearest[0]["image"] == str(folder / "a.png")
    assert nearest[0]["similarity"] == pytest.approx(1, abs=0.01)
    pytest.importorskip("usearch")
    indexed = scs(*line, "--index")
    assert indexed.code == 0, indexed.err
    assert str(folder / "a.png") in indexed.out.splitlines()[0]
    assert "it finds 100.0% of the 10 nearest" in indexed.err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--exact",), "--index and --exact are for --vectors FILE"),
        (("--vectors", "none.parquet"), "none.parquet does not exist: write it with scs embed"),
    ],
)
def test_a_search_that_cannot_work_is_rejected(scs, runs, folder, options, message):
    result = scs("search", runs / "x", folder / "a.png", *options)
    assert result.code == 2
    assert message in result.err
