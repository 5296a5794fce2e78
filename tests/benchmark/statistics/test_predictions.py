import math

import numpy as np
import pytest

from scs_supcon.benchmark.statistics import mcnemar
from scs_supcon.errors import UserError


def predictions(both: int, only_first: int, only_second: int, neither: int):
    """Truth is always class 1; a wrong guess is class 0 or 2."""
    first = [1] * both + [1] * only_first + [0] * only_second + [2] * neither
    second = [1] * both + [0] * only_first + [1] * only_second + [0] * neither
    return np.ones(len(first), dtype=int), np.array(first), np.array(second)


def binomial_p(gained: int, lost: int) -> float:
    """Twice the smaller tail of fair coin tosses."""
    n = gained + lost
    tail = sum(math.comb(n, i) for i in range(min(gained, lost) + 1))
    return min(1.0, 2 * tail / 2**n)


@pytest.mark.parametrize(("gained", "lost"), [(9, 1), (1, 9), (5, 5), (6, 0), (14, 10), (0, 0)])
def test_few_disagreements_are_counted_exactly(gained, lost):
    result = mcnemar(*predictions(50, gained, lost, 7), names=("a", "b"))
    assert (result.both, result.neither) == (50, 7)
    assert (result.only_first, result.only_second) == (gained, lost)
    assert result.exact
    assert result.chi2 is None
    assert result.p == pytest.approx(binomial_p(gained, lost), rel=1e-12)


def test_many_disagreements_use_chi_square():
    result = mcnemar(*predictions(700, 60, 30, 40), names=("SCS-SupCon", "SupCon"))
    assert not result.exact
    assert result.chi2 == pytest.approx(29**2 / 90)
    # with one degree of freedom the upper tail of χ² is erfc(sqrt(χ² / 2))
    assert result.p == pytest.approx(math.erfc(math.sqrt(29**2 / 90 / 2)), rel=1e-9)
    assert result.p == pytest.approx(binomial_p(60, 30), rel=0.1)
    assert result.sentence == (
        "Of 830 images only SCS-SupCon got 60 right and only SupCon 30 (p = 0.0022):"
        " more than chance explains."
    )


def test_an_even_split_is_no_difference():
    result = mcnemar(*predictions(10, 40, 40, 0), names=("a", "b"))
    assert (result.chi2, result.p) == (0.0, 1.0)
    assert "chance alone" in result.sentence


def test_too_few_disagreements_warn():
    result = mcnemar(*predictions(900, 5, 0, 10), names=("a", "b"))
    assert result.p == 0.0625
    assert "disagree about 5 images, which cannot give p below 0.0625" in result.warnings[0]
    assert mcnemar(*predictions(900, 6, 0, 10), names=("a", "b")).warnings == ()


def test_class_names_do_as_well_as_numbers():
    result = mcnemar(["cat", "dog"], ["cat", "cat"], ["dog", "dog"], names=("a", "b"))
    assert (result.only_first, result.only_second) == (1, 1)


def test_lengths_must_agree():
    with pytest.raises(UserError, match=r"one entry per image, not \(3,\), \(3,\) and \(2,\)"):
        mcnemar([0, 1, 2], [0, 1, 1], [0, 1], names=("a", "b"))
