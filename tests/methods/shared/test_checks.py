"""What a person may give, and what is refused by name."""

import math

import pytest

from scs_supcon.errors import UserError
from scs_supcon.methods.shared.checks import not_negative, one_of, positive, share


@pytest.mark.parametrize("value", [0, -1, math.nan, math.inf])
def test_positive(value: float) -> None:
    positive(radius=1e-9)
    with pytest.raises(UserError, match=f"radius is {value}"):
        positive(radius=value)


@pytest.mark.parametrize("value", [-1e-9, math.nan, math.inf])
def test_not_negative(value: float) -> None:
    not_negative(weight=0.0)
    with pytest.raises(UserError, match=f"weight is {value}"):
        not_negative(weight=value)


@pytest.mark.parametrize("value", [-0.1, 1.1, math.nan])
def test_share(value: float) -> None:
    share(least=0.0, most=1.0)
    with pytest.raises(UserError, match=f"part is {value}: choose 0 ≤ part ≤ 1"):
        share(part=value)


def test_one_of() -> None:
    one_of("colour", "red", ("red", "green"))
    with pytest.raises(UserError, match="colour is 'blue': choose one of 'red', 'green'"):
        one_of("colour", "blue", ("red", "green"))
