"""What may be varied: read, checked against the recipe, and suggested to a trial."""

import pytest

from scs_supcon.errors import UserError
from scs_supcon.methods import available
from scs_supcon.tuning.space import Choice, Range, read_space, usual_space


class Always:
    """Chooses the lowest number and the last word, and keeps what it was asked."""

    def suggest_float(self, key, low, high, log):
        self.asked = (key, low, high, log)
        return low

    def suggest_int(self, key, low, high, log):
        self.asked = (key, low, high, log)
        return low

    def suggest_categorical(self, key, values):
        return values[-1]


def test_ranges_and_choices_are_told_apart_by_how_they_are_written():
    axes = read_space(
        [
            "method.options.t0=1..100:log",
            "head.overlap=0..32",
            "pretrain.batches = shuffle|balanced",
            "method.options.b0=-5..2.5",
            "seed=1..3",
        ],
        "scs_supcon@siglip",
    )
    assert axes == (
        Range("method.options.t0", 1, 100, log=True, whole=False),
        Range("head.overlap", 0, 32, log=False, whole=True),
        Choice("pretrain.batches", ("shuffle", "balanced")),
        Range("method.options.b0", -5, 2.5, log=False, whole=False),
        Range("seed", 1, 3, log=False, whole=True),
    )


def test_a_trial_chooses_and_the_recipe_can_read_it():
    trial = Always()
    (rate,) = read_space(["pretrain.lr=0.01..1:log"], "supcon")
    assert rate.suggest(trial) == "pretrain.lr=0.01"
    assert trial.asked == ("pretrain.lr", 0.01, 1.0, True)
    (width,) = read_space(["head.overlap=0..32"], "supcon")
    assert width.suggest(trial) == "head.overlap=0"
    (kind,) = read_space(["pretrain.batches=shuffle|balanced"], "supcon")
    assert kind.suggest(trial) == "pretrain.batches=balanced"


@pytest.mark.parametrize("method", [*available(), "scs_supcon@paper"])
def test_every_method_has_something_worth_varying(method):
    axes = read_space(usual_space(method), method)
    assert axes[-1].key == "pretrain.lr"


def test_a_solved_bias_is_no_matter_of_choice():
    assert [a.split("=")[0].split(".")[-1] for a in usual_space("scs_supcon")] == [
        "t0",
        "beta",
        "lr",
    ]
    assert any("b0" in axis for axis in usual_space("scs_supcon@siglip"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("pretrain.lr", "says not what to vary"),
        ("pretrain.lr=", "says not what to vary"),
        ("pretrain.lr=3", "leaves no choice"),
        ("pretrain.lr=2..1", "low < high"),
        ("pretrain.lr=0..1:log", "both positive"),
        ("pretrain.lr=1..2:lin", "no range"),
        ("pretrain.lr=a..2", "'a' in 'pretrain.lr=a..2' is no number"),
        ("pretrain.lr=-1..2", "greater than 0"),
        ("pretrain.lrr=1..2", "did you mean 'lr'"),
        ("head.overlap=0.5..2", "whole numbers"),
        ("pretrain.batches=shuffle|balansed", "balanced"),
        ("nowhere.x=1..2", "unknown section"),
    ],
)
def test_mistakes_are_told_before_anything_is_begun(text, message):
    with pytest.raises(UserError, match=message):
        read_space([text], "scs_supcon")


def test_nothing_is_varied_twice():
    with pytest.raises(UserError, match=r"pretrain\.lr is to be varied twice"):
        read_space(["pretrain.lr=1..2", "pretrain.lr=2..3"], "scs_supcon")
