"""A model on shifted copies of its test images."""

import json
import shutil
from pathlib import Path

import pytest

from scs_supcon.data.shift import LEVELS, SHIFTS
from scs_supcon.errors import UserError
from scs_supcon.evaluation.domain_shift import describe_shifts, evaluate_shifts
from scs_supcon.evaluation.evaluate import evaluate


@pytest.fixture(scope="module")
def run(finished, tmp_path_factory):
    copy = tmp_path_factory.mktemp("shift") / "run"
    shutil.copytree(finished, copy)
    return copy


@pytest.fixture(scope="module")
def table(run):
    return evaluate_shifts(run, device="cpu", workers=0, quiet=True)


def test_every_shift_in_every_strength(table, run):
    expected = [("none", ""), *((name, level) for name in SHIFTS for level in LEVELS)]
    assert [(row.shift, row.level) for row in table.rows] == expected
    stored = evaluate(run)
    assert table.images == stored.images
    assert table.rows[0].accuracy == stored.scores.accuracy
    assert table.rows[0].rejected == stored.rejection.known_rejected
    assert table.rows[0].calibration_error == pytest.approx(stored.calibration.after.ece, abs=1e-6)


def test_the_table_is_saved_and_described(table):
    content = json.loads(Path(table.saved_to).read_text())
    assert len(content["rows"]) == 16
    text = describe_shifts(table)
    assert "rotated, strong" in text and "as they are" in text and table.saved_to in text


def test_other_data_and_fewer_images(run, shapes):
    table = evaluate_shifts(run, str(shapes), device="cpu", workers=0, max_images=3, quiet=True)
    assert table.images == 3


def test_the_command(run, scs):
    result = scs("evaluate", run, "--shift", "--device", "cpu", "--workers", "0", "--quiet")
    assert result.code == 0, result.err
    assert "blur, mild" in result.out


def test_missing_images_are_an_error(run, tmp_path):
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    file = copy / "splits.csv"
    file.write_text(file.read_text() + "gone.png,bar,test,00\n")
    with pytest.raises(UserError, match="restore the data"):
        evaluate_shifts(copy, device="cpu", workers=0, quiet=True)
    file.unlink()
    with pytest.raises(UserError, match="give the images as DATA"):
        evaluate_shifts(copy, device="cpu", workers=0, quiet=True)
