"""`scs evaluate`."""

import json
import shutil

import pytest

from scs_supcon.evaluation.format import describe
from scs_supcon.evaluation.record import Evaluation


@pytest.fixture(scope="module")
def run(finished, tmp_path_factory):
    copy = tmp_path_factory.mktemp("evaluate") / "run"
    shutil.copytree(finished, copy)
    return copy


def test_the_stored_evaluation_is_printed_as_text_and_as_json(scs, run):
    evaluation = Evaluation.read(run / "evaluation.json")
    result = scs("evaluate", run)
    assert (result.code, result.err) == (0, "")
    assert result.out == describe(evaluation) + "\n"
    result = scs("evaluate", run, "--json")
    assert json.loads(result.out) == json.loads(evaluation.to_json())


def test_other_data_is_evaluated_and_saved(scs, run, shapes):
    result = scs("evaluate", run, shapes, "--workers", "0", "--device", "cpu")
    assert result.code == 0
    assert f"{shapes}: 24 images of 4 classes" in result.out
    assert "16 of them are training images" in result.out
    assert f"saved to  {run / 'evaluations' / 'shapes.json'}" in result.out
    assert "features: 24 of 24" in result.err
    quiet = scs("evaluate", run, shapes, "--workers", "0", "--quiet", "--json")
    assert quiet.err == ""
    assert json.loads(quiet.out)["images"] == 24


def test_unreadable_images_are_listed_and_skipped(scs, run, shapes, tmp_path):
    data = tmp_path / "data"
    shutil.copytree(shapes, data)
    (data / "bar" / "broken.png").write_bytes(b"")
    result = scs("evaluate", run, data, "--workers", "0", "--quiet")
    assert result.code == 1
    assert "24 images of 4 classes" in result.out
    assert result.err.count("not read: ") == 1
    assert "broken.png is empty (0 bytes)" in result.err


def test_user_errors_are_one_sentence(scs, run, shapes, tmp_path):
    (tmp_path / "empty").mkdir()
    cases = {
        ("evaluate", tmp_path / "empty"): "has no evaluation.json",
        ("evaluate", run, tmp_path / "gone"): "does not exist",
        ("evaluate", tmp_path / "empty", shapes): "empty",
        ("evaluate", run, "--threshold", "0.5"): "give images to evaluate with another one",
        ("evaluate", run, shapes, "--false-rejection", "3"): "a share from 0 to 1",
    }
    for line, message in cases.items():
        result = scs(*line)
        assert result.code == 2, line
        assert message in result.err
        assert "Traceback" not in result.err
        assert result.out == ""


def test_images_of_unknown_classes_alone_are_evaluated(scs, run):
    options = ("--workers", "0", "--quiet", "--threshold", "1")
    result = scs("evaluate", run, "digits", *options)
    assert result.code == 0
    assert "digits: 1,797 images of unknown classes only" in result.out
    assert "rejected as unknown           100.00%" in result.out
