"""A search with several workers, one of which is killed."""

import csv
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from scs_supcon.io.lock import InUse, Lock, is_held
from scs_supcon.progress import Display
from scs_supcon.recipe import from_toml
from scs_supcon.tuning import tune as module
from scs_supcon.tuning.study import Search, Trial, completed, open_study
from scs_supcon.tuning.tune import SearchResult, describe, run_search

QUICK = ("probe.epochs=2", "probe.views=1")


def splits_in(run):
    with (run / "splits.csv").open(newline="", encoding="utf-8") as file:
        return list(csv.reader(file))


def test_a_run_that_another_command_trains_is_waited_for(tmp_path, monkeypatch):
    out = tmp_path / "best-seed1"
    out.mkdir()
    calls = []
    other = Lock(out / ".lock")

    def train(source, **options):
        calls.append(options)
        if len(calls) == 1:
            raise InUse("in use by another process")

    monkeypatch.setattr(module, "train", train)
    monkeypatch.setattr(module.time, "sleep", lambda _: other.release())
    module._train_or_wait("birds", out, seed=1)
    assert len(calls) == 2
    assert not is_held(out / ".lock")


def test_the_table_of_trials_can_be_read_for_any_value(tmp_path):
    search = Search("birds", tmp_path, 1, ("probe.lrs=[0.1, 1.0]|[3.0]",))
    run = tmp_path / "trials" / "x"
    run.mkdir(parents=True)
    (run / "recipe.toml").write_text("seed = 0\n")
    trial = Trial(0, 0.5, 0.9, {"probe.lrs": "[0.1, 1.0]"}, "trials/x")
    module._write_results(search, [trial], trial)
    with (tmp_path / "trials.csv").open(newline="", encoding="utf-8") as file:
        (row,) = csv.DictReader(file)
    assert row["probe.lrs"] == "[0.1, 1.0]"
    assert row["run"] == "trials/x"


@pytest.mark.slow
def test_a_search_writes_the_best_recipe_a_table_and_a_figure(shapes, tmp_path):
    search = Search(
        source=str(shapes),
        out=tmp_path / "search",
        trials=3,
        over=("method.options.t0=1..50:log",),
        options={"epochs": 1, "batch_size": 8},
        settings=QUICK,
        compute={"workers": 0, "device": "cpu"},
    )
    result = run_search(search, jobs=1, retrain=2, display=Display(quiet=True))
    assert result.best.accuracy == max(trial.accuracy for trial in result.trials)
    recipe = from_toml((search.out / "best.toml").read_text())
    assert recipe.method.options["t0"] == result.best.params["method.options.t0"]
    with (search.out / "trials.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [float(row["val_loss"]) for row in rows] == [trial.loss for trial in result.trials]
    assert (search.out / "search.png").stat().st_size > 10_000
    assert (search.out / "search.svg").exists()
    seeds = [from_toml((run / "recipe.toml").read_text()).seed for run in search.out.glob("best-*")]
    assert sorted(seeds) == [1, 2], "other seeds than the search"
    for run in search.out.glob("best-*"):
        assert splits_in(run) == splits_in(search.out / result.best.run), "the split of the search"
    text = describe(search, result)
    assert f"trial {result.best.number}," in text
    assert "trained again with 2 other seeds" in text
    assert str(search.out / "best.toml") in text


@pytest.mark.parametrize(("split", "title"), [("test", "test"), ("val", "validation")])
def test_the_split_of_the_accuracies_is_named(tmp_path, split, title):
    trial = Trial(0, 0.5, 0.9, {"pretrain.lr": 0.1}, "trials/x")
    search = Search("shapes", tmp_path, 1, ("pretrain.lr=0.01..0.1",))
    text = describe(search, SearchResult((trial,), trial, (0.8, 0.9), split))
    assert f"85.00% ± 7.07% on the {title} images" in text
    assert ("There is no test split" in text) == (split == "val")


def test_paths_with_a_space_are_quoted():
    trial = Trial(0, 0.5, 0.9, {"pretrain.lr": 0.1}, "trials/x")
    search = Search("my birds", Path("my search"), 1, ("pretrain.lr=0.01..0.1",))
    text = describe(search, SearchResult((trial,), trial, ()))
    command = "scs train 'my birds' --recipe 'my search/best.toml' --out 'runs/my search-best'"
    assert text.endswith(command)


def test_the_command_for_the_best_recipe_names_files_and_code_that_it_needs():
    trial = Trial(0, 0.5, 0.9, {"pretrain.lr": 0.1}, "trials/x")
    options = {"weights": Path("w.safetensors"), "method": "./loss.py:MyLoss"}
    search = Search("birds", Path("search"), 1, ("pretrain.lr=0.01..0.1",), options=options)
    text = describe(search, SearchResult((trial,), trial, ()))
    assert "--method ./loss.py:MyLoss --weights w.safetensors --out runs/search-best" in text


@pytest.mark.slow
def test_the_other_workers_complete_the_search_if_one_is_killed(shapes, tmp_path):
    out = tmp_path / "search"
    command = [
        *(sys.executable, "-m", "scs_supcon", "tune", str(shapes), "--out", str(out)),
        *("--trials", "4", "--jobs", "2", "--epochs", "20", "--batch-size", "8", "--device", "cpu"),
        *("--over", "pretrain.lr=0.01..0.1", "--set", QUICK[0], "--set", QUICK[1]),
    ]
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
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
    repeated = [trial for trial in study.trials if "again" in trial.user_attrs]
    assert len(lost) == len(repeated) == 1
    assert repeated[0].params == lost[0].params
    assert (out / "best.toml").exists()
