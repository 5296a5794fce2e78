"""Two methods on the same folds, seeds, columns or images: tests, effect sizes, intervals."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import numpy.typing as npt
from scipy import stats
from statsmodels.stats import contingency_tables, multitest

from scs_supcon.benchmark.statistics.scores import (
    FloatArray,
    Scores,
    check_control,
    differences,
    divide_by_spread,
    p_text,
    score_matrix,
    shared_columns,
    significance_text,
)
from scs_supcon.errors import UserError

EXACT_WILCOXON_UP_TO = 200  # pairs; with more, the normal approximation is as good
EXACT_MCNEMAR_BELOW = 25  # disagreements; with fewer, the χ² approximation is too rough


@dataclass(frozen=True)
class TTest:
    """A paired t-test of `first − second`, with the interval of the mean difference."""

    first: str
    second: str
    n: int
    mean: float
    low: float
    high: float
    t: float
    df: int
    p: float
    warnings: tuple[str, ...]
    sentence: str


@dataclass(frozen=True)
class Wilcoxon:
    """Wilcoxon's signed-rank test of `first − second`, exact also with ties.

    Attributes:
        n: number of pairs that differ; equal pairs are left out.
        up: sum of the ranks of the positive differences; `down` of the negative ones.
        floor: the smallest p that n pairs can give.
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
    """One of several comparisons: p, and p after Holm's correction."""

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


@dataclass(frozen=True)
class McNemar:
    """McNemar's test of two methods on the same images.

    Attributes:
        only_first: images that only the first method classifies correctly; likewise `only_second`.
        chi2: statistic with continuity correction; None if p is exact.
        exact: whether p is from the binomial distribution.
    """

    first: str
    second: str
    both: int
    only_first: int
    only_second: int
    neither: int
    chi2: float | None
    p: float
    exact: bool
    warnings: tuple[str, ...]
    sentence: str


@dataclass(frozen=True)
class Interval:
    """A mean with its percentile bootstrap interval."""

    value: float
    low: float
    high: float
    level: float
    warnings: tuple[str, ...]
    sentence: str


def paired_t(
    first: Sequence[float], second: Sequence[float], *, names: tuple[str, str], alpha: float = 0.05
) -> TTest:
    """Compute Student's paired t-test: t = mean(d) / sqrt(var(d) / n).

    Its p is valid for independent pairs. The folds of a cross-validation are not independent,
    because their training sets overlap: use `corrected_t` for those.

    Args:
        first: scores of one method.
        second: scores of the other on the same folds, seeds or columns, in the same order.
        names: the names of both methods.
        alpha: significance level of the sentence; the interval covers 1 − alpha.
    """
    return _t_test(differences(first, second), 0.0, names, alpha)


def corrected_t(
    first: Sequence[float],
    second: Sequence[float],
    *,
    test_per_train: float,
    names: tuple[str, str],
    alpha: float = 0.05,
) -> TTest:
    """Compute Nadeau and Bengio's corrected t-test: t = mean(d) / sqrt((1/n + n₂/n₁) var(d)).

    Overlapping training sets make the scores of a method more alike than new data would, so the
    plain variance is too small; n₂/n₁, test size over training size, corrects for it. For repeated
    cross-validation pass all folds of all repeats as pairs.

    Args:
        first: scores of one method.
        second: scores of the other on the same splits, in the same order.
        test_per_train: test images per training image in a split: 1 / (k − 1) for k folds.
        names: the names of both methods.
        alpha: significance level of the sentence; the interval covers 1 − alpha.
    """
    if not test_per_train > 0:
        raise UserError(
            f"test_per_train must be positive, 1 / (k − 1) for k folds, got {test_per_train}"
        )
    return _t_test(differences(first, second), test_per_train, names, alpha)


def _t_test(gaps: FloatArray, overlap: float, names: tuple[str, str], alpha: float) -> TTest:
    n = len(gaps)
    mean = float(gaps.mean())
    if np.ptp(gaps) == 0:
        return _sign_test(mean, n, names, alpha)
    error = math.sqrt((1 / n + overlap) * float(gaps.var(ddof=1)))
    t = mean / error
    p = 2 * float(stats.t.sf(abs(t), n - 1))
    low, high = (float(end) for end in stats.t.interval(1 - alpha, n - 1, mean, error))
    kind = "corrected for overlapping training sets, " if overlap else ""
    return TTest(
        *names,
        n=n,
        mean=mean,
        low=low,
        high=high,
        t=t,
        df=n - 1,
        p=p,
        warnings=(),
        sentence=f"{names[0]} is {abs(mean):.3g} {'below' if mean < 0 else 'above'} {names[1]}"
        f" on average over {n} pairs ({1 - alpha:.0%} interval {low:.3g} to"
        f" {high:.3g}; {kind}t = {t:.2f}, {p_text(p)}): {significance_text(p, alpha)}.",
    )


