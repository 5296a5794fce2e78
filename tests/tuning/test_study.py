"""One study, many workers: nothing is computed twice, and nobody waits for the dead."""

import json
import math
from dataclasses import replace

import pyarrow.parquet as pq
import pytest

from scs_supcon.errors import UserError
from scs_supcon.io.lock import Lock
from scs_supcon.training.checkpointing import Stopped
from scs_supcon.tuning import study as module
from scs_supcon.tuning.study import (
    Search,
    best,
    completed,
    on_validation,
    open_study,
    prepare,
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
        place={"workers": 0, "device": "cpu"},
    )


def test_a_place_that_cannot_be_is_refused_before_anything_is_begun(search):
    with pytest.raises(UserError, match="no device 'cpu:x'"):
        prepare(replace(search, place={"device": "cpu:x"}))
    assert not search.out.exists()


def test_a_search_goes_on_until_enough_trials_are_completed(search):
    prepare(search)
    work(search)
    study = open_study(search)
    first = completed(study)
    assert [trial.number for trial in first] == [0, 1]
    for trial in first:
        run = search.out / trial.run
        assert (trial.loss, trial.accuracy) == on_validation(run)
        recipe = (run / "recipe.toml").read_text()
        assert f"lr = {trial.params['pretrain.lr']!r}" in recipe
        assert 0.01 <= trial.params["pretrain.lr"] <= 0.1
    assert best(first) == min(first, key=lambda trial: trial.loss)
    work(search)
    assert completed(study) == first, "nothing is left to do"
    work(replace(search, trials=3))
    assert len(completed(study)) == 3, "more may be asked for"


def test_the_loss_is_that_of_the_validation_images_alone(finished):
    rows = pq.read_table(finished / "predictions.parquet").to_pylist()
    classes = json.loads((finished / "classes.json").read_text())
    losses, right = [], 0
    for row in rows:
        if row["split"] == "val":
            losses.append(-math.log(row["probabilities"][classes.index(row["label"])]))
            right += row["label"] == row["prediction"]
    loss, accuracy = on_validation(finished)
    assert loss == pytest.approx(sum(losses) / len(losses), rel=1e-12)
    assert accuracy == right / len(losses)


def test_the_trial_of_a_dead_worker_is_queued_again_and_that_of_a_living_one_is_not(search):
    prepare(search)
    study = open_study(search)
    dead, alive = study.ask(), study.ask()
    for trial in (dead, alive):
        for axis in search.axes:
            axis.suggest(trial)
    held = Lock(search.out / "trials" / f".{alive.number}.lock")
    module._bring_back_the_dead(search, study)
    states = [trial.state.name for trial in study.trials]
    assert states == ["FAIL", "RUNNING", "WAITING"]
    again = study.trials[2]
    assert again.user_attrs == {"again": 0}
    assert again.system_attrs["fixed_params"] == study.trials[0].params
    held.release()
    work(search)
    assert sorted(str(t.params) for t in completed(study)) == sorted(
        str(study.trials[number].params) for number in (0, 1)
    ), "both were taken up as they were"


def test_a_trial_that_kills_its_workers_is_given_up(search):
    prepare(search)
    study = open_study(search)
    for _ in range(3):
        trial = study.ask()
        for axis in search.axes:
            axis.suggest(trial)
        module._bring_back_the_dead(search, study)
    assert [trial.state.name for trial in study.trials] == ["FAIL"] * 3
    assert len({str(trial.params) for trial in study.trials}) == 1
    errors = [trial.user_attrs.get("error") for trial in study.trials]
    assert errors[:2] == [None, None]
    assert errors[2].startswith("3 workers died of it")


def test_a_trial_that_fails_in_any_way_is_noted_and_others_are_tried(search, monkeypatch):
    calls = []

    def train(*args, **options):
        calls.append(options["settings"])
        if len(calls) == 1:
            raise RuntimeError("CUDA out of memory")

    monkeypatch.setattr(module, "train", train)
    monkeypatch.setattr(module, "on_validation", lambda run: (0.5, 0.9))
    prepare(search)
    work(search)
    study = open_study(search)
    assert [trial.state.name for trial in study.trials] == ["FAIL", "COMPLETE", "COMPLETE"]
    assert study.trials[0].user_attrs == {"error": "RuntimeError: CUDA out of memory"}
    assert calls[1] != calls[0]


def test_a_trial_that_was_asked_to_stop_is_taken_up_again_however_often(search, monkeypatch):
    def train(*args, **options):
        raise Stopped(143)

    monkeypatch.setattr(module, "train", train)
    prepare(search)
    for _ in range(5):
        with pytest.raises(Stopped):
            work(search)
    study = open_study(search)
    module._bring_back_the_dead(search, study)
    assert [trial.state.name for trial in study.trials] == ["FAIL"] * 5 + ["WAITING"]


def test_another_search_in_the_same_folder_is_refused(search):
    prepare(search)
    prepare(replace(search, trials=9, place={}))
    with pytest.raises(UserError, match=r"another search \(seed: 0 then, 1 now\)"):
        prepare(replace(search, seed=1))
    with pytest.raises(UserError, match="epochs: 1 then, 2 now"):
        prepare(replace(search, options={"epochs": 2, "batch_size": 8}))


def test_a_search_is_of_one_code(search, tmp_path):
    code = "from scs_supcon.methods.supcon import SupCon\n\n\nclass Mine(SupCon):\n    pass\n"
    facts = []
    for text in (code, f"{code}    # other\n"):
        (tmp_path / f"{len(facts)}.py").write_text(text)
        method = f"{tmp_path / str(len(facts))}.py:Mine"
        facts.append(replace(search, options={"method": method}).facts)
    assert facts[0]["code"] != facts[1]["code"]
    assert "code" not in search.facts


def test_a_search_in_which_every_trial_fails_ends_with_the_reason(search):
    broken = replace(search, options={"epochs": 1, "encoder": "resnet1"})
    prepare(broken)
    with pytest.raises(UserError, match=r"first 3 trials all failed.*resnet1"):
        work(broken)


def test_a_database_can_hold_the_study(search, tmp_path):
    stored = replace(search, trials=1, storage=f"sqlite:///{tmp_path / 'study.db'}")
    prepare(stored)
    work(stored)
    assert len(completed(open_study(stored))) == 1
    assert not (stored.out / "study.journal").exists()
