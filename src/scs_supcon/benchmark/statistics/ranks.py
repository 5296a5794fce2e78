"""Many methods over many columns: Friedman, then Nemenyi or Bonferroni–Dunn.

R_j is the mean rank of method j among K methods over N columns, and every test below compares
rank gaps with the same standard error sqrt(K (K + 1) / (6 N)). Formulas: J. Demšar, "Statistical
Comparisons of Classifiers over Multiple Data Sets", JMLR 7, 2006.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from scipy import stats

from scs_supcon.benchmark.statistics.scores import (
    Floats,
    Scores,
    average_ranks,
    check_control,
    rank_rows,
    shared_columns,
    table,
)
from scs_supcon.benchmark.statistics.wording import join, p_text, verdict


@dataclass(frozen=True)
class Friedman:
    """Does any method stand out?

    Attributes:
        ranks: Mean rank of every method, best first.
        chi2: The paper's statistic, which takes no account of ties.
        chi2_ties: The same corrected for ties; without ties the two are equal.
        f: Iman and Davenport's F, made from `chi2`; less conservative.
        p: Belongs to `chi2`; likewise `p_ties`, `p_f`.
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
    """Two methods: how far their mean ranks lie apart, and p after correction for many tests."""

    first: str
    second: str
    gap: float
    p: float
    significant: bool


@dataclass(frozen=True)
class Nemenyi:
    """Which pairs differ? Those whose mean ranks differ by more than `cd`.

    Attributes:
        ranks: Mean rank of every method, best first.
        q: Upper alpha point of the studentised range for K groups, divided by sqrt(2).
        pairs: Every pair of methods, the better one first.
        cliques: The bars of a critical-difference diagram.
    """

    ranks: dict[str, float]
    alpha: float
    q: float
    cd: float
    pairs: tuple[RankGap, ...]
    cliques: tuple[tuple[str, ...], ...]
    warnings: tuple[str, ...]
    sentence: str


