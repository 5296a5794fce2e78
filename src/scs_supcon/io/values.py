"""Types of the values in JSON and TOML files before they are validated."""

from collections.abc import Mapping, Sequence
from datetime import date, time
from typing import TypeAlias

Scalar: TypeAlias = bool | int | float | str
Option: TypeAlias = Scalar | list[Scalar]
"""The value of a method's option in a recipe."""
Value: TypeAlias = "Scalar | date | time | Sequence[Value] | Mapping[str, Value] | None"
"""Any value. Only TOML has dates and times, only JSON has null."""
ValueTree: TypeAlias = dict[str, Value]
"""A JSON object or a TOML table."""
