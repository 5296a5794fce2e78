"""Check and rank scores, and format numbers as text."""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt
from scipy import stats

from scs_supcon.errors import UserError, did_you_mean

FloatArray = npt.NDArray[np.float64]
Scores = Mapping[str, Sequence[float]]


def without_noise(values: npt.ArrayLike) -> FloatArray:
    """Return float64 values rounded to nine decimals.

    95.9 − 95.7 and 93.3 − 93.1 are equal, but not in binary; without rounding, a rank test
    would miss the tie.
    """
    return np.asarray(values, dtype=np.float64).round(9)


def score_matrix(scores: Scores) -> FloatArray:
    """Return the scores as a (methods, columns) array.

    Raises:
        UserError: rows of unequal length, a missing score, fewer than two methods or columns.
    """
    lengths = {name: len(row) for name, row in scores.items()}
    if len(set(lengths.values())) > 1:
        raise UserError(f"every method needs one score per column, but the rows have {lengths}")
    if len(lengths) < 2 or min(lengths.values()) < 2:
        shape = f"{len(lengths)} methods and {min(lengths.values(), default=0)} columns"
        raise UserError(f"a rank test needs at least 2 methods and 2 columns, got {shape}")
    values = np.array([without_noise(row) for row in scores.values()])
    gaps = [name for name, row in zip(scores, values, strict=True) if not np.isfinite(row).all()]
    if gaps:
        raise UserError(
            f"{join(gaps)}: a score is missing or not finite; rank tests need all scores, so "
            "complete the runs or leave the method out"
        )
    return values


def check_control(control: str, scores: Scores) -> None:
    """Raise a UserError unless the control is one of the methods."""
    if control not in scores:
        hint = did_you_mean(control, scores)
        raise UserError(f"the control {control!r} is not among {join(scores)}{hint}")


def differences(first: Sequence[float], second: Sequence[float]) -> FloatArray:
    """Return first − second for two methods measured on the same folds, seeds or columns.

    Raises:
        UserError: fewer than two pairs, unequal lengths, or a missing score.
    """
    if len(first) != len(second) or len(first) < 2:
        raise UserError(
            f"a paired test needs two or more pairs, got {len(first)} and {len(second)} scores"
        )
    gaps = without_noise(without_noise(first) - without_noise(second))
    if not np.isfinite(gaps).all():
        raise UserError("a score is missing or not finite; a paired test needs both of each pair")
    return gaps


def divide_by_spread(mean: float, spread: float) -> float:
    """Return mean / spread; infinite if only the spread is zero, 0 if both are."""
    if spread > 0:
        return mean / spread
    return math.copysign(math.inf, mean) if mean else 0.0


def rank_rows(values: FloatArray) -> FloatArray:
    """Return ranks within each column: 1 is the highest score, ties share the mean rank."""
    return np.asarray(stats.rankdata(-values, axis=0), dtype=np.float64)


def average_ranks(scores: Scores) -> dict[str, float]:
    """Return each method's mean rank over the columns: 1 is best, ties share the mean rank."""
    means = rank_rows(score_matrix(scores)).mean(axis=1)
    return dict(zip(scores, means.tolist(), strict=True))


def shared_columns(groups: Sequence[str] | None, columns: int) -> tuple[str, ...]:
    """Return a warning if several columns come from one group, such as one dataset.

    Args:
        groups: the dataset of each column; None if all columns are independent.
        columns: number of columns.
    """
    if groups is None:
        return ()
    if len(groups) != columns:
        raise UserError(f"{len(groups)} groups were given for {columns} columns: give one for each")
    members = defaultdict(list)
    for position, group in enumerate(groups, start=1):
        members[group].append(str(position))
    shared = [f"{join(places)} ({group})" for group, places in members.items() if len(places) > 1]
    if not shared:
        return ()
    return (
        f"Columns {'; '.join(shared)} share their data, so at most {len(members)} of the"
        f" {columns} columns are independent: the p-values are too small. To be safe, average such"
        " columns into one.",
    )


def p_text(p: float) -> str:
    """Return `p = 0.0026`, or `p < 0.0001` for smaller values."""
    return "p < 0.0001" if p < 1e-4 else f"p = {p:.2g}"


def join(names: Iterable[str]) -> str:
    """Return `a, b and c`; an empty text for no names."""
    *rest, last = list(names) or [""]
    return f"{', '.join(rest)} and {last}" if rest else last


def significance_text(p: float, alpha: float) -> str:
    """Return whether p is significant at the level alpha."""
    return f"{'significant' if p < alpha else 'not significant'} at the {100 * alpha:g}% level"
