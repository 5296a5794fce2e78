"""Records of a run: complete, missing, damaged, or of another version."""

import json

import pytest

from scs_supcon.errors import UserError
from scs_supcon.report.inputs import read_records


def test_all_records_are_read(written):
    records = read_records(written())
    assert records.settings["encoder"]["name"] == "tiny"
    assert records.curves["pretrain", "contrast"] == (
        list(range(1, 21)),
        [3 / epoch for epoch in range(1, 21)],
    )
    assert len(records.embeddings["name"]) == 48
    assert records.embeddings["common"][0].shape == (16,)
    assert records.thumbnails["jpeg"][0][:2] == b"\xff\xd8"


def test_a_folder_that_is_not_a_run_is_an_error(tmp_path):
    with pytest.raises(UserError, match=r"has no recipe\.toml"):
        read_records(tmp_path)


def test_an_unfinished_run_is_an_error(written):
    run = written()
    (run / "finished.json").unlink()
    with pytest.raises(UserError, match="is not finished: run the command that started it again"):
        read_records(run)


@pytest.mark.parametrize("name", ["evaluation.json", "embeddings.parquet", "problems.json"])
def test_a_missing_record_is_named(written, name):
    run = written()
    (run / name).unlink()
    with pytest.raises(UserError, match=f"has no {name}: it was removed, or an older version"):
        read_records(run)


@pytest.mark.parametrize(
    "name", ["evaluation.json", "thumbnails.parquet", "metrics.csv", "recipe.toml"]
)
def test_a_damaged_record_is_named(written, name):
    run = written()
    (run / name).write_text("stage,epoch\n{x")
    with pytest.raises(UserError, match=f"{name} is damaged"):
        read_records(run)


def test_a_recipe_without_what_the_report_shows_is_named(written):
    run = written()
    (run / "recipe.toml").write_text("[pretrain]\nlr = nan\n")
    with pytest.raises(UserError, match=r"recipe\.toml is damaged: data: "):
        read_records(run)


def test_a_newer_format_is_an_error(written):
    run = written()
    content = json.loads((run / "evaluation.json").read_text())
    (run / "evaluation.json").write_text(json.dumps(content | {"format_version": 9}))
    with pytest.raises(UserError, match="has format 9, this version reads format 3"):
        read_records(run)
