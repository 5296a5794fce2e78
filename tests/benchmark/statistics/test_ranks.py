"""Rank tests against plain loops, the paper and other libraries."""

import math

import numpy as np
import pytest
import scikit_posthocs
from scipy import stats

from scs_supcon.benchmark.statistics import (
    bonferroni_dunn,
    critical_difference,
    friedman,
    nemenyi,
)
from scs_supcon.errors import UserError


def reference_friedman(scores: dict[str, list[float]]) -> tuple[float, float]:
    """The paper's statistic, and the same divided by 1 − Σ(g³ − g) / (N (K³ − K)) for ties."""
    k, n = len(scores), len(next(iter(scores.values())))
    total, ties = 0.0, 0
    for name, row in scores.items():
        rank = 0.0
        for column, score in enumerate(row):
            rivals = [scores[other][column] for other in scores if other != name]
            equal = sum(rival == score for rival in rivals) + 1
            rank += sum(rival > score for rival in rivals) + (equal + 1) / 2
            # a tied group of g holds g members that each add g² − 1
            ties += equal**2 - 1
        total += (rank / n) ** 2
    chi2 = 12 * n / (k * (k + 1)) * (total - k * (k + 1) ** 2 / 4)
    return chi2, chi2 / (1 - ties / (n * (k**3 - k)))


def blocks(scores: dict[str, list[float]]) -> np.ndarray:
    """Return columns as rows, negated, as scikit-posthocs gives low scores low ranks."""
    return -np.array(list(scores.values())).T


def test_friedman_on_the_main_table(main):
    result = friedman(main)
    assert result.columns == 6
    assert result.chi2 == pytest.approx(60.992, abs=5e-4)
    assert result.p == pytest.approx(7.9e-8, rel=0.01)
    assert result.chi2_ties == pytest.approx(61.615, abs=5e-4)
    assert result.p_ties == pytest.approx(6.1e-8, rel=0.01)
    assert result.f == pytest.approx(13.254, abs=5e-4)
    assert result.p_f == pytest.approx(1.5e-14, rel=0.05)
    assert list(result.ranks)[:3] == ["SCS-SupCon", "CSTCN", "CS-overlap"]
    assert result.ranks["SCS-SupCon"] == pytest.approx(1.0833, abs=5e-5)
    assert "χ² = 61.62" in result.sentence
    assert "p < 0.0001" in result.sentence
    assert result.sentence.endswith(": significant at the 5% level.")


@pytest.mark.parametrize(
    ("name", "chi2", "best"),
    [("resnet18", 66.00, {"SCS-SupCon": 1.10, "CSTCN": 2.70, "Circle": 4.40}),
     ("pooled", 114.425, {"SCS-SupCon": 1.091, "CSTCN": 3.409, "CS-overlap": 4.773})],
)  # fmt: skip
def test_friedman_on_the_other_tables(name, chi2, best, request):
    result = friedman(request.getfixturevalue(name))
    assert result.chi2 == pytest.approx(chi2, abs=5e-3)
    assert dict(list(result.ranks.items())[:3]) == pytest.approx(best, abs=5e-4)


@pytest.mark.parametrize("name", ["main", "resnet18", "pooled", "folds"])
def test_friedman_equals_the_plain_loop_and_scipy(name, request):
    scores = request.getfixturevalue(name)
    result = friedman(scores)
    assert (result.chi2, result.chi2_ties) == pytest.approx(reference_friedman(scores), rel=1e-12)
    theirs = stats.friedmanchisquare(*scores.values())
    assert (result.chi2_ties, result.p_ties) == pytest.approx(tuple(theirs), rel=1e-9)


def test_friedman_when_all_columns_agree():
    result = friedman({"a": [3.0, 4.0, 9.0], "b": [2.0, 3.0, 8.0], "c": [1.0, 2.0, 7.0]})
    assert result.chi2 == result.chi2_ties == pytest.approx(6.0)
    assert result.f == math.inf
    assert result.p_f == 0.0


def test_friedman_when_everything_is_tied():
    result = friedman({"a": [1.0, 1.0], "b": [1.0, 1.0], "c": [1.0, 1.0]})
    assert (result.chi2, result.chi2_ties, result.f) == pytest.approx((0.0, 0.0, 0.0))
    assert result.p_ties == 1.0
    assert "not significant" in result.sentence


def test_friedman_warns_about_few_and_shared_columns(main, pooled):
    few, shared = friedman(main, groups=["C10", "C100", "CUB", "Dogs", "Dogs", "VOC"]).warnings[
        ::-1
    ]
    assert "With 6 columns" in few
    assert "4 and 5 (Dogs)" in shared
    assert friedman(pooled).warnings == ()