def _sign_test(mean: float, n: int, names: tuple[str, str], alpha: float) -> TTest:
    """Test the signs of equal gaps, for which t would be infinite even with two pairs."""
    side = f"{abs(mean):.3g} {'below' if mean < 0 else 'above'}" if mean else "equal to"
    p = 2.0 ** (1 - n) if mean else 1.0  # as likely as n equal tosses of a coin
    return TTest(
        *names,
        n=n,
        mean=mean,
        low=-math.inf,
        high=math.inf,
        t=divide_by_spread(mean, 0.0),
        df=n - 1,
        p=p,
        warnings=("All differences are equal: there is no spread to compare the mean with.",),
        sentence=f"{names[0]} is {side} {names[1]} in each of {n} pairs; without any spread only"
        f" the signs can be tested ({p_text(p)}): {significance_text(p, alpha)}.",
    )


def wilcoxon(
    first: Sequence[float], second: Sequence[float], *, names: tuple[str, str], alpha: float = 0.05
) -> Wilcoxon:
    """Test by signed ranks whether the differences are symmetric around zero.

    Args:
        first: scores of one method.
        second: scores of the other on the same folds, seeds or columns, in the same order.
        names: the names of both methods.
        alpha: significance level of the sentence and the warning.
    """
    gaps = differences(first, second)
    unequal = gaps[gaps != 0]
    ranks = stats.rankdata(np.abs(unequal))
    p = _signed_rank_p(unequal, ranks)
    floor = min(1.0, 2.0 ** (1 - len(unequal)))
    warnings: tuple[str, ...] = ()
    if floor >= alpha:
        warnings += (
            f"With {len(unequal)} differing pairs, p cannot be below {floor:.4g}: p < {alpha:g}"
            " cannot be reached.",
        )
    if len(unequal) < len(gaps):
        warnings += (f"{len(gaps) - len(unequal)} equal pairs were left out.",)
    return Wilcoxon(
        *names,
        n=len(unequal),
        up=float(ranks[unequal > 0].sum()),
        down=float(ranks[unequal < 0].sum()),
        p=p,
        floor=floor,
        warnings=warnings,
        sentence=f"{names[0]} is better than {names[1]} in {int(np.sum(unequal > 0))} and worse in"
        f" {int(np.sum(unequal < 0))} of {len(gaps)} pairs (signed ranks, {p_text(p)}):"
        f" {significance_text(p, alpha)}.",
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
        scores: one score per column for every method; higher is better.
        control: compare this method with the others; None compares all pairs.
        alpha: probability of any false difference among all comparisons.
        groups: the dataset of each column; columns of one dataset are not independent.
    """
    columns = score_matrix(scores).shape[1]
    if control is None:
        names = list(combinations(scores, 2))
    else:
        check_control(control, scores)
        names = [(control, other) for other in scores if other != control]
    tests = [wilcoxon(scores[a], scores[b], names=(a, b), alpha=alpha) for a, b in names]
    pairs = tuple(
        AdjustedPair(test.first, test.second, test.p, p, p < alpha)
        for test, p in zip(tests, holm([test.p for test in tests]), strict=True)
    )
    floor = 2.0 ** (1 - columns) * len(pairs)
    warnings = shared_columns(groups, columns)
    if floor >= alpha:
        warnings = (
            f"With {columns} columns, p cannot be below {2.0 ** (1 - columns):.4g}, and Holm"
            f" multiplies the smallest of {len(pairs)} by {len(pairs)}: no pair can reach"
            f" p < {alpha:g}.",
            *warnings,
        )
    different = [f"{pair.first} and {pair.second}" for pair in pairs if pair.significant]
    return WilcoxonHolm(
        pairs=pairs,
        alpha=alpha,
        warnings=warnings,
        sentence=f"Of {len(pairs)} pairs compared by signed ranks over {columns} columns,"
        f" {len(different)} differ after Holm's correction{': ' if different else ''}"
        f"{'; '.join(different)}.",
    )


def holm(p_values: Sequence[float]) -> tuple[float, ...]:
    """Return Holm's adjusted p-values, in the order of `p_values`."""
    if not len(p_values):
        return ()
    return tuple(multitest.multipletests(p_values, method="holm")[1].tolist())


def _signed_rank_p(unequal: FloatArray, ranks: FloatArray) -> float:
    """Return the two-sided p of the rank sum over all 2ⁿ equally likely choices of signs.

    scipy's exact test ignores ties. Here the distribution is built one rank at a time; ranks are
    doubled so that the mean ranks of ties are integers.
    """
    if len(unequal) > EXACT_WILCOXON_UP_TO:
        return float(stats.wilcoxon(unequal, method="asymptotic").pvalue)
    doubled = np.round(2 * ranks).astype(int)
    probability = np.zeros(int(doubled.sum()) + 1)
    probability[0] = 1.0
    for rank in doubled:
        probability[rank:] += probability[:-rank].copy()
        probability /= 2
    observed = int(doubled[unequal > 0].sum())
    tail = min(probability[: observed + 1].sum(), probability[observed:].sum())
    return min(1.0, 2 * float(tail))


def mcnemar(
    first: npt.ArrayLike, second: npt.ArrayLike, *, names: tuple[str, str], alpha: float = 0.05
) -> McNemar:
    """Test whether two classifiers make equally many errors on the same images.

    The test is about these two trained models on this test set; it does not cover training again
    with another seed. Only images that exactly one of them classifies correctly count.

    Args:
        first: whether one method classifies each image correctly.
        second: the same for the other method.
        names: the names of both methods.
        alpha: significance level of the sentence and the warning.
    """
    correct, other = np.asarray(first, dtype=bool), np.asarray(second, dtype=bool)
    if correct.shape != other.shape or correct.ndim != 1:
        shapes = f"{correct.shape} and {other.shape}"
        raise UserError(f"McNemar's test needs one entry per image and method, got {shapes}")
    table = [
        [int(np.sum(correct & other)), int(np.sum(correct & ~other))],
        [int(np.sum(~correct & other)), int(np.sum(~correct & ~other))],
    ]
    (both, only_first), (only_second, neither) = table
    disagreements = only_first + only_second
    exact = disagreements < EXACT_MCNEMAR_BELOW
    test = contingency_tables.mcnemar(table, exact=exact, correction=True)
    chi2, p = (None if exact else float(test.statistic)), min(1.0, float(test.pvalue))
    if only_first == only_second:  # the continuity correction must not cross zero
        chi2, p = (None if exact else 0.0), 1.0
    floor = min(1.0, 2.0 ** (1 - disagreements))
    warnings: tuple[str, ...] = ()
    if floor >= alpha:
        warnings = (
            f"The methods disagree about only {disagreements} images, so p cannot be below"
            f" {floor:.4g}: a larger test set is needed.",
        )
    return McNemar(
        *names,
        both=both,
        only_first=only_first,
        only_second=only_second,
        neither=neither,
        chi2=chi2,
        p=p,
        exact=exact,
        warnings=warnings,
        sentence=f"Of {len(correct)} images, {only_first} are correct only with {names[0]} and"
        f" {only_second} only with {names[1]} ({'exact ' if exact else ''}{p_text(p)}):"
        f" {significance_text(p, alpha)}.",
    )


def cohens_dz(first: Sequence[float], second: Sequence[float]) -> float:
    """Return Cohen's dz = mean(d) / sd(d): the mean difference in units of its spread.

    It is positive if the first method is better. Folds of one dataset vary little, so their dz is
    large compared to the values 0.2, 0.5 and 0.8 that are called small, medium and large for
    independent subjects.
    """
    gaps = differences(first, second)
    spread = float(gaps.std(ddof=1)) if np.ptp(gaps) > 0 else 0.0
    return divide_by_spread(float(gaps.mean()), spread)


def bootstrap(
    rows: npt.ArrayLike,
    rng: np.random.Generator,
    *,
    level: float = 0.95,
    resamples: int = 10_000,
) -> Interval:
    """Return the mean of numbers and its percentile bootstrap interval.

    For two methods on the same images pass the differences, so that the images stay paired.

    Args:
        rows: one number per image: correct or not, or a difference.
        rng: random generator; the same state gives the same interval.
        level: share of the resampled means inside the interval.
        resamples: number of samples.
    """
    data = np.asarray(rows)
    n = len(data)
    if n < 2:
        raise UserError(f"a bootstrap interval needs at least 2 rows, got {n}")
    samples = [data[rng.integers(n, size=n)].mean() for _ in range(resamples)]
    low, high = np.quantile(samples, [(1 - level) / 2, (1 + level) / 2]).tolist()
    value = float(data.mean())
    warnings: tuple[str, ...] = ()
    if n < 20:
        warnings = (
            f"{n} rows are too few for a reliable bootstrap interval: it is probably too narrow.",
        )
    return Interval(
        value,
        low,
        high,
        level,
        warnings,
        f"{value:.4g}, with {low:.4g} to {high:.4g} in {level:.0%} of the resamples.",
    )
