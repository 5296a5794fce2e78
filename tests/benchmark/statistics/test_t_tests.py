import math

import pytest
from scipy import stats

from scs_supcon.benchmark.statistics import corrected_t, holm, paired_t
from scs_supcon.errors import UserError

OURS = "SCS-SupCon"


def reference_t(first: list[float], second: list[float], overlap: float = 0.0) -> float:
    gaps = [a - b for a, b in zip(first, second, strict=True)]
    n = len(gaps)
    mean = sum(gaps) / n
    variance = sum((gap - mean) ** 2 for gap in gaps) / (n - 1)
    return mean / math.sqrt((1 / n + overlap) * variance)


@pytest.mark.parametrize(
    ("other", "mean", "t", "p"),
    [
        ("SupCon", 3.9, 30.832, 6.6e-6),
        ("SelfCon", 1.3, 11.402, 3.4e-4),
        ("CS-SupCon", 1.7, 17.920, 5.7e-5),
        ("CS-overlap", 0.7, 6.674, 2.6e-3),
    ],
)
def test_paired_t_on_the_printed_folds(folds, other, mean, t, p):
    result = paired_t(folds[OURS], folds[other], names=(OURS, other))
    assert result.mean == pytest.approx(mean)
    assert result.t == pytest.approx(t, abs=5e-4)
    assert result.t == pytest.approx(reference_t(folds[OURS], folds[other]), rel=1e-9)
    assert result.p == pytest.approx(p, rel=0.02)
    assert (result.n, result.df) == (5, 4)
    theirs = stats.ttest_rel(folds[OURS], folds[other])
    assert (result.t, result.p) == pytest.approx((theirs.statistic, theirs.pvalue), rel=1e-9)
    interval = theirs.confidence_interval()
    assert (result.low, result.high) == pytest.approx((interval.low, interval.high), rel=1e-9)


@pytest.mark.parametrize(
    ("other", "t", "p"),
    [
        ("SupCon", 20.555, 3.3e-5),
        ("SelfCon", 7.601, 1.61e-3),
        ("CS-SupCon", 11.946, 2.8e-4),
        ("CS-overlap", 4.449, 0.01125),
    ],
)
def test_corrected_t_on_the_printed_folds(folds, other, t, p):
    result = corrected_t(folds[OURS], folds[other], test_per_train=1 / 4, names=(OURS, other))
    assert result.t == pytest.approx(t, abs=5e-4)
    assert result.t == pytest.approx(reference_t(folds[OURS], folds[other], 1 / 4), rel=1e-9)
    assert result.p == pytest.approx(p, rel=0.01)
    assert "corrected for overlapping training sets" in result.sentence


def test_corrected_t_with_repeats_uses_every_fold(folds):
    first = [*folds[OURS], 78.2, 78.9, 78.6, 78.1, 78.4]
    second = [*folds["CS-overlap"], 77.9, 78.0, 77.5, 77.9, 77.8]
    result = corrected_t(first, second, test_per_train=1 / 4, names=(OURS, "CS-overlap"))
    assert (result.n, result.df) == (10, 9)
    assert result.t == pytest.approx(reference_t(first, second, 1 / 4), rel=1e-9)


def test_the_printed_folds_under_four_comparisons(folds):
    others = [name for name in folds if name != OURS]
    p = [paired_t(folds[OURS], folds[name], names=(OURS, name)).p for name in others]
    assert 4 * max(p) == pytest.approx(0.0105, abs=5e-5)
    assert max(holm(p)) == pytest.approx(max(p))
    assert all(adjusted < 0.05 for adjusted in holm(p))


def test_sentence_says_which_way_and_how_sure(folds):
    result = paired_t(folds[OURS], folds["CS-overlap"], names=(OURS, "CS-overlap"))
    assert result.sentence == (
        "SCS-SupCon is 0.7 above CS-overlap on average over 5 pairs (95% interval 0.409 to 0.991;"
        " t = 6.67, p = 0.0026): more than chance explains."
    )
    back = paired_t(folds["CS-overlap"], folds[OURS], names=("CS-overlap", OURS))
    assert back.t == -result.t
    assert "0.7 below" in back.sentence


def test_without_spread_the_signs_are_tested():
    result = paired_t([1.3, 2.3, 3.3], [1.0, 2.0, 3.0], names=("a", "b"))
    assert (result.p, result.low, result.high) == (0.25, -math.inf, math.inf)
    assert "no spread" in result.warnings[0]
    assert result.sentence == (
        "a is 0.3 above b in each of 3 pairs; without any spread only the signs can be tested"
        " (p = 0.25): chance alone could explain it."
    )
    many = paired_t([1.0] * 40, [0.0] * 40, names=("a", "b"))
    assert many.p == 2 / 2**40
    assert "more than chance explains" in many.sentence
    same = corrected_t([1.0, 2.0], [1.0, 2.0], test_per_train=0.25, names=("a", "b"))
    assert (same.t, same.p) == (0.0, 1.0)
    assert "a is level with b in each of 2 pairs" in same.sentence


@pytest.mark.parametrize("share", [0.0, -0.25, math.nan])
def test_corrected_t_needs_a_share(share):
    with pytest.raises(UserError, match="must be positive"):
        corrected_t([1.0, 2.0], [1.0, 3.0], test_per_train=share, names=("a", "b"))