@dataclass(frozen=True)
class BonferroniDunn:
    """Which methods differ from the control? Fewer questions than Nemenyi, so a smaller `cd`.

    Attributes:
        pairs: The control against every other method; a positive gap means the control is better.
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
    """Test whether all methods could have the same mean rank.

    chi2 = 12 N / (K (K + 1)) [sum_j R_j² − K (K + 1)² / 4]

    Args:
        scores: One score per column for every method; higher is better.
        alpha: Level the sentence speaks of.
        groups: What each column was measured on; columns of one group are not independent.
    """
    values = table(scores)
    k, n = values.shape
    means = rank_rows(values).mean(axis=1)
    chi2 = float(12 * n / (k * (k + 1)) * (np.sum(means**2) - k * (k + 1) ** 2 / 4))
    untied = _untied_share(values)
    chi2_ties = chi2 / untied if untied > 0 else 0.0
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
        sentence=f"Over {n} columns the mean ranks of {k} methods differ by"
        f" χ² = {chi2_ties:.2f} ({k - 1} degrees of freedom, corrected for ties,"
        f" {p_text(p_ties)}): {verdict(p_ties, alpha)}.",
    )


def nemenyi(scores: Scores, *, alpha: float = 0.05, groups: Sequence[str] | None = None) -> Nemenyi:
    """Compare every method with every other: do their mean ranks lie further apart than the CD?

    Args:
        scores: One score per column for every method; higher is better.
        alpha: Chance of any false difference among all pairs.
        groups: What each column was measured on; columns of one group are not independent.
    """
    k, n = table(scores).shape
    ranks = _best_first(scores)
    error = _standard_error(k, n)
    cd = critical_difference(k, n, alpha=alpha)
    names = list(combinations(ranks, 2))
    gaps = np.array([ranks[second] - ranks[first] for first, second in names])
    p = stats.studentized_range.sf(gaps / error * math.sqrt(2), k, math.inf)
    pairs = tuple(
        RankGap(first, second, float(gap), float(p_pair), bool(gap > cd))
        for (first, second), gap, p_pair in zip(names, gaps, p, strict=True)
    )
    best = next(iter(ranks))
    worse = [pair.second for pair in pairs if pair.first == best and pair.significant]
    apart = sum(pair.significant for pair in pairs)
    return Nemenyi(
        ranks=ranks,
        alpha=alpha,
        q=cd / error,
        cd=cd,
        pairs=pairs,
        cliques=cliques(ranks, cd),
        warnings=_no_power(cd, k, n) + shared_columns(groups, n),
        sentence=f"Mean ranks must differ by more than {cd:.2f}; {apart} of {len(pairs)} pairs do."
        f" {best} has the best mean rank ({ranks[best]:.2f}) and is set apart from"
        f" {join(worse) or 'no other method'}.",
    )


def critical_difference(methods: int, columns: int, *, alpha: float = 0.05) -> float:
    """Return Nemenyi's CD = q sqrt(K (K + 1) / (6 N)), before anything has been run.

    Printed tables of q end at 10 methods; the studentised range gives it for any number.
    """
    q = float(stats.studentized_range.ppf(1 - alpha, methods, math.inf)) / math.sqrt(2)
    return q * _standard_error(methods, columns)


def bonferroni_dunn(
    scores: Scores, control: str, *, alpha: float = 0.05, groups: Sequence[str] | None = None
) -> BonferroniDunn:
    """Compare one control with every other method: q is the normal point of alpha / (2 (K − 1)).

    Args:
        scores: One score per column for every method; higher is better.
        control: The method all others are compared with, chosen before looking at the scores.
        alpha: Chance of any false difference among the K − 1 comparisons.
        groups: What each column was measured on; columns of one group are not independent.
    """
    k, n = table(scores).shape
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
    apart = [pair.second for pair in pairs if pair.significant]
    return BonferroniDunn(
        ranks=ranks,
        control=control,
        alpha=alpha,
        q=q,
        cd=cd,
        pairs=tuple(pairs),
        warnings=_no_power(cd, k, n) + shared_columns(groups, n),
        sentence=f"A mean rank must differ by more than {cd:.2f} from that of {control}"
        f" ({ranks[control]:.2f}); that holds for {join(apart) or 'no other method'}.",
    )


def cliques(ranks: Mapping[str, float], cd: float) -> tuple[tuple[str, ...], ...]:
    """Return the largest runs of methods whose mean ranks all lie within cd: the diagram's bars."""
    names = sorted(ranks, key=lambda name: ranks[name])
    runs = [
        tuple(name for name in names[start:] if ranks[name] - ranks[first] <= cd)
        for start, first in enumerate(names)
    ]
    # a run that ends where the one before it ended lies inside it
    fresh = [
        run for before, run in zip([("",), *runs], runs, strict=False) if run[-1] != before[-1]
    ]
    return tuple(run for run in fresh if len(run) > 1)


def _best_first(scores: Scores) -> dict[str, float]:
    ranks = average_ranks(scores)
    return {name: ranks[name] for name in sorted(ranks, key=lambda name: ranks[name])}


def _standard_error(k: int, n: int) -> float:
    return math.sqrt(k * (k + 1) / (6 * n))


def _untied_share(values: Floats) -> float:
    """Return 1 − Σ (g³ − g) / (N (K³ − K)) over groups of g tied scores; 0 if all are tied."""
    k, n = values.shape
    sizes = np.concatenate([np.unique(column, return_counts=True)[1] for column in values.T])
    return 1.0 - float(np.sum(sizes**3 - sizes)) / float(n * (k**3 - k))


def _no_power(cd: float, k: int, n: int) -> tuple[str, ...]:
    """Warn when the gap to be shown is a large part of the largest gap there can be, K − 1."""
    if cd < (k - 1) / 2:
        return ()
    scope = "nothing" if cd >= k - 1 else "almost nothing"
    return (
        f"With {k} methods on {n} columns {scope} can be told apart: mean ranks can differ by"
        f" {k - 1} at most and must differ by {cd:.2f}. No difference found is no sign of equality."
        " Fewer methods help, and four times as many columns halve the gap.",
    )
