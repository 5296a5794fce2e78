"""The search space: parsed, checked against the recipe, and suggested to a trial."""

import pytest

from scs_supcon.errors import UserError
from scs_supcon.methods import available
from scs_supcon.tuning.space import Choice, Range, default_space, read_space


class FixedTrial:
    """Suggests the lowest number or the last choice, and records the arguments."""

    def suggest_float(self, key, low, high, log):
        self.arguments = (key, low, high, log)
        return low

    def suggest_int(self, key, low, high, log):
        self.arguments = (key, low, high, log)
        return low

    def suggest_categorical(self, key, values):
        return values[-1]


def test_ranges_and_choices_are_parsed():
    axes = read_space(
        [
            "method.options.t0=0.05..100:log",
            "head.overlap=0..32",
            "pretrain.batches = shuffle|balanced",
            "method.options.b0=-5..2.5",
            "seed=1..3",
        ],
        "scs_supcon@learned",
    )
    assert axes == (
        Range("method.options.t0", 0.05, 100, log=True, whole=False),
        Range("head.overlap", 0, 32, log=False, whole=True),
        Choice("pretrain.batches", ("shuffle", "balanced")),
        Range("method.options.b0", -5, 2.5, log=False, whole=False),
        Range("seed", 1, 3, log=False, whole=True),
    )


def test_a_suggestion_is_a_setting_of_the_recipe():
    trial = FixedTrial()
    (rate,) = read_space(["pretrain.lr=0.01..1:log"], "supcon")
    assert rate.suggest(trial) == "pretrain.lr=0.01"
    assert trial.arguments == ("pretrain.lr", 0.01, 1.0, True)
    (width,) = read_space(["head.overlap=0..32"], "supcon")
    assert width.suggest(trial) == "head.overlap=0"
    (kind,) = read_space(["pretrain.batches=shuffle|balanced"], "supcon")
    assert kind.suggest(trial) == "pretrain.batches=balanced"


@pytest.mark.parametrize("method", [*available(), "scs_supcon@paper"])
def test_every_method_has_a_default_space(method):
    axes = read_space(default_space(method), method)
    assert axes[-1].key == "pretrain.lr"


def test_the_default_space_includes_the_start_of_the_paper():
    ranges = {
        axis.key: axis for axis in read_space(default_space("scs_supcon@paper"), "scs_supcon")
    }
    for key, start in (("t0", 0.1), ("b0", 0.0), ("beta", 1e-3)):
        axis = ranges[f"method.options.{key}"]
        assert axis.low <= start <= axis.high


def test_a_solved_bias_is_not_varied():
    assert [a.split("=")[0].split(".")[-1] for a in default_space("scs_supcon")] == [
        "t0",
        "beta",
        "lr",
    ]
    assert any("b0" in axis for axis in default_space("scs_supcon@learned"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("pretrain.lr", "is not a range or a choice"),
        ("pretrain.lr=", "is not a range or a choice"),
        ("pretrain.lr=3", "is a single value"),
        ("pretrain.lr=2..1", "low < high"),
        ("pretrain.lr=0..1:log", "low > 0 with :log"),
        ("pretrain.lr=1..2:lin", "not a valid range"),
        ("pretrain.lr=a..2", "'a' in 'pretrain.lr=a..2' is not a number"),
        ("pretrain.lr=-1..2", "greater than 0"),
        ("pretrain.lrr=1..2", "did you mean 'lr'"),
        ("head.overlap=0.5..2", "both ends must be integers"),
        ("pretrain.batches=shuffle|balansed", "balanced"),
        ("nowhere.x=1..2", "unknown section"),
    ],
)
def test_invalid_spaces_are_errors(text, message):
    with pytest.raises(UserError, match=message):
        read_space([text], "scs_supcon")


def test_a_key_given_twice_is_an_error():
    with pytest.raises(UserError, match=r"pretrain\.lr is given twice"):
        read_space(["pretrain.lr=1..2", "pretrain.lr=2..3"], "scs_supcon")
