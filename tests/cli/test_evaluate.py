"""`scs evaluate`."""

import json
import shutil

import pytest

from scs_supcon.evaluation.format import describe


@pytest.fixture(scope="module")
def run(finished, tmp_path_factory):
    copy = tmp_path_factory.mktemp("evaluate") / "run"
    shutil.copytree(finished, copy)
    return copy


def test_the_runs_own_test_part_in_words_and_for_programs(scs, run):
    record = json.loads((run / "evaluation.json").read_text())
    said = scs("evaluate", run)
    assert (said.code, said.err) == (0, "")
    assert said.out == describe(record) + "\n"
    said = scs("evaluate", run, "--json")
    assert json.loads(said.out) == record


def test_other_data_is_judged_kept_and_shown(scs, run, shapes):
    said = scs("evaluate", run, shapes, "--workers", "0", "--device", "cpu")
    assert said.code == 0
    assert f"{shapes}: 24 images of 4 classes" in said.out
    assert "16 of them were trained on" in said.out
    assert f"kept in   {run / 'evaluations' / 'shapes.json'}" in said.out
    assert "features: 24 of 24" in said.err
    quiet = scs("evaluate", run, shapes, "--workers", "0", "--quiet", "--json")
    assert quiet.err == ""
    assert json.loads(quiet.out)["images"] == 24


def test_unreadable_images_are_listed_and_the_rest_is_done(scs, run, shapes, tmp_path):
    data = tmp_path / "data"
    shutil.copytree(shapes, data)
    (data / "bar" / "broken.png").write_bytes(b"")
    said = scs("evaluate", run, data, "--workers", "0", "--quiet")
    assert said.code == 1
    assert "24 images of 4 classes" in said.out
    assert said.err.count("not read: ") == 1
    assert "broken.png is empty (0 bytes)" in said.err


def test_bad_asks_are_one_sentence(scs, run, shapes, tmp_path):
    (tmp_path / "empty").mkdir()
    cases = {
        ("evaluate", tmp_path / "empty"): "holds no evaluation.json",
        ("evaluate", run, tmp_path / "gone"): "there is no",
        ("evaluate", tmp_path / "empty", shapes): "empty",
        ("evaluate", run, "digits"): "the model knows none of the classes of digits",
    }
    for line, message in cases.items():
        said = scs(*line)
        assert said.code == 2, line
        assert message in said.err
        assert "Traceback" not in said.err
        assert said.out == ""
