"""Reading a run's files: whole, missing, damaged, of another version."""

import json

import pytest

from scs_supcon.errors import UserError
from scs_supcon.report.inputs import read_inputs


def test_everything_is_read(written):
    inputs = read_inputs(written())
    assert inputs.settings["encoder"]["name"] == "tiny"
    assert inputs.curves["pretrain", "contrast"] == (
        list(range(1, 21)),
        [3 / epoch for epoch in range(1, 21)],
    )
    assert len(inputs.embeddings["name"]) == 48
    assert inputs.embeddings["common"][0].shape == (16,)
    assert inputs.thumbnails["jpeg"][0][:2] == b"\xff\xd8"


def test_what_is_not_a_run_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"holds no recipe\.toml"):
        read_inputs(tmp_path)


def test_an_unfinished_run_is_to_be_finished(written):
    run = written()
    (run / "finished.json").unlink()
    with pytest.raises(UserError, match="is not finished: repeat the line"):
        read_inputs(run)


@pytest.mark.parametrize("name", ["evaluation.json", "embeddings.parquet", "problems.json"])
def test_a_run_of_an_older_version_is_named_with_what_it_lacks(written, name):
    run = written()
    (run / name).unlink()
    with pytest.raises(UserError, match=f"has no {name}: the run was finished by an older version"):
        read_inputs(run)


@pytest.mark.parametrize(
    "name", ["evaluation.json", "thumbnails.parquet", "metrics.csv", "recipe.toml"]
)
def test_a_damaged_file_is_named(written, name):
    run = written()
    (run / name).write_text("stage,epoch\n{x")
    with pytest.raises(UserError, match=f"{name} is damaged"):
        read_inputs(run)


def test_another_format_is_refused(written):
    run = written()
    found = json.loads((run / "evaluation.json").read_text())
    (run / "evaluation.json").write_text(json.dumps(found | {"format_version": 9}))
    with pytest.raises(UserError, match="has format 9, this version reads formats up to 2"):
        read_inputs(run)
