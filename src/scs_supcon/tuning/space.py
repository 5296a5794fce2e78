"""What `scs tune` may vary: ranges and choices for keys of the recipe.

`method.options.t0=1..100:log` is a range, on a logarithmic scale; `head.overlap=0..32` a range of
whole numbers, since the key holds whole numbers; `pretrain.batches=shuffle|balanced` a choice.
"""

import inspect
import math
import typing
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from scs_supcon.errors import UserError
from scs_supcon.methods import build_method, method_class, parse
from scs_supcon.recipe import SECTIONS, override

OPTIONS = "method.options."


@dataclass(frozen=True)
class Range:
    """From `low` to `high`, both included."""

    key: str
    low: float
    high: float
    log: bool
    whole: bool

    def suggest(self, trial: Any) -> str:
        """Let an Optuna trial choose; return "key=value"."""
        if self.whole:
            value = trial.suggest_int(self.key, int(self.low), int(self.high), log=self.log)
        else:
            value = trial.suggest_float(self.key, self.low, self.high, log=self.log)
        return f"{self.key}={value!r}"


@dataclass(frozen=True)
class Choice:
    """One of these texts."""

    key: str
    values: tuple[str, ...]

    def suggest(self, trial: Any) -> str:
        """Let an Optuna trial choose; return "key=value"."""
        return f"{self.key}={trial.suggest_categorical(self.key, list(self.values))}"


Axis = Range | Choice


def read_space(texts: Sequence[str], method: str) -> tuple[Axis, ...]:
    """Read what to vary; every key and both ends of every range must fit the recipe."""
    axes = tuple(_axis(text, method) for text in texts)
    twice = [axis.key for axis in axes if sum(axis.key == other.key for other in axes) > 1]
    if twice:
        raise UserError(f"{twice[0]} is to be varied twice: name it once")
    return axes


def usual_space(method: str) -> tuple[str, ...]:
    """What is worth varying for a method: its temperature, bias and weight, and the rate."""
    name, preset = parse(method)
    ranges = {
        "t0": "1..100:log",
        "b0": "-5..20",
        "beta": "1e-4..1:log",
        "temperature": "0.02..1:log",
    }
    made = build_method(name, preset)
    known = inspect.signature(type(made).__init__).parameters
    solved = getattr(made, "bias", None) == "solve"  # then b is no matter of choice
    own = [key for key in ranges if key in known and not (key == "b0" and solved)]
    return (*(f"{OPTIONS}{key}={ranges[key]}" for key in own), "pretrain.lr=0.01..1:log")


def _axis(text: str, method: str) -> Axis:
    key, equals, spec = (part.strip() for part in text.partition("="))
    if not equals or not spec:
        raise UserError(
            f"{text!r} says not what to vary: write a range such as pretrain.lr=0.01..1:log, or a "
            "choice such as pretrain.batches=shuffle|balanced"
        )
    if ".." not in spec:
        values = tuple(value.strip() for value in spec.split("|"))
        if len(values) < 2:
            raise UserError(f"{text!r} leaves no choice: write {key}={spec}|…, or fix it by --set")
        for value in values:
            override({}, [f"{key}={value}"])
        return Choice(key, values)
    ends, _, scale = spec.partition(":")
    low, high = (_number(end, text) for end in ends.split("..", 1))
    if not low < high or scale not in ("", "log") or (scale and low <= 0):
        raise UserError(
            f"{text!r} is no range: it needs low < high, both positive where :log follows"
        )
    whole = _holds_whole_numbers(key, method)
    if whole and not (low.is_integer() and high.is_integer()):
        raise UserError(f"{text!r}: {key} holds whole numbers, and so must its ends")
    for end in (low, high):
        override({}, [f"{key}={int(end) if whole else end!r}"])
    return Range(key, low, high, scale == "log", whole)


def _number(text: str, axis: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise UserError(f"{text!r} in {axis!r} is no number")
    return value


def _holds_whole_numbers(key: str, method: str) -> bool:
    if key.startswith(OPTIONS):
        signature = inspect.signature(method_class(parse(method)[0]).__init__)
        wanted = signature.parameters.get(key.removeprefix(OPTIONS))
        kind: Any = wanted.annotation if wanted else float
    else:
        section, _, name = key.partition(".")
        override({}, [f"{key}=1"])  # says what is wrong with an unknown key
        kind = SECTIONS[section].model_fields[name].annotation if name else int
    return kind is int or int in typing.get_args(kind)
