"""One study with several workers: no trial is lost, none is computed twice."""

import errno
import json
import math
from dataclasses import replace

import pyarrow.parquet as pq
import pytest

from scs_supcon.errors import UserError
from scs_supcon.evaluation.predictions import ValidationScores, validation_scores
from scs_supcon.io.atomic import write_error
from scs_supcon.io.lock import Lock
from scs_supcon.training.checkpointing import Stopped
from scs_supcon.tuning import study as module
from scs_supcon.tuning.space import default_space
from scs_supcon.tuning.study import (
    Search,
    Trial,
    best,
    completed,
    objective_of,
    objective_value,
    open_study,
    prepare,
    space_of,
    work,
)

LEAST = ("probe.epochs=2", "probe.views=1")


@pytest.fixture
def search(shapes, tmp_path):
    """Two quick trials over the learning rate and the batches."""
    return Search(
        source=str(shapes),
        out=tmp_path / "search",
        trials=2,
        over=("pretrain.lr=0.01..0.1:log", "pretrain.batches=shuffle|balanced"),
        options={"epochs": 1, "batch_size": 8},
        settings=(*LEAST, "pretrain.per_class=2"),
        compute={"workers": 0, "device": "cpu"},
    )


def test_an_invalid_device_is_an_error_before_anything_is_written(search):
    with pytest.raises(UserError, match="unknown device 'cpu:x'"):
        prepare(replace(search, compute={"device": "cpu:x"}))
    assert not search.out.exists()


def test_a_search_runs_until_enough_trials_are_complete(search):
    prepare(search)
    work(search)
    study = open_study(search)
    first = completed(study)
    assert [trial.number for trial in first] == [0, 1]
    for trial in first:
        run = search.out / trial.run
        assert (trial.loss, trial.accuracy) == validation_scores(run)[:2]
        recipe = (run / "recipe.toml").read_text()
        assert f"lr = {trial.params['pretrain.lr']!r}" in recipe
        assert 0.01 <= trial.params["pretrain.lr"] <= 0.1
    assert best(first, "loss") == min(first, key=lambda trial: trial.loss)
    work(search)
    assert completed(study) == first, "nothing was left to do"
    work(replace(search, trials=3))
    assert len(completed(study)) == 3, "more trials were requested"


def test_the_scores_are_those_of_the_validation_images(finished):
    rows = pq.read_table(finished / "predictions.parquet").to_pylist()
    classes = json.loads((finished / "classes.json").read_text())
    losses, correct = [], 0
    for row in rows:
        if row["split"] == "val":
            losses.append(-math.log(row["probabilities"][classes.index(row["label"])]))
            correct += row["label"] == row["prediction"]
    loss, accuracy, images = validation_scores(finished)
    assert images == len(losses)
    assert loss == pytest.approx(sum(losses) / len(losses), rel=1e-12)
    assert accuracy == correct / len(losses)


def test_the_accuracy_decides_and_the_loss_orders_equal_accuracies():
    scores = [(0.1, 0.7), (0.9, 0.8), (0.5, 0.8), (0.5, 0.8), (0.2, 0.6)]
    trials = [Trial(k, *values, {}, "trials/x") for k, values in enumerate(scores)]
    assert best(trials).number == 2
    assert best(trials, "loss").number == 0
    values = [ValidationScores(*pair, images=10) for pair in scores]
    for objective in ("accuracy", "loss"):
        numbers = [objective_value(objective, value) for value in values]
        assert numbers.index(min(numbers)) == best(trials, objective).number
    many = [ValidationScores(0.0, 0.999, 1000), ValidationScores(50.0, 1.0, 1000)]
    assert objective_value("accuracy", many[1]) < objective_value("accuracy", many[0])


def test_a_search_is_resumed_in_its_own_space(search):
    assert space_of(search.out, "supcon") == default_space("supcon")
    prepare(search)
    assert space_of(search.out, "supcon") == search.over


def test_a_search_of_an_older_version_minimised_the_loss(search):
    prepare(replace(search, objective="loss"))
    file = search.out / "search.json"
    facts = json.loads(file.read_text())
    del facts["objective"]
    file.write_text(json.dumps(facts))
    prepare(search)
    assert objective_of(search) == "loss"
    with pytest.raises(UserError, match="objective: loss there, accuracy here"):
        prepare(replace(search, objective="accuracy"))
    with pytest.raises(UserError, match="--objective must be accuracy or loss, got 'f1'"):
        prepare(replace(search, objective="f1"))


def test_the_trial_of_a_crashed_worker_is_queued_again_but_not_that_of_a_running_one(search):
    prepare(search)
    study = open_study(search)
    crashed, running = study.ask(), study.ask()
    for trial in (crashed, running):
        for axis in search.axes:
            axis.suggest(trial)
    lock = Lock(search.out / "trials" / f".{running.number}.lock")
    module._requeue_stale_trials(search, study)
    states = [trial.state.name for trial in study.trials]
    assert states == ["FAIL", "RUNNING", "WAITING"]
    repeated = study.trials[2]
    assert repeated.user_attrs == {"again": 0}
    assert repeated.system_attrs["fixed_params"] == study.trials[0].params
    lock.release()
    work(search)
    assert sorted(str(t.params) for t in completed(study)) == sorted(
        str(study.trials[number].params) for number in (0, 1)
    ), "both were computed with their values"


