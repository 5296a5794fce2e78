"""Output, files and exit code of `scs doctor`."""

import csv
import json
import shutil

import numpy as np
import pytest
from PIL import Image

from scs_supcon.data.table import read_image_table


@pytest.fixture
def birds(tmp_path, monkeypatch):
    """Three classes of nine images, a damaged and a copied one and a text file, in this folder."""
    root = tmp_path / "birds"
    noise = np.random.default_rng(0).integers(0, 256, (27, 24, 24, 3), dtype=np.uint8)
    for index, pixels in enumerate(noise):
        folder = root / ("auk", "jay", "owl")[index % 3]
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(folder / f"{index:02d}.png")
    (root / "auk" / "bad.png").write_text("not an image")
    shutil.copy(root / "jay" / "01.png", root / "jay" / "zz.png")
    (root / "owl" / "notes.txt").write_text("")
    monkeypatch.chdir(tmp_path)
    return root


def test_problems_are_printed_and_written(birds, scs):
    result = scs("doctor", "birds")
    assert result.code == 1
    assert "29 images in 3 classes" in result.out
    assert "unreadable: 1 · not used in training" in result.out
    assert "duplicate: 1" in result.out
    assert (
        result.out.index("problems")
        < result.out.index("notes")
        < result.out.index("skipped file: 1")
    )
    assert "scs doctor birds --fix" in result.out
    rows = list(csv.DictReader((birds.parent / "birds-problems.csv").open()))
    assert [row["kind"] for row in rows] == ["unreadable", "duplicate", "skipped_file"]
    assert rows[1]["name"] == "jay/zz.png"
    assert rows[1]["other"] == "jay/01.png"
    assert {path.name for path in birds.parent.iterdir()} == {"birds", "birds-problems.csv"}


def test_formulas_are_quoted_in_both_tables(birds, scs):
    (birds / "owl").rename(birds / "=1+1")
    assert scs("doctor", "birds", "--fix").code == 1
    rows = list(csv.DictReader((birds.parent / "birds-problems.csv").open()))
    assert rows[2]["name"] == "'=1+1/notes.txt"
    fixed = list(csv.DictReader((birds.parent / "birds-fixed.csv").open()))
    assert {row["label"] for row in fixed} == {"auk", "jay", "'=1+1"}
    assert read_image_table(birds.parent / "birds-fixed.csv").classes == ("=1+1", "auk", "jay")


def test_a_healthy_dataset_writes_no_files(scs, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = scs("doctor", "shapes", "--quiet")
    assert result.code == 0
    assert result.err == ""
    assert result.out.endswith("no problems that would harm training\n")
    assert list(tmp_path.iterdir()) == []


def test_doctor_prints_json(birds, scs):
    result = scs("doctor", birds, "--json", "--out", birds.parent / "lists" / "problems.csv")
    assert result.code == 1
    summary = json.loads(result.out)
    assert summary["counts"] == {"unreadable": 1, "duplicate": 1, "skipped_file": 1}
    assert summary["images"] == 29
    assert not summary["healthy"]
    assert [problem["kind"] for problem in summary["problems"]] == list(summary["counts"])
    assert summary["table"] == str(birds.parent / "lists" / "problems.csv")
    assert (birds.parent / "lists" / "problems.csv").exists()


def test_the_fixed_table_can_be_read_and_no_image_is_changed(birds, scs):
    before = {path: path.read_bytes() for path in birds.rglob("*.*")}
    result = scs("doctor", "birds/", "--fix")
    assert result.code == 1
    assert "left out: unusable (1), copies (1); moved to another split: 0" in result.out
    assert "scs train birds-fixed.csv" in result.out
    assert {path: path.read_bytes() for path in birds.rglob("*.*")} == before
    again = scs("doctor", "birds-fixed.csv", "--json")
    assert again.code == 0
    assert json.loads(again.out)["images"] == 27
    fixed = json.loads(scs("doctor", "birds", "--fix", "--json").out)["fixed"]
    assert fixed["left_out"] == {"unusable": 1, "copy": 1}
    (birds.parent / "birds-fixed.csv").write_text("image_path,label\n")
    result = scs("doctor", "birds", "--fix")
    assert result.code == 2
    assert "birds-fixed.csv already exists with different content" in result.err


def test_commands_in_the_output_quote_names_with_spaces(birds, scs):
    birds.rename(birds.with_name("my birds"))
    assert "scs doctor 'my birds' --fix" in scs("doctor", "my birds").out
    assert "scs train 'my birds-fixed.csv' --out" in scs("doctor", "my birds", "--fix").out


def test_files_are_named_after_the_folder(birds, scs, monkeypatch):
    dotted = birds.rename(birds.with_name("birds.v2"))
    scs("doctor", "birds.v2")
    assert (birds.parent / "birds.v2-problems.csv").exists()
    monkeypatch.chdir(dotted)
    scs("doctor", ".", "--out", birds.parent / "again" / "problems.csv", "--fix")
    assert (birds.parent / "again" / "birds.v2-fixed.csv").exists()


def test_a_missing_folder_is_an_error(scs, tmp_path):
    result = scs("doctor", tmp_path / "nothing")
    assert result.code == 2
    assert "does not exist" in result.err
