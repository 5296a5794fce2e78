"""Scores as they come in: checked, ranked, and looked over for columns that belong together."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
from scipy import stats

from scs_supcon.benchmark.statistics.wording import join
from scs_supcon.errors import UserError, did_you_mean

Floats = npt.NDArray[np.float64]
Scores = Mapping[str, Sequence[float]]


def tidy(values: npt.ArrayLike) -> Floats:
    """Return float64 values without the noise of decimal arithmetic.

    95.9 − 95.7 and 93.3 − 93.1 are the same gap on paper but not in binary, and a rank test that
    sees two gaps where there is one tie gives another p.
    """
    return np.asarray(values, dtype=np.float64).round(9)


def table(scores: Scores) -> Floats:
    """Return the scores as a (methods, columns) array.

    Raises:
        UserError: Rows of unequal length, a missing cell, fewer than two methods or columns.
    """
    lengths = {name: len(row) for name, row in scores.items()}
    if len(set(lengths.values())) > 1:
        raise UserError(f"every method needs one score per column, but the rows have {lengths}")
    if len(lengths) < 2 or min(lengths.values()) < 2:
        shape = f"{len(lengths)} methods and {min(lengths.values(), default=0)} columns"
        raise UserError(f"a rank test needs at least 2 methods and 2 columns, not {shape}")
    values = np.array([tidy(row) for row in scores.values()])
    gaps = [name for name, row in zip(scores, values, strict=True) if not np.isfinite(row).all()]
    if gaps:
        raise UserError(
            f"{join(gaps)}: a score is missing or not finite; rank tests need every cell, so run"
            " what is missing or leave the method out (complete_rows does)"
        )
    return values


def complete_rows(scores: Scores) -> tuple[dict[str, Sequence[float]], tuple[str, ...]]:
    """Return the methods that have every cell, and the names of those left out."""
    complete = {name: row for name, row in scores.items() if np.isfinite(tidy(row)).all()}
    return complete, tuple(name for name in scores if name not in complete)


def check_control(control: str, scores: Scores) -> None:
    """Raise a UserError unless the control is one of the methods."""
    if control not in scores:
        hint = did_you_mean(control, scores)
        raise UserError(f"the control {control!r} is not among {join(scores)}{hint}")


def differences(first: Sequence[float], second: Sequence[float]) -> Floats:
    """Return first − second for two methods measured on the same folds, seeds or columns.

    Raises:
        UserError: Fewer than two pairs, unequal lengths, or a score that is missing.
    """
    if len(first) != len(second) or len(first) < 2:
        raise UserError(
            f"a paired test needs two or more pairs, but came {len(first)} and {len(second)} scores"
        )
    gaps = tidy(tidy(first) - tidy(second))
    if not np.isfinite(gaps).all():
        raise UserError("a score is missing or not finite; a paired test needs both of each pair")
    return gaps


def in_units(mean: float, spread: float) -> float:
    """Return mean / spread; infinite where nothing varies around a mean that is not zero."""
    if spread > 0:
        return mean / spread
    return math.copysign(math.inf, mean) if mean else 0.0


def rank_rows(values: Floats) -> Floats:
    """Return ranks within each column: 1 is the highest score, ties share the middle rank."""
    return np.asarray(stats.rankdata(-values, axis=0), dtype=np.float64)


def average_ranks(scores: Scores) -> dict[str, float]:
    """Return each method's mean rank over the columns: 1 is best, ties share the middle rank."""
    means = rank_rows(table(scores)).mean(axis=1)
    return dict(zip(scores, means.tolist(), strict=True))


def shared_columns(groups: Sequence[str] | None, columns: int) -> tuple[str, ...]:
    """Return a warning if several columns come from one group, such as one dataset.

    Args:
        groups: For each column what it was measured on; None when all are known to be separate.
        columns: How many columns there are.
    """
    if groups is None:
        return ()
    if len(groups) != columns:
        raise UserError(f"{len(groups)} groups were given for {columns} columns: name one for each")
    members = defaultdict(list)
    for position, group in enumerate(groups, start=1):
        members[group].append(str(position))
    shared = [f"{join(at)} ({group})" for group, at in members.items() if len(at) > 1]
    if not shared:
        return ()
    return (
        f"Columns {'; '.join(shared)} share their data, so the {columns} columns count for"
        f" {len(members)} at most: the p-values are too small. Average such columns into one"
        " to be safe.",
    )
