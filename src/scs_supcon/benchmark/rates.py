"""The same small tuning budget for every method: learning rates tried in each cell of a table.

Each cell is trained once per rate, and the validation images of its own split choose the run that
is reported; test images play no part. The choice is a pure function of the stored runs.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from scs_supcon.benchmark.expand import Cell
from scs_supcon.benchmark.results import CellResult
from scs_supcon.evaluation.predictions import ValidationScores, validation_scores
from scs_supcon.io.csv import csv_text, text_cell


@dataclass(frozen=True)
class RateCandidate:
    """A run of a tuned cell."""

    result: CellResult
    chosen: bool = False

    @property
    def rate(self) -> float:
        """The learning rate of stage 1."""
        return self.result.cell.recipe.pretrain.lr

    @cached_property
    def scores(self) -> ValidationScores | None:
        """The scores on the validation images; None if the run is not finished."""
        return validation_scores(self.result.run) if self.result.evaluation else None


@dataclass(frozen=True)
class TunedCell:
    """A cell of the table with the runs of all its learning rates.

    Attributes:
        candidates: one run per rate, in the order of the table's `tune_rates`.
    """

    candidates: tuple[RateCandidate, ...]

    @property
    def cell(self) -> Cell:
        """The cell of the reported run."""
        return self.result.cell

    @property
    def result(self) -> CellResult:
        """The chosen run; without one, a run that is missing or failed."""
        chosen = [candidate.result for candidate in self.candidates if candidate.chosen]
        others = [candidate.result for candidate in self.candidates]
        missing = [result for result in others if result.status == "missing"]
        return [*chosen, *missing, *others][0]


def choose_rates(results: Sequence[CellResult]) -> list[TunedCell]:
    """Return the tuned cells in the order of their first runs, each with its choice."""
    groups: dict[tuple[object, ...], list[CellResult]] = {}
    for result in results:
        cell = result.cell
        groups.setdefault((cell.row, cell.column, cell.key), []).append(result)
    return [_tuned_cell(group) for group in groups.values()]


def _tuned_cell(results: Sequence[CellResult]) -> TunedCell:
    """Return a cell with its choice; nothing is chosen while a run is missing.

    Every method gets the same budget, so that a choice needs all runs. Only a run that failed, for
    example because its rate is too high, is left out.
    """
    candidates = [RateCandidate(result) for result in results]
    if all(result.status != "missing" for result in results):
        factors = [result.cell.rate_factor for result in results]
        best = best_run([candidate.scores for candidate in candidates], factors)
        if best is not None:
            candidates[best] = replace(candidates[best], chosen=True)
    return TunedCell(tuple(candidates))


def best_run(scores: Sequence[ValidationScores | None], factors: Sequence[float]) -> int | None:
    """Return the position of the best run; None if there is no score.

    The best has the highest accuracy; equal ones are ordered by loss, then by how little the rate
    differs from the method's own.
    """
    keys = [
        (-score.accuracy, score.loss, abs(math.log(factor)), position)
        for position, (score, factor) in enumerate(zip(scores, factors, strict=True))
        if score is not None
    ]
    return min(keys)[-1] if keys else None


def tuning_csv(tuned: Iterable[TunedCell]) -> str:
    """Return a CSV file with one row per run of every cell."""
    names = ("method", "column", "seed", "fold", "learning_rate", "status")
    rows: list[tuple[object, ...]] = [(*names, "val_accuracy", "val_loss", "chosen", "run")]
    for candidate in (candidate for cell in tuned for candidate in cell.candidates):
        cell, score = candidate.result.cell, candidate.scores
        rows.append(
            (
                text_cell(cell.row),
                text_cell(cell.column),
                cell.seed,
                "" if cell.fold is None else cell.fold,
                candidate.rate,
                candidate.result.status,
                "" if score is None else score.accuracy,
                "" if score is None else score.loss,
                int(candidate.chosen),
                cell.address,
            )
        )
    return csv_text(rows)


def describe_choices(tuned: Sequence[TunedCell]) -> list[tuple[str, str, str]]:
    """Return (method, column, how often each rate was chosen) for the tuned cells."""
    rows: dict[tuple[str, str], dict[float, int]] = {}
    for cell in tuned:
        if len(cell.candidates) > 1:
            counts = rows.setdefault((cell.cell.row, cell.cell.column), {})
            for candidate in cell.candidates:
                counts[candidate.rate] = counts.get(candidate.rate, 0) + candidate.chosen
    return [
        (row, column, ", ".join(f"{rate:g}: {count}" for rate, count in counts.items()))
        for (row, column), counts in rows.items()
    ]
