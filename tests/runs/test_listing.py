"""List and clean a finished and an unfinished run on disk."""

import json
import shutil
from pathlib import Path

import pytest

from scs_supcon.inference import load
from scs_supcon.io.lock import Lock
from scs_supcon.runs.listing import find_runs, remove_spare_files
from scs_supcon.runs.run_dir import RunDir


def size(folder):
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


@pytest.fixture
def folder(tmp_path, finished, shapes):
    """A finished run in birds/a, and one in b that has only been started."""
    shutil.copytree(finished, tmp_path / "birds" / "a")
    recipe = (finished / "recipe.toml").read_text()
    recipe = recipe.replace('"scs_supcon"', '"supcon"', 1).replace('preset = "solved"\n', "")
    RunDir.open(tmp_path / "b", recipe).close()
    (tmp_path / "b" / "checkpoints").mkdir()
    (tmp_path / "b" / "checkpoints" / "pretrain-000001.json").write_text("{}")
    return tmp_path


def test_runs_are_listed_with_data_method_and_accuracy(folder, shapes, finished):
    unfinished, done = find_runs(folder)
    assert [unfinished.path, done.path] == [folder / "b", folder / "birds" / "a"]
    assert (done.source, done.method) == (str(shapes), "scs_supcon@solved")
    assert done.accuracy == json.loads((finished / "finished.json").read_text())["accuracy"]
    assert (unfinished.finished, unfinished.accuracy, unfinished.method) == (
        False,
        None,
        "supcon",
    )


def test_sizes_match_the_files_on_disk(folder):
    unfinished, done = find_runs(folder)
    assert done.bytes == size(done.path)
    assert done.spare == size(done.path / "checkpoints") > 0
    assert unfinished.spare == 0, "an unfinished run needs its checkpoints"


def test_the_listed_method_includes_its_preset(tmp_path):
    RunDir.open(tmp_path, '[method]\nname = "scs_supcon"\npreset = "paper"\n').close()
    (run,) = find_runs(tmp_path)
    assert (run.method, run.source) == ("scs_supcon@paper", "?")


def test_cleaning_frees_the_reported_size_and_keeps_the_model(folder, shapes):
    _, done = find_runs(folder)
    before = size(done.path)
    freed = remove_spare_files(done)
    assert freed == before - size(done.path) == done.spare
    assert not (done.path / "checkpoints").exists()
    assert load(done.path).predict([next(shapes.rglob("*.png"))]).records
    assert remove_spare_files(find_runs(folder)[1]) == 0, "everything has been freed"


def test_an_unfinished_run_is_not_cleaned(folder):
    unfinished, _ = find_runs(folder)
    assert remove_spare_files(unfinished) == 0
    assert (unfinished.path / "checkpoints" / "pretrain-000001.json").exists()


def test_cleaning_keeps_files_that_the_run_did_not_write(folder):
    _, done = find_runs(folder)
    foreign = done.path / "checkpoints" / "my-best.safetensors"
    shard = done.path / "features" / ("a" * 64) / f"{'b' * 64}.safetensors"
    other = done.path / "features" / "mine.npy"
    shard.parent.mkdir(parents=True)
    for file in (foreign, shard, other):
        file.write_text("12345")
    _, done = find_runs(folder)
    checkpoints = size(done.path / "checkpoints") - 5
    assert remove_spare_files(done) == done.spare == checkpoints + 5
    assert not shard.parent.exists()
    assert [*foreign.parent.iterdir()] == [foreign]
    assert [*other.parent.iterdir()] == [other]


def test_a_run_that_is_in_use_or_was_restarted_is_not_cleaned(folder):
    _, done = find_runs(folder)
    lock = Lock(done.path / ".lock")
    assert remove_spare_files(done) == 0
    lock.release()
    (done.path / "finished.json").unlink()
    assert remove_spare_files(done) == 0
    assert [*done.path.glob("checkpoints/*.sha256")]


def test_a_damaged_summary_does_not_hide_other_runs(folder):
    for text in ("{", "[]", "\xff"):
        (folder / "birds" / "a" / "finished.json").write_text(text, encoding="latin-1")
        _, damaged = find_runs(folder)
        assert (damaged.finished, damaged.accuracy, damaged.spare) == (False, None, 0)
        assert remove_spare_files(damaged) == 0


def test_files_that_disappear_while_sizes_are_computed_are_ignored(folder, monkeypatch):
    stat, calls = Path.stat, []

    def missing_the_second_time(path, **options):
        if path.name == "metrics.csv":
            calls.append(path)
            if len(calls) > 1:
                raise FileNotFoundError
        return stat(path, **options)

    remaining = size(folder / "birds" / "a") - (folder / "birds/a/metrics.csv").stat().st_size
    monkeypatch.setattr(Path, "stat", missing_the_second_time)
    find_runs(folder)
    assert find_runs(folder)[1].bytes == remaining


def test_a_recipe_without_an_environment_is_not_a_run(folder, finished):
    (folder / "mine").mkdir()
    shutil.copy(finished / "recipe.toml", folder / "mine")
    assert len(find_runs(folder)) == 2


def test_a_damaged_recipe_does_not_hide_other_runs(folder):
    (folder / "b" / "recipe.toml").write_text("flour = 500 g")
    damaged, done = find_runs(folder)
    assert (damaged.source, damaged.method) == ("?", "?")
    assert done.finished
