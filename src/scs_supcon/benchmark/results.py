"""The results of a table's cells, read from their run directories."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from scs_supcon.benchmark.comparison import Comparison
from scs_supcon.benchmark.expand import Cell
from scs_supcon.benchmark.metrics import ACCURACY, METRICS, Metric
from scs_supcon.benchmark.pairwise import EvaluatedRun, RunKey
from scs_supcon.benchmark.scheduler import is_finished
from scs_supcon.benchmark.table import CROSS_ENTROPY, KNN
from scs_supcon.data.splits import UNUSED
from scs_supcon.evaluation.record import Evaluation
from scs_supcon.io.csv import csv_text, text_cell
from scs_supcon.io.records import csv_rows, read_parquet
from scs_supcon.runs.metrics_log import STEP_METRICS
from scs_supcon.training.result import ResultSummary, read_summary

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
    def summary(self) -> ResultSummary | None:
        """The headline numbers of the run; None if it is not finished."""
        return read_summary(self.run) if is_finished(self.run) else None

    @property
    def seconds(self) -> float | None:
        """Duration of the run; None if it is not finished or the duration is unknown."""
        return (self.summary.seconds or None) if self.summary else None

    @property
    def extraction_seconds(self) -> float | None:
        """Part of the duration that a frozen encoder took; None if it is unknown."""
        return self.summary.extraction_seconds if self.summary else None

    @property
    def training_seconds(self) -> float | None:
        """Duration without the features of a frozen encoder, which methods share: the fair one."""
        if self.seconds is None:
            return None
        return self.seconds - (self.extraction_seconds or 0.0)

    @cached_property
    def pair_curves(self) -> dict[str, tuple[list[int], list[float]]]:
        """Steps and values of t and b in stage 1; empty for methods without them."""
        return read_pair_curves(self.run / "metrics.csv") if self.evaluation else {}

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
        types = dict.fromkeys(("name", "split", "label", column), str)
        table = read_parquet(self.run / "predictions.parquet", types)
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


def read_pair_curves(file: Path) -> dict[str, tuple[list[int], list[float]]]:
    """Return steps and values of t and b from the metrics of a run, {} if there are none."""
    curves: dict[str, tuple[list[int], list[float]]] = {}
    names = dict(zip(STEP_METRICS, ("t", "b"), strict=True))
    for row in csv_rows(file, {"stage": str, "metric": str, "step": int, "value": float}):
        if row["stage"] == "pretrain" and row["metric"] in names:
            steps, values = curves.setdefault(names[row["metric"]], ([], []))
            steps.append(int(row["step"]))
            values.append(float(row["value"]))
    return curves


def read_results(
    cells: Iterable[Cell], runs: Path, failures: Mapping[str, str]
) -> list[CellResult]:
    """Return the result of each cell."""
    return [CellResult(cell, runs / cell.address, failures.get(cell.address)) for cell in cells]


def evaluated_runs(results: Sequence[CellResult], metric: Metric = ACCURACY) -> MethodTable:
    """Return the finished runs by column, method, and seed with fold.

    kNN is one of the methods if they are compared by accuracy; other metrics of kNN are not stored.
    """
    runs: MethodTable = {}
    knn = knn_name([result.cell for result in results])
    for result in results:
        rows = runs.setdefault(result.cell.column, {knn: {}} if metric is ACCURACY else {})
        method_runs = rows.setdefault(result.cell.row, {})
        if result.evaluation is None:
            continue
        run = result.predictions()
        value = None if metric is ACCURACY else metric.scaled(result.evaluation)
        if metric is ACCURACY or value is not None:
            method_runs[result.cell.key] = replace(run, value=value)
        if knn in rows and result.cell.key not in rows[knn] and shows_encoder(result.cell):
            rows[knn][result.cell.key] = result.predictions("neighbours")
    return runs


def knn_name(cells: Sequence[Cell]) -> str:
    """Return the name of the row of kNN, with the encoder whose features it uses."""
    shown = [cell for cell in cells if shows_encoder(cell)]
    encoders = {cell.recipe.encoder.name for cell in shown}
    encoder = encoders.pop() if len(encoders) == 1 else "encoder of the column"
    trained_by = {cell.row for cell in shown if not cell.recipe.encoder.frozen}
    return f"{KNN} on {encoder}" + (f", trained by {min(trained_by)}" if trained_by else "")


def shows_encoder(cell: Cell) -> bool:
    """Return whether the kNN row of the table uses the predictions of this run.

    A frozen encoder is the same for all methods; otherwise that of cross-entropy is used.
    """
    return cell.recipe.encoder.frozen or cell.recipe.method.name == CROSS_ENTROPY


def results_csv(results: Iterable[CellResult]) -> str:
    """Return a CSV file with one row per cell, finished or not."""
    rows = [
        {name: text_cell(value) if isinstance(value, str) else value for name, value in row.items()}
        for row in map(result_row, results)
    ]
    return csv_text([rows[0] if rows else [], *(row.values() for row in rows)])


def result_row(result: CellResult) -> dict[str, str | int | float | None]:
    """Return the numbers of a run by name; None for what was not measured."""
    cell, evaluation = result.cell, result.evaluation
    row: dict[str, str | int | float | None] = {
        "method": cell.row,
        "column": cell.column,
        "seed": cell.seed,
        "fold": cell.fold,
        "status": result.status,
        "split": evaluation.split if evaluation else None,
        "readout": result.summary.readout if result.summary else None,
    }
    row |= {metric.name: metric.value(evaluation) if evaluation else None for metric in METRICS}
    leakage = evaluation.leakage if evaluation else None
    row |= {
        "class_from_style": leakage.class_from_style if leakage else None,
        "leakage": leakage.excess if leakage else None,
        "rejected": evaluation.rejection.known_rejected if evaluation else None,
    }
    for name in ("t", "b"):
        _, values = result.pair_curves.get(name, ([], []))
        row[name] = values[-1] if values else None
    measured = evaluation.baselines.measured() if evaluation else {}
    row |= {name: measured.get(name) for name in BASELINES}
    return row | {
        "images": evaluation.images if evaluation else None,
        "learning_rate": cell.recipe.pretrain.lr,
        "seconds": result.seconds,
        "seconds_extraction": result.extraction_seconds,
        "seconds_without_extraction": result.training_seconds,
        "run": cell.address,
        "failure": result.failure,
    }


def pairs_csv(comparison: Comparison) -> str:
    """Return a CSV file with the difference and the p-values of every pair of methods."""
    rows: list[tuple[object, ...]] = [("column", "first", "second", "difference", "p", "p_holm")]
    for column in comparison.columns:
        for pair in column.pairs:
            names = map(text_cell, (column.name, pair.first, pair.second))
            p = "" if pair.p is None else pair.p
            rows.append((*names, pair.difference, p, pair.p_holm))
    return csv_text(rows)
