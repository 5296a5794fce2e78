"""Many methods over many columns: Friedman, then Nemenyi or Bonferroni–Dunn.

R_j is the mean rank of method j among K methods over N columns. All tests below compare gaps
between mean ranks with the standard error sqrt(K (K + 1) / (6 N)). Formulas: J. Demšar,
"Statistical Comparisons of Classifiers over Multiple Data Sets", JMLR 7, 2006.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import scikit_posthocs
from scipy import stats

from scs_supcon.benchmark.statistics.scores import (
    Scores,
    average_ranks,
    check_control,
    join,
    p_text,
    rank_rows,
    score_matrix,
    shared_columns,
    significance_text,
)


@dataclass(frozen=True)
class Friedman:
    """Friedman's test of whether any method differs from the others.

    Attributes:
        ranks: mean rank of every method, best first.
        chi2: the paper's statistic, without correction for ties.
        chi2_ties: the statistic corrected for ties.
        f: Iman and Davenport's F computed from `chi2`; less conservative.
        p: p-value of `chi2`; likewise `p_ties`, `p_f`.
    """

    ranks: dict[str, float]
    columns: int
    chi2: float
    p: float
    chi2_ties: float
    p_ties: float
    f: float
    p_f: float
    warnings: tuple[str, ...]
    sentence: str


@dataclass(frozen=True)
class RankGap:
    """Two methods: the gap between their mean ranks, and p corrected for multiple tests."""

    first: str
    second: str
    gap: float
    p: float
    significant: bool


@dataclass(frozen=True)
class Nemenyi:
    """Nemenyi's test of all pairs, which differ if their mean ranks differ by more than `cd`.

    Attributes:
        ranks: mean rank of every method, best first.
        q: upper alpha point of the studentised range for K groups, divided by sqrt(2).
        pairs: every pair of methods, the better one first.
    """

    ranks: dict[str, float]
    alpha: float
    q: float
    cd: float
    pairs: tuple[RankGap, ...]
    warnings: tuple[str, ...]
    sentence: str


@dataclass(frozen=True)
class BonferroniDunn:
    """Test of a control against the others: fewer comparisons than Nemenyi, so a smaller `cd`.

    Attributes:
        pairs: the control against every other method; a positive gap means the control is better.
    """

    ranks: dict[str, float]
    control: str
    alpha: float
    q: float
    cd: float
    pairs: tuple[RankGap, ...]
    warnings: tuple[str, ...]
    sentence: str


def friedman(
    scores: Scores, *, alpha: float = 0.05, groups: Sequence[str] | None = None
) -> Friedman:
    """Test whether all methods have the same mean rank.

    chi2 = 12 N / (K (K + 1)) [sum_j R_j² − K (K + 1)² / 4]

    Args:
        scores: one score per column for every method; higher is better.
        alpha: significance level of the sentence.
        groups: the dataset of each column; columns of one dataset are not independent.
    """
    ranks = rank_rows(score_matrix(scores))
    k, n = ranks.shape
    chi2 = float(12 * n / (k * (k + 1)) * (np.sum(ranks.mean(axis=1) ** 2) - k * (k + 1) ** 2 / 4))
    # scipy's friedmanchisquare needs three methods, and some ranks that are not tied.
    correction = float(np.mean([stats.tiecorrect(column) for column in ranks.T]))
    chi2_ties = chi2 / correction if correction > 0 else 0.0
    remainder = n * (k - 1) - chi2
    f = (n - 1) * chi2 / remainder if remainder > 1e-9 else math.inf
    p_ties = float(stats.chi2.sf(chi2_ties, k - 1))
    warnings = shared_columns(groups, n)
    if n <= 10:
        warnings += (f"With {n} columns the χ² distribution is only a rough guide to p.",)
    return Friedman(
        ranks=_best_first(scores),
        columns=n,
        chi2=chi2,
        p=float(stats.chi2.sf(chi2, k - 1)),
        chi2_ties=chi2_ties,
        p_ties=p_ties,
        f=f,
        p_f=float(stats.f.sf(f, k - 1, (k - 1) * (n - 1))),
        warnings=warnings,
        sentence=f"Friedman's test of the mean ranks of {k} methods over {n} columns:"
        f" χ² = {chi2_ties:.2f} ({k - 1} degrees of freedom, corrected for ties,"
        f" {p_text(p_ties)}): {significance_text(p_ties, alpha)}.",
    )


def nemenyi(scores: Scores, *, alpha: float = 0.05, groups: Sequence[str] | None = None) -> Nemenyi:
    """Test for every pair of methods whether the mean ranks differ by more than the CD.

    Args:
        scores: one score per column for every method; higher is better.
        alpha: probability of any false difference among all pairs.
        groups: the dataset of each column; columns of one dataset are not independent.
    """
    values = score_matrix(scores)
    k, n = values.shape
    ranks = _best_first(scores)
    cd = critical_difference(k, n, alpha=alpha)
    p = scikit_posthocs.posthoc_nemenyi_friedman(-values.T).to_numpy()
    row = {name: index for index, name in enumerate(scores)}
    pairs = tuple(
        RankGap(
            first,
            second,
            ranks[second] - ranks[first],
            float(p[row[first], row[second]]),
            ranks[second] - ranks[first] > cd,
        )
        for first, second in combinations(ranks, 2)
    )
    best = next(iter(ranks))
    worse = [pair.second for pair in pairs if pair.first == best and pair.significant]
    count = sum(pair.significant for pair in pairs)
    return Nemenyi(
        ranks=ranks,
        alpha=alpha,
        q=cd / _standard_error(k, n),
        cd=cd,
        pairs=pairs,
        warnings=_no_power(cd, k, n) + shared_columns(groups, n),
        sentence=f"Mean ranks must differ by more than {cd:.2f}; {count} of {len(pairs)} pairs do."
        f" {best} has the best mean rank ({ranks[best]:.2f}) and differs from"
        f" {join(worse) or 'no other method'}.",
    )


def critical_difference(methods: int, columns: int, *, alpha: float = 0.05) -> float:
    """Return Nemenyi's CD = q sqrt(K (K + 1) / (6 N)).

    Printed tables of q end at 10 methods; here q is computed for any number.
    """
    q = float(stats.studentized_range.ppf(1 - alpha, methods, math.inf)) / math.sqrt(2)
    return q * _standard_error(methods, columns)


def bonferroni_dunn(
    scores: Scores, control: str, *, alpha: float = 0.05, groups: Sequence[str] | None = None
) -> BonferroniDunn:
    """Test a control against every other method; q is the normal quantile of alpha / (2 (K − 1)).

    Args:
        scores: one score per column for every method; higher is better.
        control: the method to compare with the others, chosen before the scores are known.
        alpha: probability of any false difference among the K − 1 comparisons.
        groups: the dataset of each column; columns of one dataset are not independent.
    """
    k, n = score_matrix(scores).shape
    check_control(control, scores)
    ranks = _best_first(scores)
    error = _standard_error(k, n)
    q = float(stats.norm.isf(alpha / (2 * (k - 1))))
    cd = q * error
    pairs = []
    for other in ranks:
        if other != control:
            gap = ranks[other] - ranks[control]
            p = min(1.0, 2 * (k - 1) * float(stats.norm.sf(abs(gap) / error)))
            pairs.append(RankGap(control, other, gap, p, abs(gap) > cd))
    different = [pair.second for pair in pairs if pair.significant]
    return BonferroniDunn(
        ranks=ranks,
        control=control,
        alpha=alpha,
        q=q,
        cd=cd,
        pairs=tuple(pairs),
        warnings=_no_power(cd, k, n) + shared_columns(groups, n),
        sentence=f"A mean rank must differ by more than {cd:.2f} from that of {control}"
        f" ({ranks[control]:.2f}); this holds for {join(different) or 'no other method'}.",
    )


def _best_first(scores: Scores) -> dict[str, float]:
    ranks = average_ranks(scores)
    return {name: ranks[name] for name in sorted(ranks, key=lambda name: ranks[name])}


def _standard_error(k: int, n: int) -> float:
    return math.sqrt(k * (k + 1) / (6 * n))


def _no_power(cd: float, k: int, n: int) -> tuple[str, ...]:
    """Return a warning if the CD is a large part of the largest possible gap, K − 1."""
    if cd < (k - 1) / 2:
        return ()
    scope = "no" if cd >= k - 1 else "almost no"
    return (
        f"With {k} methods on {n} columns {scope} differences can be shown: mean ranks can differ"
        f" by {k - 1} at most and must differ by {cd:.2f}. A missing difference does not mean that"
        " methods are equal. Compare fewer methods, or use more columns: four times as many halve"
        " the required difference.",
    )
