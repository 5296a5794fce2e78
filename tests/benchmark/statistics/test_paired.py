"""Paired tests, effect sizes and intervals, against plain loops, the paper and other libraries."""

import math
from itertools import product

import numpy as np
import pytest
import scikit_posthocs
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from scs_supcon.benchmark.statistics import (
    bootstrap,
    cohens_dz,
    corrected_t,
    holm,
    mcnemar,
    paired_t,
    wilcoxon,
    wilcoxon_holm,
)
from scs_supcon.errors import UserError

OURS, OVERLAP = "SCS-SupCon", "CS-overlap"


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


def test_the_sentence_states_direction_and_significance(folds):
    result = paired_t(folds[OURS], folds["CS-overlap"], names=(OURS, "CS-overlap"))
    assert result.sentence == (
        "SCS-SupCon is 0.7 above CS-overlap on average over 5 pairs (95% interval 0.409 to 0.991;"
        " t = 6.67, p = 0.0026): significant at the 5% level."
    )
    back = paired_t(folds["CS-overlap"], folds[OURS], names=("CS-overlap", OURS))
    assert back.t == -result.t
    assert "0.7 below" in back.sentence


def test_equal_differences_are_tested_by_their_signs():
    result = paired_t([1.3, 2.3, 3.3], [1.0, 2.0, 3.0], names=("a", "b"))
    assert (result.p, result.low, result.high) == (0.25, -math.inf, math.inf)
    assert "no spread" in result.warnings[0]
    assert result.sentence == (
        "a is 0.3 above b in each of 3 pairs; without any spread only the signs can be tested"
        " (p = 0.25): not significant at the 5% level."
    )
    many = paired_t([1.0] * 40, [0.0] * 40, names=("a", "b"))
    assert many.p == 2 / 2**40
    assert many.sentence.endswith(": significant at the 5% level.")
    same = corrected_t([1.0, 2.0], [1.0, 2.0], test_per_train=0.25, names=("a", "b"))
    assert (same.t, same.p) == (0.0, 1.0)
    assert "a is equal to b in each of 2 pairs" in same.sentence


@pytest.mark.parametrize("ratio", [0.0, -0.25, math.nan])
def test_corrected_t_needs_a_positive_ratio(ratio):
    with pytest.raises(UserError, match="must be positive"):
        corrected_t([1.0, 2.0], [1.0, 3.0], test_per_train=ratio, names=("a", "b"))


def reference_p(gaps: list[int]) -> float:
    """Count, over all choices of signs, the rank sums at least as extreme as the observed one."""
    unequal = [gap for gap in gaps if gap]
    sizes = [abs(gap) for gap in unequal]
    ranks = [sum(s < size for s in sizes) + (sizes.count(size) + 1) / 2 for size in sizes]
    observed = sum(rank for rank, gap in zip(ranks, unequal, strict=True) if gap > 0)
    sums = [
        sum(rank for rank, sign in zip(ranks, signs, strict=True) if sign)
        for signs in product((0, 1), repeat=len(unequal))
    ]
    low = sum(total <= observed for total in sums)
    high = sum(total >= observed for total in sums)
    return min(1.0, 2 * min(low, high) / len(sums))


def test_six_and_eleven_columns_of_the_paper(main, pooled):
    six = wilcoxon(main[OURS], main[OVERLAP], names=(OURS, OVERLAP))
    assert (six.n, six.up, six.down) == (6, 21.0, 0.0)
    assert six.p == six.floor == 0.03125
    assert six.warnings == ()
    eleven = wilcoxon(pooled[OURS], pooled[OVERLAP], names=(OURS, OVERLAP))
    assert eleven.p == pytest.approx(0.00098, abs=5e-6)
    assert eleven.sentence == (
        "SCS-SupCon is better than CS-overlap in 11 and worse in 0 of 11 pairs"
        " (signed ranks, p = 0.00098): significant at the 5% level."
    )


def test_five_folds_cannot_be_significant(folds):
    result = wilcoxon(folds[OURS], folds["SupCon"], names=(OURS, "SupCon"))
    assert result.p == result.floor == 0.0625
    assert "With 5 differing pairs, p cannot be below 0.0625" in result.warnings[0]


