"""Names of files and classes cannot control the terminal, figures, cards or spreadsheets."""

import csv
import re
import shutil
from pathlib import Path
from xml.etree import ElementTree

import pytest

EVIL = "\x1b[31m\x07\x9b2J\u202e<img src=x>&\"'"
FORMULA = "=HYPERLINK(1)"
UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


@pytest.fixture(scope="module")
def folder(shapes, tmp_path_factory) -> Path:
    """Two classes whose names, and those of their files, contain control characters."""
    root = tmp_path_factory.mktemp("names") / f"data {EVIL.replace('/', '')}"
    for label, source in ((EVIL.replace("/", ""), "bar"), (FORMULA, "disc")):
        names = sorted(path for path in shapes.iterdir() if path.is_dir())
        chosen = next((path for path in names if path.name == source), names[-1])
        for number, file in enumerate(sorted(chosen.iterdir())):
            target = root / label / f"{EVIL}{number}.png"
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file, target)
    (root / FORMULA / "damaged\x1b.png").write_bytes(b"no image")
    return root


@pytest.fixture(scope="module")
def run(folder, train_small, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("run") / "r\x1bun"
    train_small(folder, out, method="supcon", report=True)
    return out


def is_plain(text: str) -> bool:
    return not UNSAFE.search(text)


def test_no_command_prints_control_characters(scs, folder, run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    commands = (
        ("doctor", folder, "--fix", "--out", tmp_path / "problems.csv"),
        ("predict", run, folder),
        ("predict", run, folder, "--format", "csv"),
        ("predict", run, folder, "--format", "jsonl"),
        ("embed", run, folder, "-o", tmp_path / "v.parquet"),
        ("evaluate", run),
        ("evaluate", run, folder, "--device", "cpu", "--workers", "0"),
        ("runs", run.parent),
        ("replay", run),
        ("report", run),
        ("train", folder, "--out", run, "--device", "cpu"),
        ("train", folder, "--print-recipe", "--device", "cpu"),
        ("train", folder / "none\x1b", "--out", tmp_path / "x"),
        ("evaluate", folder),
        ("search", run, next(folder.rglob("*0.png"))),
        ("relabel", run, "--out", tmp_path / "labels.csv"),
        ("diff", run, run),
        ("diff", run, folder / "none\x1b"),
        ("pack", folder, tmp_path / "packed\x1b"),
        ("compare", folder, "--methods", "supcon", "--dry-run", "--device", "cpu"),
        ("tune", folder, "--out", folder, "--device", "cpu"),
        ("export", run, "-o", tmp_path / "none\x1b" / "model.onnx"),
        ("add-class", run, "new\x1b[2J", folder / FORMULA, "--out", tmp_path / "added"),
        ("slurm", "train", folder),
        ("serve", folder),
        ("show", "\x1b[2J"),
    )
    for command in commands:
        result = scs(*command)
        assert is_plain(result.out + result.err), (command[0], result.out, result.err)
        assert "Traceback" not in result.err


def test_the_model_card_has_no_markup_from_names(run):
    card = (run / "model" / "README.md").read_text(encoding="utf-8")
    assert is_plain(card)
    text = card.partition("```toml")[0]  # in a block of code, markup is only text
    assert "<img" not in text.replace("\\<", "")


def test_figures_are_well_formed_and_pages_plain(run):
    figures = sorted((run / "figures").glob("*.svg"))
    assert figures
    for figure in figures:
        ElementTree.fromstring(figure.read_text(encoding="utf-8"))
        assert is_plain(figure.read_text(encoding="utf-8"))
    assert is_plain((run / "report.html").read_text(encoding="utf-8"))


def test_the_corrected_table_runs_no_formula_and_is_read_back(scs, folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    scs("doctor", folder, "--fix", "--out", tmp_path / "problems.csv")
    table = next(tmp_path.glob("*-fixed.csv"))
    with table.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert {row["label"] for row in rows} >= {f"'{FORMULA}"}
    assert not [cell for row in rows for cell in row.values() if cell[:1] in ("=", "@")]
    from scs_supcon.data.table import read_image_table

    assert FORMULA in read_image_table(table).classes
