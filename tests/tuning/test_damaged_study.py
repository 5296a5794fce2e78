"""Damaged searches end with an error that names the file, never with a traceback or in a loop."""

import json
import random

import pytest

from scs_supcon.errors import UserError
from scs_supcon.tuning.study import Search, best, completed, open_study, prepare
from scs_supcon.tuning.tune import _check_parameters, _write_results
from torture.files import as_json, change, damaged
from torture.outcome import time_limit


@pytest.fixture
def search(tmp_path):
    """A search with three completed trials, which were not really trained."""
    search = Search(
        source="shapes",
        out=tmp_path / "search",
        trials=3,
        over=("pretrain.lr=0.01..0.1:log", "pretrain.batches=shuffle|balanced"),
        compute={"workers": 0, "device": "cpu"},
    )
    prepare(search)
    study = open_study(search)
    for number in range(3):
        trial = study.ask()
        for axis in search.axes:
            axis.suggest(trial)
        run = search.out / "trials" / f"{number:012x}"
        run.mkdir(parents=True)
        (run / "recipe.toml").write_text("seed = 1\n")
        for name, value in (("loss", 0.5), ("accuracy", 0.9), ("run", f"trials/{run.name}")):
            trial.set_user_attr(name, value)
        study.tell(trial, 0.1 * number)
    return search


def read(search):
    """Do what `scs tune` does with a search whose trials are complete."""
    prepare(search)
    trials = completed(open_study(search))
    if trials:
        _check_parameters(search, trials)
        _write_results(search, trials, best(trials))


def test_an_intact_search_is_read(search):
    read(search)
    assert (search.out / "best.toml").read_text() == "seed = 1\n"


@pytest.mark.parametrize("name", ["study.journal", "search.json"])
def test_a_damaged_search_is_an_error_or_read(search, name):
    chance = random.Random(0)
    file = search.out / name
    content = file.read_bytes()
    errors = 0
    for attempt in range(40):
        if attempt % 2:
            file.write_bytes(damaged(chance, content))
        else:
            lines = [content] if name == "search.json" else content.splitlines()
            documents = [json.loads(line) for line in lines]
            change(chance, documents)
            file.write_text("\n".join(map(as_json, documents)) + "\n")
        try:
            with time_limit(60):
                read(search)
        except UserError as error:
            errors += 1
            assert str(error)
        file.write_bytes(content)
    assert errors > 5


def test_a_trial_that_repeats_itself_does_not_loop(search):
    from scs_supcon.tuning.study import _crashes

    study = open_study(search)
    trial = study.ask()
    trial.set_user_attr("again", trial.number)
    with time_limit(20):
        assert _crashes(study.get_trials(deepcopy=False), trial.number) == 1


def test_a_run_outside_the_search_is_an_error(search):
    study = open_study(search)
    trial = study.ask()
    for name, value in (("loss", 0.1), ("accuracy", 1.0), ("run", "../../elsewhere")):
        trial.set_user_attr(name, value)
    study.tell(trial, 0.0)
    with pytest.raises(UserError, match="trial 3 of the study is damaged: run"):
        completed(study)