def test_equal_pairs_are_left_out_and_counted():
    result = wilcoxon([1.0, 2.0, 5.0, 4.0], [1.0, 2.0, 3.0, 3.0], names=("a", "b"))
    assert (result.n, result.up) == (2, 3.0)
    assert result.warnings[-1] == "2 equal pairs were left out."
    nothing = wilcoxon([1.0, 2.0], [1.0, 2.0], names=("a", "b"))
    assert (nothing.n, nothing.p, nothing.floor) == (0, 1.0, 1.0)


@given(st.lists(st.integers(-4, 4), min_size=2, max_size=9))
def test_p_is_exact_with_ties_and_zeros(gaps):
    result = wilcoxon([float(gap) for gap in gaps], [0.0] * len(gaps), names=("a", "b"))
    assert result.p == pytest.approx(reference_p(gaps), abs=1e-12)


@pytest.mark.parametrize("n", [20, 50])
def test_p_equals_scipy_without_ties(n):
    gaps = [(-1) ** (i // 3) * (i + 1) + 0.25 for i in range(n)]
    theirs = stats.wilcoxon(gaps, method="exact").pvalue
    assert wilcoxon(gaps, [0.0] * n, names=("a", "b")).p == pytest.approx(theirs, rel=1e-9)


def test_many_pairs_use_the_normal_distribution():
    gaps = [(-1.0) ** (i // 3) * (i + 1) + 0.02 * i for i in range(201)]

    def normal(n: int) -> float:
        return float(stats.wilcoxon(gaps[:n], method="asymptotic").pvalue)

    exact = wilcoxon(gaps[:200], [0.0] * 200, names=("a", "b")).p
    assert exact != normal(200)
    assert exact == pytest.approx(normal(200), rel=0.01)
    assert wilcoxon(gaps, [0.0] * 201, names=("a", "b")).p == normal(201)


def test_holm_by_hand():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx((0.03, 0.06, 0.06, 0.02))
    assert holm([0.5, 0.9]) == (1.0, 1.0)
    assert holm([]) == ()


@given(st.lists(st.floats(0, 1), min_size=1, max_size=12))
def test_holm_equals_the_step_down_procedure(p):
    order = sorted(range(len(p)), key=lambda i: p[i])
    rejected = set()
    for step, i in enumerate(order):
        if p[i] * (len(p) - step) >= 0.05:
            break
        rejected.add(i)
    assert {i for i, adjusted in enumerate(holm(p)) if adjusted < 0.05} == rejected


def test_pairwise_p_equals_scikit_posthocs(resnet18):
    methods = {name: resnet18[name] for name in ("SupCon", "PCL", "CSTCN", OURS)}
    scores = {name: [*row, row[0] - 0.3 * i] for i, (name, row) in enumerate(methods.items())}
    theirs = scikit_posthocs.posthoc_wilcoxon(list(scores.values()), p_adjust="holm").to_numpy()
    place = {name: i for i, name in enumerate(scores)}
    result = wilcoxon_holm(scores)
    assert len(result.pairs) == 6
    for pair in result.pairs:
        assert pair.p_holm == pytest.approx(theirs[place[pair.first], place[pair.second]])


def test_against_a_control(pooled):
    result = wilcoxon_holm(pooled, control=OURS)
    assert len(result.pairs) == 14
    assert all(pair.first == OURS and pair.significant for pair in result.pairs)
    assert result.warnings == ()
    assert result.sentence.startswith("Of 14 pairs compared by signed ranks over 11 columns, 14")


def test_missing_power_and_shared_columns_give_warnings(main):
    groups = ["C10", "C100", "CUB", "Dogs", "Dogs", "VOC"]
    result = wilcoxon_holm(main, groups=groups)
    power, shared = result.warnings
    assert "Holm multiplies the smallest of 105 by 105" in power
    assert "Dogs" in shared
    assert not any(pair.significant for pair in result.pairs)
    assert result.sentence.endswith("0 differ after Holm's correction.")


def test_an_unknown_control_is_an_error(main):
    with pytest.raises(UserError, match="'SCS' is not among"):
        wilcoxon_holm(main, control="SCS")


def correct(both: int, only_first: int, only_second: int, neither: int):
    first = [True] * (both + only_first) + [False] * (only_second + neither)
    second = [True] * both + [False] * only_first + [True] * only_second + [False] * neither
    return np.array(first), np.array(second)


def binomial_p(gained: int, lost: int) -> float:
    """Twice the smaller tail of fair coin tosses."""
    n = gained + lost
    tail = sum(math.comb(n, i) for i in range(min(gained, lost) + 1))
    return min(1.0, 2 * tail / 2**n)


@pytest.mark.parametrize(("gained", "lost"), [(9, 1), (1, 9), (5, 5), (6, 0), (14, 10), (0, 0)])
def test_few_disagreements_give_the_exact_p(gained, lost):
    result = mcnemar(*correct(50, gained, lost, 7), names=("a", "b"))
    assert (result.both, result.neither) == (50, 7)
    assert (result.only_first, result.only_second) == (gained, lost)
    assert result.exact
    assert result.chi2 is None
    assert result.p == pytest.approx(binomial_p(gained, lost), rel=1e-12)


def test_many_disagreements_use_chi_square():
    result = mcnemar(*correct(700, 60, 30, 40), names=("SCS-SupCon", "SupCon"))
    assert not result.exact
    assert result.chi2 == pytest.approx(29**2 / 90)
    # with one degree of freedom the upper tail of χ² is erfc(sqrt(χ² / 2))
    assert result.p == pytest.approx(math.erfc(math.sqrt(29**2 / 90 / 2)), rel=1e-9)
    assert result.p == pytest.approx(binomial_p(60, 30), rel=0.1)
    assert result.sentence == (
        "Of 830 images, 60 are correct only with SCS-SupCon and 30 only with SupCon (p = 0.0022):"
        " significant at the 5% level."
    )


def test_an_even_split_gives_p_1():
    result = mcnemar(*correct(10, 40, 40, 0), names=("a", "b"))
    assert (result.chi2, result.p) == (0.0, 1.0)
    assert "not significant" in result.sentence


def test_too_few_disagreements_give_a_warning():
    result = mcnemar(*correct(900, 5, 0, 10), names=("a", "b"))
    assert result.p == 0.0625
    assert "disagree about only 5 images, so p cannot be below 0.0625" in result.warnings[0]
    assert mcnemar(*correct(900, 6, 0, 10), names=("a", "b")).warnings == ()


def test_mcnemar_needs_equal_lengths():
    with pytest.raises(UserError, match=r"one entry per image and method, got \(3,\) and \(2,\)"):
        mcnemar([0, 1, 1], [0, 1], names=("a", "b"))


def test_dz_is_t_over_the_root_of_the_pairs(folds):
    effect = cohens_dz(folds[OURS], folds[OVERLAP])
    t = paired_t(folds[OURS], folds[OVERLAP], names=(OURS, OVERLAP)).t
    assert effect == pytest.approx(t / math.sqrt(5))
    assert effect == pytest.approx(2.985, abs=5e-4)


def test_dz_without_spread():
    assert cohens_dz([1.3, 2.3], [1.0, 2.0]) == math.inf
    assert cohens_dz([1.0, 2.0], [1.3, 2.3]) == -math.inf
    assert cohens_dz([1.0, 2.0], [1.0, 2.0]) == 0.0


def test_bootstrap_of_an_accuracy_agrees_with_the_binomial_interval():
    flags = np.arange(1000) < 800
    result = bootstrap(flags, np.random.default_rng(0), resamples=4000)
    spread = 1.96 * math.sqrt(0.8 * 0.2 / 1000)
    assert result.value == 0.8
    assert result.low == pytest.approx(0.8 - spread, abs=0.003)
    assert result.high == pytest.approx(0.8 + spread, abs=0.003)
    assert result.warnings == ()
    assert result.sentence.startswith("0.8, with 0.77")


def test_a_bootstrap_depends_only_on_the_state_of_the_generator():
    rows = np.linspace(0, 1, 40) ** 2
    again = [bootstrap(rows, np.random.default_rng(7), resamples=200) for _ in range(2)]
    other = bootstrap(rows, np.random.default_rng(8), resamples=200)
    assert again[0] == again[1]
    assert again[0].low != other.low


def test_a_bootstrap_of_few_rows_gives_a_warning(folds):
    result = bootstrap(folds[OURS], np.random.default_rng(0), resamples=100)
    assert "5 rows are too few" in result.warnings[0]
    with pytest.raises(UserError, match="at least 2 rows, got 1"):
        bootstrap([1.0], np.random.default_rng(0))
