"""How large a difference is, and how sure a number: effect sizes and bootstrap intervals."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from scs_supcon.benchmark.statistics.scores import differences, in_units
from scs_supcon.benchmark.statistics.signed_ranks import signed_rank_sums
from scs_supcon.errors import UserError

Rows = npt.NDArray[Any]


@dataclass(frozen=True)
class Effect:
    """The size of a paired difference; positive when the first method is ahead."""

    value: float
    sentence: str


@dataclass(frozen=True)
class Interval:
    """A number with a percentile bootstrap interval around it."""

    value: float
    low: float
    high: float
    level: float
    warnings: tuple[str, ...]
    sentence: str


def cohens_dz(first: Sequence[float], second: Sequence[float]) -> Effect:
    """Return Cohen's dz = mean(d) / sd(d): the mean difference in units of its own spread.

    Folds of one dataset vary little, so their dz looks huge beside the 0.2, 0.5 and 0.8 that are
    called small, medium and large for independent people or datasets.
    """
    gaps = differences(first, second)
    spread = float(gaps.std(ddof=1)) if np.ptp(gaps) > 0 else 0.0
    value = in_units(float(gaps.mean()), spread)
    return Effect(
        value,
        f"The mean difference is {abs(value):.2f} times the spread between pairs (Cohen's dz).",
    )


def rank_biserial(first: Sequence[float], second: Sequence[float]) -> Effect:
    """Return the matched-pairs rank-biserial correlation (W₊ − W₋) / (W₊ + W₋).

    1 means the first method is ahead in every pair, −1 behind in every pair, 0 evenly split.
    Unlike dz it does not grow when the spread between pairs shrinks.
    """
    up, down = signed_rank_sums(differences(first, second))
    value = (up - down) / (up + down) if up + down else 0.0
    share = (value + 1) / 2
    return Effect(value, f"{share:.0%} of the rank sum speaks for the first method.")


def mean(rows: Rows) -> float:
    """Return the mean of all entries."""
    return float(rows.mean())


def bootstrap(
    rows: npt.ArrayLike,
    rng: np.random.Generator,
    *,
    statistic: Callable[[Rows], float] = mean,
    level: float = 0.95,
    resamples: int = 10_000,
) -> Interval:
    """Return a number and the range it takes when the rows are drawn again with replacement.

    For two methods on the same images pass the differences, or both predictions side by side,
    so that the images stay paired.

    Args:
        rows: One row per image: right or wrong, a difference, or several columns.
        rng: Where chance comes from; the same generator state gives the same interval.
        statistic: Takes rows like `rows`, returns the number.
        level: Share of the resampled numbers inside the interval.
        resamples: How often the rows are drawn.
    """
    data = np.asarray(rows)
    n = len(data)
    if n < 2:
        raise UserError(f"a bootstrap interval needs at least 2 rows, not {n}")
    drawn = [statistic(data[rng.integers(n, size=n)]) for _ in range(resamples)]
    low, high = np.quantile(drawn, [(1 - level) / 2, (1 + level) / 2]).tolist()
    value = statistic(data)
    warnings: tuple[str, ...] = ()
    if n < 20:
        warnings = (f"{n} rows are few for a bootstrap: the interval is likely too narrow.",)
    return Interval(
        value,
        low,
        high,
        level,
        warnings,
        f"{value:.4g}, and {low:.4g} to {high:.4g} in {level:.0%} of the redrawn samples.",
    )
