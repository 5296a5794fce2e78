"""Two methods measured on the same folds, seeds or columns: paired t-tests."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from scs_supcon.benchmark.statistics.scores import Floats, differences, in_units
from scs_supcon.benchmark.statistics.wording import p_text, verdict
from scs_supcon.errors import UserError


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


def paired_t(
    first: Sequence[float], second: Sequence[float], *, names: tuple[str, str], alpha: float = 0.05
) -> TTest:
    """Student's paired t-test: t = mean(d) / sqrt(var(d) / n).

    Its p is right for independent pairs. Folds of one dataset are not independent, because their
    training sets overlap: use `corrected_t` for those.

    Args:
        first: Scores of one method.
        second: Scores of the other on the same folds, seeds or columns, in the same order.
        names: What the two methods are called in the sentence.
        alpha: Level the sentence speaks of; the interval covers 1 − alpha.
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
    """Nadeau and Bengio's t-test for resampled data: t = mean(d) / sqrt((1/n + n₂/n₁) var(d)).

    Training sets that overlap make the scores of a method agree more than fresh data would, so
    the plain variance is too small; n₂/n₁, test size over training size, makes up for it. Repeated
    cross-validation is the same formula with all folds of all repeats as pairs.

    Args:
        first: Scores of one method.
        second: Scores of the other on the same splits, in the same order.
        test_per_train: Test images per training image in a split: 1 / (k − 1) for k folds.
        names: What the two methods are called in the sentence.
        alpha: Level the sentence speaks of; the interval covers 1 − alpha.
    """
    if not test_per_train > 0:
        raise UserError(
            f"test_per_train is {test_per_train}: it must be positive, 1 / (k − 1) for k folds"
        )
    return _t_test(differences(first, second), test_per_train, names, alpha)


def _t_test(gaps: Floats, overlap: float, names: tuple[str, str], alpha: float) -> TTest:
    n = len(gaps)
    mean = float(gaps.mean())
    # gaps that are all equal have no spread, whatever rounding makes of their variance
    if np.ptp(gaps) == 0:
        return _without_spread(mean, n, names, alpha)
    error = math.sqrt((1 / n + overlap) * float(gaps.var(ddof=1)))
    t = mean / error
    p = 2 * float(stats.t.sf(abs(t), n - 1))
    reach = float(stats.t.isf(alpha / 2, n - 1)) * error
    kind = "corrected for overlapping training sets, " if overlap else ""
    return TTest(
        *names,
        n=n,
        mean=mean,
        low=mean - reach,
        high=mean + reach,
        t=t,
        df=n - 1,
        p=p,
        warnings=(),
        sentence=f"{names[0]} is {abs(mean):.3g} {'below' if mean < 0 else 'above'} {names[1]}"
        f" on average over {n} pairs ({1 - alpha:.0%} interval {mean - reach:.3g} to"
        f" {mean + reach:.3g}; {kind}t = {t:.2f}, {p_text(p)}): {verdict(p, alpha)}.",
    )


def _without_spread(mean: float, n: int, names: tuple[str, str], alpha: float) -> TTest:
    """All gaps are equal: t would be infinite for two pairs already, so the signs are tested."""
    side = f"{abs(mean):.3g} {'below' if mean < 0 else 'above'}" if mean else "level with"
    p = 2.0 ** (1 - n) if mean else 1.0  # all n signs agree: as rare as n equal throws of a coin
    return TTest(
        *names,
        n=n,
        mean=mean,
        low=-math.inf,
        high=math.inf,
        t=in_units(mean, 0.0),
        df=n - 1,
        p=p,
        warnings=("All differences are equal, so there is no spread to judge the mean by.",),
        sentence=f"{names[0]} is {side} {names[1]} in each of {n} pairs; without any spread only"
        f" the signs can be tested ({p_text(p)}): {verdict(p, alpha)}.",
    )
