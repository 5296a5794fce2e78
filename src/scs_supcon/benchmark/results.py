"""The results of a table's cells, read from their run directories."""

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from scs_supcon.benchmark.expand import Cell
from scs_supcon.benchmark.pairwise import EvaluatedRun, RunKey
from scs_supcon.benchmark.scheduler import is_finished
from scs_supcon.benchmark.table import CROSS_ENTROPY, KNN
from scs_supcon.data.splits import UNUSED
from scs_supcon.evaluation.record import Evaluation
from scs_supcon.io.csv import text_cell
from scs_supcon.io.records import csv_rows, read_parquet
from scs_supcon.training.result import read_summary

BASELINES = (
    "knn_on_probe_input",
    "nearest_class_mean",
    "linear_probe_of_encoder",
    "knn_on_encoder",
)
MethodTable = dict[str, dict[str, dict[RunKey, EvaluatedRun]]]


@dataclass(frozen=True)
class CellResult:
    """A cell and the result of its run.

    Attributes:
        cell: the cell.
        run: the run directory, which may not exist yet.
        failure: why the run failed, if it did.
    """

    cell: Cell
    run: Path
    failure: str | None

    @cached_property
    def evaluation(self) -> Evaluation | None:
        """The evaluation of the run; None if it is not finished."""
        return Evaluation.read(self.run / "evaluation.json") if is_finished(self.run) else None

    @cached_property
    def seconds(self) -> float | None:
        """Duration of the run; None if it is not finished or the duration is unknown."""
        return read_summary(self.run).seconds or None if is_finished(self.run) else None

    @property
    def status(self) -> str:
        """The status: "done", "failed" or "missing"."""
        return "done" if self.evaluation else "failed" if self.failure else "missing"

    def predictions(self, column: str = "prediction") -> EvaluatedRun:
        """Return which images were classified correctly.

        Args:
            column: "prediction" for the model, "neighbours" for kNN on the encoder.
        """
        assert self.evaluation is not None
        table = read_parquet(self.run / "predictions.parquet", ["name", "split", "label", column])
        split = self.evaluation.split
        rows = table.filter(np.array(table["split"]) == split)
        names = np.array(rows["name"].to_pylist())
        correct = np.array(rows["label"].to_pylist()) == np.array(rows[column].to_pylist())
        order = np.argsort(names)
        return EvaluatedRun(
            tuple(names[order].tolist()), correct[order], self._training_images(), split
        )

    def _training_images(self) -> int:
        """Count the images that training images were drawn from.

        With few images per class, the training sets of two folds overlap less than they would
        otherwise: their correlation must not count as larger.
        """
        rows = csv_rows(self.run / "splits.csv", ["split"])
        return sum(row["split"] in ("train", UNUSED) for row in rows)


def read_results(
    cells: Iterable[Cell], runs: Path, failures: Mapping[str, str]
) -> list[CellResult]:
    """Return the result of each cell."""
    return [CellResult(cell, runs / cell.address, failures.get(cell.address)) for cell in cells]


def evaluated_runs(results: Sequence[CellResult]) -> MethodTable:
    """Return the finished runs by column, method, and seed with fold; kNN is one of the methods."""
    runs: MethodTable = {}
    for result in results:
        rows = runs.setdefault(result.cell.column, {KNN: {}})
        method_runs = rows.setdefault(result.cell.row, {})
        if result.evaluation:
            method_runs[result.cell.key] = result.predictions()
            if result.cell.key not in rows[KNN] and _shows_encoder(result.cell):
                rows[KNN][result.cell.key] = result.predictions("neighbours")
    return runs


def _shows_encoder(cell: Cell) -> bool:
    """Return whether the kNN row of the table uses the predictions of this run.

    A frozen encoder is the same for all methods; otherwise that of cross-entropy is used.
    """
    return cell.recipe.encoder.frozen or cell.recipe.method.name == CROSS_ENTROPY


def results_csv(results: Iterable[CellResult]) -> str:
    """Return a CSV file with one row per cell, finished or not."""
    text = io.StringIO()
    rows = [_csv_row(result) for result in results]
    writer = csv.DictWriter(text, list(rows[0]) if rows else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _csv_row(result: CellResult) -> dict[str, str | int | float]:
    cell, evaluation = result.cell, result.evaluation
    row: dict[str, str | int | float] = {
        "method": text_cell(cell.row),
        "column": text_cell(cell.column),
        "seed": cell.seed,
        "fold": "" if cell.fold is None else cell.fold,
        "status": result.status,
        "accuracy": evaluation.accuracy if evaluation else "",
        "split": evaluation.split if evaluation else "",
        "macro_f1": evaluation.scores.macro_f1.value if evaluation else "",
        "balanced_accuracy": evaluation.scores.balanced_accuracy.value if evaluation else "",
    }
    measured = evaluation.baselines.measured() if evaluation else {}
    row |= {name: measured.get(name, "") for name in BASELINES}
    return row | {
        "images": evaluation.images if evaluation else "",
        "learning_rate": cell.recipe.pretrain.lr,
        "seconds": "" if result.seconds is None else result.seconds,
        "run": cell.address,
        "failure": text_cell(result.failure or ""),
    }
