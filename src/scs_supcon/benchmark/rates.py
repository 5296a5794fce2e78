"""The same small tuning budget for every method: learning rates tried in each cell of a table.

Each cell is trained once per rate, and the validation images of its own split choose the run that
is reported; test images play no part. The choice is a pure function of the stored runs.
"""

import csv
import io
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from scs_supcon.benchmark.expand import Cell
from scs_supcon.benchmark.results import CellResult
from scs_supcon.io.csv import text_cell


@dataclass(frozen=True)
class ValidationScore:
    """Scores of a finished run on its validation images.

    Attributes:
        accuracy: share of correctly classified images.
        nll: mean negative log-likelihood of the calibrated probabilities.
    """

    accuracy: float
    nll: float


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
    def score(self) -> ValidationScore | None:
        """The scores on the validation images; None if the run is not finished."""
        return validation_score(self.result.run) if self.result.evaluation else None


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
        best = best_run([candidate.score for candidate in candidates], factors)
        if best is not None:
            candidates[best] = replace(candidates[best], chosen=True)
    return TunedCell(tuple(candidates))


def best_run(scores: Sequence[ValidationScore | None], factors: Sequence[float]) -> int | None:
    """Return the position of the best run; None if there is no score.

    The best has the highest accuracy; equal ones are ordered by NLL, then by how little the rate
    differs from the method's own.
    """
    keys = [
        (-score.accuracy, score.nll, abs(math.log(factor)), position)
        for position, (score, factor) in enumerate(zip(scores, factors, strict=True))
        if score is not None
    ]
    return min(keys)[-1] if keys else None


def validation_score(run: Path) -> ValidationScore:
    """Return accuracy and NLL of a finished run on its validation images."""
    import pyarrow.parquet as pq

    table = pq.read_table(
        run / "predictions.parquet", columns=["split", "label", "prediction", "probabilities"]
    )
    rows = table.filter(np.array(table["split"]) == "val")
    classes = json.loads((run / "classes.json").read_text(encoding="utf-8"))
    position = {name: number for number, name in enumerate(classes)}
    labels = rows["label"].to_pylist()
    correct = np.array(labels) == np.array(rows["prediction"].to_pylist())
    probabilities = np.array(rows["probabilities"].to_pylist(), dtype=np.float64)
    of_label = probabilities[np.arange(len(labels)), [position[label] for label in labels]]
    smallest = float(np.finfo(np.float32).tiny)
    return ValidationScore(
        float(correct.mean()), float(-np.log(np.maximum(of_label, smallest)).mean())
    )


def tuning_csv(tuned: Iterable[TunedCell]) -> str:
    """Return a CSV file with one row per run of every cell."""
    text = io.StringIO()
    names = ("method", "column", "seed", "fold", "learning_rate", "status")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow((*names, "val_accuracy", "val_nll", "chosen", "run"))
    for candidate in (candidate for cell in tuned for candidate in cell.candidates):
        cell, score = candidate.result.cell, candidate.score
        writer.writerow(
            (
                text_cell(cell.row),
                text_cell(cell.column),
                cell.seed,
                "" if cell.fold is None else cell.fold,
                candidate.rate,
                candidate.result.status,
                "" if score is None else score.accuracy,
                "" if score is None else score.nll,
                int(candidate.chosen),
                cell.address,
            )
        )
    return text.getvalue()


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
