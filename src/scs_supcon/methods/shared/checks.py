"""Checks of what a person may give a method."""

import math

from scs_supcon.errors import UserError


def positive(**numbers: float) -> None:
    """Refuse numbers that are not above 0."""
    for name, value in numbers.items():
        if not 0 < value < math.inf:
            raise UserError(f"{name} is {value}: give a positive, finite number")


def not_negative(**numbers: float) -> None:
    """Refuse numbers below 0."""
    for name, value in numbers.items():
        if not 0 <= value < math.inf:
            raise UserError(f"{name} is {value}: give a finite number that is not negative")


def share(**numbers: float) -> None:
    """Refuse numbers outside 0 … 1."""
    for name, value in numbers.items():
        if not 0 <= value <= 1:
            raise UserError(f"{name} is {value}: choose 0 ≤ {name} ≤ 1")


def one_of(name: str, value: object, options: tuple[object, ...]) -> None:
    """Refuse what is not among the options."""
    if value not in options:
        raise UserError(f"{name} is {value!r}: choose one of {', '.join(map(repr, options))}")
