"""Two methods measured on the same folds, seeds or columns: signed ranks, and Holm for many."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from scipy import stats

from scs_supcon.benchmark.statistics.scores import (
    Floats,
    Scores,
    check_control,
    differences,
    shared_columns,
    table,
)
from scs_supcon.benchmark.statistics.wording import p_text, verdict

# the exact distribution grows with the square of the pairs; beyond this the normal one is as good
EXACT_UP_TO = 200


@dataclass(frozen=True)
class Wilcoxon:
    """Wilcoxon's signed-rank test of `first − second`, exact also with ties.

    Attributes:
        n: Pairs that differ; equal pairs say nothing about the direction and are left out.
        up: Sum of the ranks of the differences in favour of `first`; `down` in favour of `second`.
        floor: The smallest p that n pairs can give.
    """

    first: str
    second: str
    n: int
    up: float
    down: float
    p: float
    floor: float
    warnings: tuple[str, ...]
    sentence: str


@dataclass(frozen=True)
class AdjustedPair:
    """One comparison among several: its own p, and p after Holm's correction."""

    first: str
    second: str
    p: float
    p_holm: float
    significant: bool


@dataclass(frozen=True)
class WilcoxonHolm:
    """Signed-rank tests of several pairs, corrected together."""

    pairs: tuple[AdjustedPair, ...]
    alpha: float
    warnings: tuple[str, ...]
    sentence: str


def wilcoxon(
    first: Sequence[float], second: Sequence[float], *, names: tuple[str, str], alpha: float = 0.05
) -> Wilcoxon:
    """Test by signed ranks whether the differences lie evenly around zero.

    Args:
        first: Scores of one method.
        second: Scores of the other on the same folds, seeds or columns, in the same order.
        names: What the two methods are called in the sentence.
        alpha: Level the sentence and the warning speak of.
    """
    gaps = differences(first, second)
    kept = gaps[gaps != 0]
    up, down = signed_rank_sums(gaps)
    p = _signed_rank_p(kept, up)
    floor = min(1.0, 2.0 ** (1 - len(kept)))
    warnings: tuple[str, ...] = ()
    if floor >= alpha:
        warnings += (
            f"{len(kept)} differing pairs cannot give p below {floor:.4g}, however large the"
            f" difference: p < {alpha:g} is out of reach.",
        )
    if len(kept) < len(gaps):
        warnings += (f"{len(gaps) - len(kept)} equal pairs were left out.",)
    return Wilcoxon(
        *names,
        n=len(kept),
        up=up,
        down=down,
        p=p,
        floor=floor,
        warnings=warnings,
        sentence=f"{names[0]} is ahead of {names[1]} in {int(np.sum(kept > 0))} and behind in"
        f" {int(np.sum(kept < 0))} of {len(gaps)} pairs (signed ranks, {p_text(p)}):"
        f" {verdict(p, alpha)}.",
    )


def wilcoxon_holm(
    scores: Scores,
    *,
    control: str | None = None,
    alpha: float = 0.05,
    groups: Sequence[str] | None = None,
) -> WilcoxonHolm:
    """Compare methods pair by pair with signed ranks, and correct the p-values by Holm.

    Args:
        scores: One score per column for every method; higher is better.
        control: Compare this method with the others; None compares all pairs.
        alpha: Chance of any false difference among all the comparisons.
        groups: What each column was measured on; columns of one group are not independent.
    """
    columns = table(scores).shape[1]
    if control is None:
        names = list(combinations(scores, 2))
    else:
        check_control(control, scores)
        names = [(control, other) for other in scores if other != control]
    tests = [wilcoxon(scores[a], scores[b], names=(a, b), alpha=alpha) for a, b in names]
    adjusted = holm([test.p for test in tests])
    pairs = tuple(
        AdjustedPair(test.first, test.second, test.p, p, p < alpha)
        for test, p in zip(tests, adjusted, strict=True)
    )
    floor = 2.0 ** (1 - columns) * len(pairs)
    warnings = shared_columns(groups, columns)
    if floor >= alpha:
        warnings = (
            f"{columns} columns cannot give p below {2.0 ** (1 - columns):.4g}, and Holm multiplies"
            f" the smallest of {len(pairs)} by {len(pairs)}: nothing can reach p < {alpha:g}.",
            *warnings,
        )
    found = [f"{pair.first} and {pair.second}" for pair in pairs if pair.significant]
    return WilcoxonHolm(
        pairs=pairs,
        alpha=alpha,
        warnings=warnings,
        sentence=f"Of {len(pairs)} pairs compared by signed ranks over {columns} columns,"
        f" {len(found)} differ after Holm's correction{': ' if found else ''}{'; '.join(found)}.",
    )


def holm(p_values: Sequence[float]) -> tuple[float, ...]:
    """Return Holm's adjusted p-values, in the order given.

    The i-th smallest of m is multiplied by m − i + 1, never falls below the one before it, and
    never exceeds 1.
    """
    p = np.asarray(p_values, dtype=np.float64)
    order = np.argsort(p, kind="stable")
    factors = np.arange(len(p), 0, -1)
    adjusted = np.empty_like(p)
    adjusted[order] = np.minimum(1.0, np.maximum.accumulate(factors * p[order]))
    return tuple(adjusted.tolist())


def signed_rank_sums(gaps: Floats) -> tuple[float, float]:
    """Return the rank sums of the positive and of the negative gaps; zeros are left out."""
    kept = gaps[gaps != 0]
    ranks = stats.rankdata(np.abs(kept))
    return float(ranks[kept > 0].sum()), float(ranks[kept < 0].sum())


def _signed_rank_p(gaps: Floats, up: float) -> float:
    """Return the two-sided p of the rank sum over all 2ⁿ equally likely choices of signs.

    The distribution is built one rank at a time. Ranks are doubled, which makes middle ranks
    whole numbers, so ties need no approximation.
    """
    if len(gaps) > EXACT_UP_TO:
        return float(stats.wilcoxon(gaps, method="asymptotic").pvalue)
    doubled = np.round(2 * stats.rankdata(np.abs(gaps))).astype(int)
    chance = np.zeros(int(doubled.sum()) + 1)
    chance[0] = 1.0
    for rank in doubled:
        chance[rank:] += chance[:-rank].copy()
        chance /= 2
    observed = round(2 * up)
    tail = min(chance[: observed + 1].sum(), chance[observed:].sum())
    return min(1.0, 2 * float(tail))
