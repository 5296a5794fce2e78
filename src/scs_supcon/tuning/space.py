"""The search space of `scs tune`: ranges and choices for keys of the recipe.

`method.options.t0=0.05..100:log` is a range on a logarithmic scale, `head.overlap=0..32` a range of
integers because the key is an integer, and `pretrain.batches=shuffle|balanced` a choice.
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
    """A range from `low` to `high`, inclusive."""

    key: str
    low: float
    high: float
    log: bool
    whole: bool

    def suggest(self, trial: Any) -> str:
        """Return "key=value" with the value that an Optuna trial suggests."""
        if self.whole:
            value = trial.suggest_int(self.key, int(self.low), int(self.high), log=self.log)
        else:
            value = trial.suggest_float(self.key, self.low, self.high, log=self.log)
        return f"{self.key}={value!r}"


@dataclass(frozen=True)
class Choice:
    """A choice between values."""

    key: str
    values: tuple[str, ...]

    def suggest(self, trial: Any) -> str:
        """Return "key=value" with the value that an Optuna trial suggests."""
        return f"{self.key}={trial.suggest_categorical(self.key, list(self.values))}"


Axis = Range | Choice


def read_space(texts: Sequence[str], method: str) -> tuple[Axis, ...]:
    """Return the parsed search space, with keys and values checked against the recipe."""
    axes = tuple(_parse_axis(text, method) for text in texts)
    keys = [axis.key for axis in axes]
    duplicates = [key for key in keys if keys.count(key) > 1]
    if duplicates:
        raise UserError(f"{duplicates[0]} is given twice: give each key once")
    return axes


def default_space(method: str) -> tuple[str, ...]:
    """Return the default search space: t0, b0, beta or temperature, and the learning rate."""
    name, preset = parse(method)
    ranges = {
        "t0": "0.05..100:log",
        "b0": "-5..20",
        "beta": "1e-4..1:log",
        "temperature": "0.02..1:log",
    }
    instance = build_method(name, preset)
    parameters = inspect.signature(type(instance).__init__).parameters
    solved = getattr(instance, "bias", None) == "solve"  # then b0 has no effect
    keys = [key for key in ranges if key in parameters and not (key == "b0" and solved)]
    return (*(f"{OPTIONS}{key}={ranges[key]}" for key in keys), "pretrain.lr=0.01..1:log")


def _parse_axis(text: str, method: str) -> Axis:
    key, equals, spec = (part.strip() for part in text.partition("="))
    if not equals or not spec:
        raise UserError(
            f"{text!r} is not a range or a choice: give for example pretrain.lr=0.01..1:log or "
            "pretrain.batches=shuffle|balanced"
        )
    if ".." not in spec:
        values = tuple(value.strip() for value in spec.split("|"))
        if len(values) < 2:
            raise UserError(f"{text!r} is a single value: give {key}={spec}|…, or use --set")
        for value in values:
            override({}, [f"{key}={value}"])
        return Choice(key, values)
    ends, _, scale = spec.partition(":")
    low, high = (_parse_number(end, text) for end in ends.split("..", 1))
    if not low < high or scale not in ("", "log") or (scale and low <= 0):
        raise UserError(
            f"{text!r} is not a valid range: it needs low < high, and low > 0 with :log"
        )
    whole = _is_integer_key(key, method)
    if whole and not (low.is_integer() and high.is_integer()):
        raise UserError(f"{text!r}: {key} is an integer, so both ends must be integers")
    for end in (low, high):
        override({}, [f"{key}={int(end) if whole else end!r}"])
    return Range(key, low, high, scale == "log", whole)


def _parse_number(text: str, axis: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise UserError(f"{text!r} in {axis!r} is not a number")
    return value


def _is_integer_key(key: str, method: str) -> bool:
    if key.startswith(OPTIONS):
        signature = inspect.signature(method_class(parse(method)[0]).__init__)
        parameter = signature.parameters.get(key.removeprefix(OPTIONS))
        kind: Any = parameter.annotation if parameter else float
    else:
        section, _, name = key.partition(".")
        override({}, [f"{key}=1"])  # raises a UserError for an unknown key
        kind = SECTIONS[section].model_fields[name].annotation if name else int
    return kind is int or int in typing.get_args(kind)