def test_nemenyi_on_the_main_table(main):
    result = nemenyi(main)
    assert result.q == pytest.approx(3.3912, abs=5e-5)
    assert result.cd == pytest.approx(8.7561, abs=5e-5)
    from_best = {pair.second: pair for pair in result.pairs if pair.first == "SCS-SupCon"}
    gaps = {"SupCon": 8.50, "Circle": 8.83, "Baseline": 11.92, "BYOL": 12.75, "SimCLR": 13.75,
            "CS-SupCon": 6.58, "CS-overlap": 3.00, "CSTCN": 2.92}  # fmt: skip
    assert {name: from_best[name].gap for name in gaps} == pytest.approx(gaps, abs=5e-3)
    apart = {name for name, pair in from_best.items() if pair.significant}
    assert apart == {"Circle", "Baseline", "BYOL", "SimCLR"}
    assert "more than 8.76" in result.sentence
    assert "SCS-SupCon has the best mean rank (1.08)" in result.sentence
    assert "differs from Circle, Baseline, BYOL and SimCLR." in result.sentence


def test_nemenyi_on_the_other_tables(resnet18, pooled):
    small = nemenyi(resnet18)
    assert (small.q, small.cd) == pytest.approx((3.4260, 10.316), abs=5e-4)
    large = nemenyi(pooled)
    assert large.cd == pytest.approx(6.467, abs=5e-4)
    apart = {p.second for p in large.pairs if p.first == "SCS-SupCon" and p.significant}
    assert apart == {"PCL", "PaCo", "CS-SupCon", "SupCon", "Baseline", "BYOL", "SimCLR"}


def test_critical_difference_for_any_number_of_methods():
    assert critical_difference(15, 6) == pytest.approx(8.7561, abs=5e-5)
    assert critical_difference(16, 6) == pytest.approx(9.4173, abs=5e-5)
    # Demšar's printed q for 2, 5 and 10 methods
    for methods, q in [(2, 1.960), (5, 2.728), (10, 3.164)]:
        error = math.sqrt(methods * (methods + 1) / 6)
        assert critical_difference(methods, 1) / error == pytest.approx(q, abs=1e-3)


@pytest.mark.parametrize("name", ["main", "resnet18", "pooled", "folds"])
def test_nemenyi_p_equals_scikit_posthocs(name, request):
    scores = request.getfixturevalue(name)
    theirs = scikit_posthocs.posthoc_nemenyi_friedman(blocks(scores)).to_numpy()
    place = {method: i for i, method in enumerate(scores)}
    result = nemenyi(scores)
    for pair in result.pairs:
        assert pair.p == pytest.approx(theirs[place[pair.first], place[pair.second]], abs=1e-9)
        assert pair.significant == (pair.p < result.alpha)


def test_missing_power_gives_a_warning(main, folds):
    (warning,) = nemenyi(main).warnings
    assert "15 methods on 6 columns almost no differences can be shown" in warning
    assert "differ by 14 at most and must differ by 8.76" in warning
    (hopeless,) = nemenyi({name: row[:2] for name, row in main.items()}).warnings
    assert "15 methods on 2 columns no differences can be shown" in hopeless
    many = {name: row * 10 for name, row in folds.items()}
    assert nemenyi(many).warnings == ()
    assert len(nemenyi(main, groups=["a", "b", "c", "d", "d", "e"]).warnings) == 2


def test_bonferroni_dunn_on_the_main_table(main):
    result = bonferroni_dunn(main, "SCS-SupCon")
    assert (result.q, result.cd) == pytest.approx((2.9137, 7.5232), abs=5e-5)
    apart = {pair.second for pair in result.pairs if pair.significant}
    assert apart == {"SupCon", "Circle", "Baseline", "BYOL", "SimCLR"}
    assert len(result.pairs) == 14
    assert all(pair.significant == (pair.p < 0.05) for pair in result.pairs)
    assert "from that of SCS-SupCon (1.08)" in result.sentence


def test_bonferroni_dunn_p_equals_scikit_posthocs(main):
    control = list(main).index("SCS-SupCon")
    theirs = scikit_posthocs.posthoc_demsar(blocks(main), control=control, p_adjust="bonferroni")
    by_name = {
        name: np.nanmax([theirs.iloc[i, control], theirs.iloc[control, i]])
        for i, name in enumerate(main)
        if i != control
    }
    ours = {pair.second: pair.p for pair in bonferroni_dunn(main, "SCS-SupCon").pairs}
    assert ours == pytest.approx(by_name, abs=1e-9)


def test_bonferroni_dunn_with_a_control_in_the_middle(main):
    gaps = {pair.second: pair.gap for pair in bonferroni_dunn(main, "SupCon").pairs}
    assert gaps["SCS-SupCon"] == pytest.approx(-8.5)
    assert gaps["SimCLR"] == pytest.approx(5.25)


def test_an_unknown_control_is_an_error(main):
    with pytest.raises(UserError, match=r"'SCS-SupCom' is not among.*did you mean 'SCS-SupCon'"):
        bonferroni_dunn(main, "SCS-SupCom")
