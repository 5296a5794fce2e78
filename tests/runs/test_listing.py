"""Runs on a real disk: one finished, one not."""

import json
import shutil
from pathlib import Path

import pytest

from scs_supcon.inference import load
from scs_supcon.io.lock import Lock
from scs_supcon.runs.listing import clean, find_runs
from scs_supcon.runs.run_dir import RunDir


def size(folder):
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


@pytest.fixture
def folder(tmp_path, finished, shapes):
    """A finished run at birds/a, and one at b that was only begun."""
    shutil.copytree(finished, tmp_path / "birds" / "a")
    begun = (finished / "recipe.toml").read_text()
    begun = begun.replace('"scs_supcon"', '"supcon"', 1).replace('preset = "solved"\n', "")
    RunDir.open(tmp_path / "b", begun).close()
    (tmp_path / "b" / "checkpoints").mkdir()
    (tmp_path / "b" / "checkpoints" / "pretrain-000001.json").write_text("{}")
    return tmp_path


def test_runs_are_found_below_a_folder_with_what_they_are(folder, shapes, finished):
    unfinished, done = find_runs(folder)
    assert [unfinished.path, done.path] == [folder / "b", folder / "birds" / "a"]
    assert (done.source, done.method) == (str(shapes), "scs_supcon@solved")
    assert done.accuracy == json.loads((finished / "finished.json").read_text())["accuracy"]
    assert (unfinished.finished, unfinished.accuracy, unfinished.method) == (False, None, "supcon")


def test_sizes_are_those_on_the_disk(folder):
    unfinished, done = find_runs(folder)
    assert done.bytes == size(done.path)
    assert done.spare == size(done.path / "checkpoints") > 0
    assert unfinished.spare == 0, "an unfinished run needs its checkpoints"


def test_a_preset_is_part_of_the_name(tmp_path):
    RunDir.open(tmp_path, '[method]\nname = "scs_supcon"\npreset = "paper"\n').close()
    (run,) = find_runs(tmp_path)
    assert (run.method, run.source) == ("scs_supcon@paper", "?")


def test_cleaning_frees_what_it_says_and_the_model_still_works(folder, shapes):
    _, done = find_runs(folder)
    before = size(done.path)
    freed = clean(done)
    assert freed == before - size(done.path) == done.spare
    assert not (done.path / "checkpoints").exists()
    assert load(done.path).predict([next(shapes.rglob("*.png"))]).records
    assert clean(find_runs(folder)[1]) == 0, "there is nothing left to clean"


def test_an_unfinished_run_is_not_cleaned(folder):
    unfinished, _ = find_runs(folder)
    assert clean(unfinished) == 0
    assert (unfinished.path / "checkpoints" / "pretrain-000001.json").exists()


def test_cleaning_leaves_what_the_run_did_not_write(folder):
    _, done = find_runs(folder)
    mine = done.path / "checkpoints" / "my-best.safetensors"
    shard = done.path / "features" / ("a" * 64) / f"{'b' * 64}.safetensors"
    other = done.path / "features" / "mine.npy"
    shard.parent.mkdir(parents=True)
    for file in (mine, shard, other):
        file.write_text("12345")
    _, done = find_runs(folder)
    checkpoints = size(done.path / "checkpoints") - 5
    assert clean(done) == done.spare == checkpoints + 5
    assert not shard.parent.exists()
    assert [*mine.parent.iterdir()] == [mine]
    assert [*other.parent.iterdir()] == [other]


def test_a_run_in_use_or_begun_again_is_not_cleaned(folder):
    _, done = find_runs(folder)
    lock = Lock(done.path / ".lock")
    assert clean(done) == 0
    lock.release()
    (done.path / "finished.json").unlink()
    assert clean(done) == 0
    assert [*done.path.glob("checkpoints/*.sha256")]


def test_a_damaged_end_does_not_hide_the_other_runs(folder):
    for text in ("{", "[]", "\xff"):
        (folder / "birds" / "a" / "finished.json").write_text(text, encoding="latin-1")
        _, damaged = find_runs(folder)
        assert (damaged.finished, damaged.accuracy, damaged.spare) == (False, None, 0)
        assert clean(damaged) == 0


def test_files_that_vanish_while_they_are_counted_do_no_harm(folder, monkeypatch):
    stat, seen = Path.stat, []

    def gone_the_second_time(path, **options):
        if path.name == "metrics.csv":
            seen.append(path)
            if len(seen) > 1:
                raise FileNotFoundError
        return stat(path, **options)

    vanishing = size(folder / "birds" / "a") - (folder / "birds/a/metrics.csv").stat().st_size
    monkeypatch.setattr(Path, "stat", gone_the_second_time)
    find_runs(folder)
    assert find_runs(folder)[1].bytes == vanishing


def test_a_recipe_that_stands_alone_is_no_run(folder, finished):
    (folder / "mine").mkdir()
    shutil.copy(finished / "recipe.toml", folder / "mine")
    assert len(find_runs(folder)) == 2


def test_one_damaged_recipe_does_not_hide_the_other_runs(folder):
    (folder / "b" / "recipe.toml").write_text("flour = 500 g")
    damaged, done = find_runs(folder)
    assert (damaged.source, damaged.method) == ("?", "?")
    assert done.finished
