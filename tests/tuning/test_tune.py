"""`tune`: several workers, one of them killed, to the best recipe."""

import csv
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from scs_supcon.io.lock import Lock
from scs_supcon.progress import Display
from scs_supcon.recipe import from_toml
from scs_supcon.tuning import tune as module
from scs_supcon.tuning.study import Search, Trial, completed, open_study
from scs_supcon.tuning.tune import Found, describe, tune

QUICK = ("probe.epochs=2", "probe.views=1")


def splits_in(run):
    with (run / "splits.csv").open(newline="", encoding="utf-8") as file:
        return list(csv.reader(file))


def test_the_best_recipe_that_another_worker_trains_is_waited_for(tmp_path, monkeypatch):
    out = tmp_path / "best-seed1"
    out.mkdir()
    calls = []
    other = Lock(out / ".lock")

    def train(source, **options):
        calls.append(options)
        if len(calls) == 1:
            Lock(options["out"] / ".lock")
        return {"accuracy": 0.75}

    monkeypatch.setattr(module, "train", train)
    monkeypatch.setattr(module.time, "sleep", lambda _: other.release())
    assert module._trained("birds", out, seed=1) == {"accuracy": 0.75}
    assert len(calls) == 2


def test_the_table_of_trials_can_be_read_whatever_was_chosen(tmp_path):
    search = Search("birds", tmp_path, 1, ("probe.lrs=[0.1, 1.0]|[3.0]",))
    run = tmp_path / "trials" / "x"
    run.mkdir(parents=True)
    (run / "recipe.toml").write_text("seed = 0\n")
    trial = Trial(0, 0.5, 0.9, {"probe.lrs": "[0.1, 1.0]"}, "trials/x")
    module._keep(search, [trial], trial)
    with (tmp_path / "trials.csv").open(newline="", encoding="utf-8") as file:
        (row,) = csv.DictReader(file)
    assert row["probe.lrs"] == "[0.1, 1.0]"
    assert row["run"] == "trials/x"


@pytest.mark.slow
def test_a_search_ends_with_its_best_recipe_its_table_and_images(shapes, tmp_path):
    search = Search(
        source=str(shapes),
        out=tmp_path / "search",
        trials=3,
        over=("method.options.t0=1..50:log",),
        options={"epochs": 1, "batch_size": 8},
        settings=QUICK,
        place={"workers": 0, "device": "cpu"},
    )
    found = tune(search, jobs=1, retrain=2, display=Display(quiet=True))
    assert found.best.loss == min(trial.loss for trial in found.trials)
    recipe = from_toml((search.out / "best.toml").read_text())
    assert recipe.method.options["t0"] == found.best.params["method.options.t0"]
    with (search.out / "trials.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [float(row["val_loss"]) for row in rows] == [trial.loss for trial in found.trials]
    assert (search.out / "search.png").stat().st_size > 10_000
    assert (search.out / "search.svg").exists()
    seeds = [from_toml((run / "recipe.toml").read_text()).seed for run in search.out.glob("best-*")]
    assert sorted(seeds) == [1, 2], "seeds that the search has not seen"
    for run in search.out.glob("best-*"):
        assert splits_in(run) == splits_in(search.out / found.best.run), "and its own split"
    text = describe(search, found)
    assert f"trial {found.best.number}," in text
    assert "trained again with 2 other seeds" in text
    assert str(search.out / "best.toml") in text


@pytest.mark.parametrize(("judged_on", "part"), [("test", "test"), ("val", "validation")])
def test_the_part_that_judged_the_best_recipe_is_named(tmp_path, judged_on, part):
    trial = Trial(0, 0.5, 0.9, {"pretrain.lr": 0.1}, "trials/x")
    search = Search("shapes", tmp_path, 1, ("pretrain.lr=0.01..0.1",))
    text = describe(search, Found((trial,), trial, (0.8, 0.9), judged_on))
    assert f"of the {part} images right" in text
    assert ("There is no test split" in text) == (judged_on == "val")


def test_paths_with_a_space_can_be_copied():
    trial = Trial(0, 0.5, 0.9, {"pretrain.lr": 0.1}, "trials/x")
    search = Search("my birds", Path("my search"), 1, ("pretrain.lr=0.01..0.1",))
    text = describe(search, Found((trial,), trial, ()))
    assert "scs train 'my birds' --recipe 'my search/best.toml' --out runs/best" in text


@pytest.mark.slow
def test_when_a_worker_is_killed_the_others_complete_the_search(shapes, tmp_path):
    out = tmp_path / "search"
    line = [
        *(sys.executable, "-m", "scs_supcon", "tune", str(shapes), "--out", str(out)),
        *("--trials", "4", "--jobs", "2", "--epochs", "20", "--batch-size", "8", "--device", "cpu"),
        *("--over", "pretrain.lr=0.01..0.1", "--set", QUICK[0], "--set", QUICK[1]),
    ]
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(line, stdout=log, stderr=subprocess.STDOUT)
        deadline = time.monotonic() + 200
        while not list(out.glob("trials/*/metrics.csv")) and time.monotonic() < deadline:
            assert process.poll() is None, (tmp_path / "log").read_text()
            time.sleep(0.02)
        owners = {int(lock.read_text().split()[0]) for lock in out.glob("trials/.*.lock")}
        children = psutil.Process(process.pid).children(recursive=True)
        assert owners <= {child.pid for child in children}
        os.kill(owners.pop(), signal.SIGKILL)
        assert process.wait(timeout=200) == 0, (tmp_path / "log").read_text()
    study = open_study(Search(str(shapes), out, 4, ("pretrain.lr=0.01..0.1",)))
    assert len(completed(study)) == 4
    lost = [trial for trial in study.trials if trial.state.name == "FAIL"]
    again = [trial for trial in study.trials if "again" in trial.user_attrs]
    assert len(lost) == len(again) == 1
    assert again[0].params == lost[0].params
    assert (out / "best.toml").exists()
