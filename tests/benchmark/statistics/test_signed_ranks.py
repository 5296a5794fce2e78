from itertools import product

import pytest
import scikit_posthocs
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from scs_supcon.benchmark.statistics import holm, wilcoxon, wilcoxon_holm
from scs_supcon.errors import UserError

OURS, OVERLAP = "SCS-SupCon", "CS-overlap"


def reference_p(gaps: list[int]) -> float:
    """Count, over all choices of signs, the rank sums at least as far out as the one seen."""
    kept = [gap for gap in gaps if gap]
    sizes = [abs(gap) for gap in kept]
    ranks = [sum(s < size for s in sizes) + (sizes.count(size) + 1) / 2 for size in sizes]
    seen = sum(rank for rank, gap in zip(ranks, kept, strict=True) if gap > 0)
    sums = [
        sum(rank for rank, sign in zip(ranks, signs, strict=True) if sign)
        for signs in product((0, 1), repeat=len(kept))
    ]
    low = sum(total <= seen for total in sums)
    high = sum(total >= seen for total in sums)
    return min(1.0, 2 * min(low, high) / len(sums))


def test_six_and_eleven_columns_of_the_paper(main, pooled):
    six = wilcoxon(main[OURS], main[OVERLAP], names=(OURS, OVERLAP))
    assert (six.n, six.up, six.down) == (6, 21.0, 0.0)
    assert six.p == six.floor == 0.03125
    assert six.warnings == ()
    eleven = wilcoxon(pooled[OURS], pooled[OVERLAP], names=(OURS, OVERLAP))
    assert eleven.p == pytest.approx(0.00098, abs=5e-6)
    assert eleven.sentence == (
        "SCS-SupCon is ahead of CS-overlap in 11 and behind in 0 of 11 pairs"
        " (signed ranks, p = 0.00098): more than chance explains."
    )


def test_five_folds_cannot_reach_the_level(folds):
    result = wilcoxon(folds[OURS], folds["SupCon"], names=(OURS, "SupCon"))
    assert result.p == result.floor == 0.0625
    assert "5 differing pairs cannot give p below 0.0625" in result.warnings[0]


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
def test_holm_rejects_what_stepping_down_rejects(p):
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


def test_no_power_and_shared_columns_are_said(main):
    groups = ["C10", "C100", "CUB", "Dogs", "Dogs", "VOC"]
    result = wilcoxon_holm(main, groups=groups)
    power, shared = result.warnings
    assert "Holm multiplies the smallest of 105 by 105" in power
    assert "Dogs" in shared
    assert not any(pair.significant for pair in result.pairs)
    assert result.sentence.endswith("0 differ after Holm's correction.")


def test_unknown_control_is_refused(main):
    with pytest.raises(UserError, match="'SCS' is not among"):
        wilcoxon_holm(main, control="SCS")