@pytest.mark.parametrize("suggested", [0, 1, 2])
def test_a_search_whose_worker_was_killed_tries_the_same_values(
    search, tmp_path, monkeypatch, suggested
):
    scores = ValidationScores(loss=0.5, accuracy=0.75, images=8)
    monkeypatch.setattr(module, "train", lambda *_, **__: None)
    monkeypatch.setattr(module, "validation_scores", lambda run: scores)
    values = []
    for out, kill in ((tmp_path / "whole", False), (tmp_path / "killed", True)):
        one = replace(search, out=out, trials=4)
        prepare(one)
        study = open_study(one)
        if kill:
            trial, lock = module._claim(one, study)
            for axis in one.axes[:suggested]:
                axis.suggest(trial)
            lock.release()  # as the system does
        work(one)
        values.append([trial.params for trial in completed(study)])
    assert values[0] == values[1]


def test_a_trial_that_crashes_its_workers_is_dropped(search):
    prepare(search)
    study = open_study(search)
    for _ in range(3):
        trial = study.ask()
        for axis in search.axes:
            axis.suggest(trial)
        module._requeue_stale_trials(search, study)
    assert [trial.state.name for trial in study.trials] == ["FAIL"] * 3
    assert len({str(trial.params) for trial in study.trials}) == 1
    errors = [trial.user_attrs.get("error") for trial in study.trials]
    assert errors[:2] == [None, None]
    assert errors[2].startswith("it crashed 3 workers")


def test_a_failed_trial_is_recorded_and_others_are_tried(search, monkeypatch):
    calls = []

    def train(*args, **options):
        calls.append(options["settings"])
        if len(calls) == 1:
            raise RuntimeError("CUDA out of memory")

    monkeypatch.setattr(module, "train", train)
    monkeypatch.setattr(module, "validation_scores", lambda run: ValidationScores(0.5, 0.9, 10))
    prepare(search)
    work(search)
    study = open_study(search)
    assert [trial.state.name for trial in study.trials] == ["FAIL", "COMPLETE", "COMPLETE"]
    assert study.trials[0].user_attrs == {"error": "RuntimeError: CUDA out of memory"}
    assert calls[1] != calls[0]


def test_a_stopped_trial_is_resumed_any_number_of_times(search, monkeypatch):
    def train(*args, **options):
        raise Stopped(143)

    monkeypatch.setattr(module, "train", train)
    prepare(search)
    for _ in range(5):
        with pytest.raises(Stopped):
            work(search)
    study = open_study(search)
    module._requeue_stale_trials(search, study)
    assert [trial.state.name for trial in study.trials] == ["FAIL"] * 5 + ["WAITING"]


def test_a_full_disk_does_not_count_as_failed_trials(search, monkeypatch):
    def full(*_, **__):
        raise write_error(OSError(errno.ENOSPC, "No space left on device"), search.out / "x")

    prepare(search)
    with monkeypatch.context() as patch:
        patch.setattr(module, "train", full)
        for _ in range(8):
            with pytest.raises(UserError, match="the disk is full"):
                work(search)
    scores = ValidationScores(loss=0.5, accuracy=0.75, images=8)
    monkeypatch.setattr(module, "train", lambda *_, **__: None)
    monkeypatch.setattr(module, "validation_scores", lambda run: scores)
    work(search)
    assert len(completed(open_study(search))) == 2


def test_another_search_in_the_same_folder_is_an_error(search):
    prepare(search)
    prepare(replace(search, trials=9, compute={}))
    with pytest.raises(UserError, match=r"another search \(seed: 0 there, 1 here\)"):
        prepare(replace(search, seed=1))
    with pytest.raises(UserError, match="epochs: 1 there, 2 here"):
        prepare(replace(search, options={"epochs": 2, "batch_size": 8}))


def test_the_code_of_a_plugin_is_part_of_the_search(search, tmp_path):
    code = "from scs_supcon.methods.supcon import SupCon\n\n\nclass Mine(SupCon):\n    pass\n"
    facts = []
    for text in (code, f"{code}    # other\n"):
        (tmp_path / f"{len(facts)}.py").write_text(text)
        method = f"{tmp_path / str(len(facts))}.py:Mine"
        facts.append(replace(search, options={"method": method}).facts)
    assert facts[0]["code"] != facts[1]["code"]
    assert "code" not in search.facts


def test_a_search_whose_trials_all_fail_ends_with_the_reason(search):
    broken = replace(search, options={"epochs": 1, "encoder": "resnet1"})
    prepare(broken)
    with pytest.raises(UserError, match=r"first 3 trials failed.*resnet1"):
        work(broken)


def test_a_database_can_hold_the_study(search, tmp_path):
    stored = replace(search, trials=1, storage=f"sqlite:///{tmp_path / 'study.db'}")
    prepare(stored)
    work(stored)
    assert len(completed(open_study(stored))) == 1
    assert not (stored.out / "study.journal").exists()


@pytest.mark.parametrize("length", [1, 100, 5000])
def test_a_line_that_a_full_disk_cut_off_does_not_damage_the_study(search, length):
    prepare(search)
    study = open_study(search)
    study.ask()
    journal = search.out / "study.journal"
    before = journal.read_bytes()
    journal.write_bytes(before + b'{"op_code":4,' + b"x" * length)
    study = open_study(search)
    study.ask()
    assert journal.read_bytes().startswith(before + b"{")
    assert b"xx" not in journal.read_bytes()
    assert len(open_study(search).trials) == 2


def test_a_damaged_study_is_an_error(search):
    prepare(search)
    (search.out / "study.journal").write_text("no json\n" * 3)
    with pytest.raises(UserError, match=r"cannot open the study .*study\.journal"):
        open_study(search)


def test_a_damaged_search_file_is_an_error(search):
    prepare(search)
    (search.out / "search.json").write_text("{")
    with pytest.raises(UserError, match=r"search\.json is damaged"):
        prepare(search)


def test_a_complete_trial_without_accuracy_is_an_error(search):
    prepare(search)
    study = open_study(search)
    study.tell(study.ask(), 0.5)
    with pytest.raises(UserError, match="trial 0 of the study is damaged: accuracy"):
        completed(study)
