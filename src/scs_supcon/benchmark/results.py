"""What the cells of a table came to: read from run folders; nothing here trains."""

import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from scs_supcon.benchmark.expand import Cell
from scs_supcon.benchmark.pairwise import Judged, Key
from scs_supcon.benchmark.scheduler import is_finished
from scs_supcon.benchmark.table import CROSS_ENTROPY, NEIGHBOURS
from scs_supcon.io.csv import text_cell

KNN = "kNN on the encoder"
BASELINES = {
    "knn_on_readout": "kNN on the readout",
    "nearest_class_mean": "nearest class mean",
    "linear_probe": "linear probe of the encoder",
    "knn_on_encoder": KNN,
}


@dataclass(frozen=True)
class Outcome:
    """One cell and what its run says, if it is finished."""

    cell: Cell
    run: Path
    failure: str | None

    @cached_property
    def summary(self) -> dict[str, Any] | None:
        """What the run says of itself; None if it is not finished."""
        file = self.run / "finished.json"
        return json.loads(file.read_text(encoding="utf-8")) if is_finished(self.run) else None

    @property
    def status(self) -> str:
        """Done, failed or missing."""
        return "done" if self.summary else "failed" if self.failure else "missing"

    @cached_property
    def trained_on(self) -> int:
        """How many images the run learnt from."""
        with (self.run / "splits.csv").open(newline="", encoding="utf-8") as file:
            return sum(row["split"] == "train" for row in csv.DictReader(file))

    def judged(self, column: str = "prediction") -> Judged:
        """Which of the judged images were named rightly by the model, or by "neighbours"."""
        import pyarrow.parquet as pq

        assert self.summary is not None
        table = pq.read_table(
            self.run / "predictions.parquet", columns=["name", "split", "label", column]
        )
        judged_on = self.summary["judged_on"]
        rows = table.filter(np.array(table["split"]) == judged_on)
        order = np.argsort(np.array(rows["name"].to_pylist()))
        right = np.array(rows["label"].to_pylist()) == np.array(rows[column].to_pylist())
        names = np.array(rows["name"].to_pylist())[order]
        return Judged(tuple(names.tolist()), right[order], self.trained_on, judged_on)


def read_outcomes(cells: Iterable[Cell], runs: Path, failures: Mapping[str, str]) -> list[Outcome]:
    """Look at the run of each cell."""
    return [Outcome(cell, runs / cell.address, failures.get(cell.address)) for cell in cells]


def judged_cells(outcomes: Sequence[Outcome]) -> dict[str, dict[str, dict[Key, Judged]]]:
    """Everything finished, by column, row, and seed with fold; kNN is one of the rows."""
    found: dict[str, dict[str, dict[Key, Judged]]] = {}
    for outcome in outcomes:
        rows = found.setdefault(outcome.cell.column, {NEIGHBOURS: {}})
        cells = rows.setdefault(outcome.cell.row, {})
        if outcome.summary:
            cells[outcome.cell.key] = outcome.judged()
            neighbours = rows[NEIGHBOURS]
            if outcome.cell.key not in neighbours and _tells_of_encoder(outcome.cell):
                neighbours[outcome.cell.key] = outcome.judged("neighbours")
    return found


def _tells_of_encoder(cell: Cell) -> bool:
    """A frozen encoder is the same for all; one that is trained is taken from cross-entropy."""
    return cell.recipe.encoder.frozen or cell.recipe.method.name == CROSS_ENTROPY


def results_csv(outcomes: Iterable[Outcome]) -> str:
    """One line for each cell, finished or not."""
    text = io.StringIO()
    rows = [_csv_row(outcome) for outcome in outcomes]
    writer = csv.DictWriter(text, list(rows[0]) if rows else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _csv_row(outcome: Outcome) -> dict[str, Any]:
    cell, summary = outcome.cell, outcome.summary or {}
    metrics, baselines = summary.get("metrics", {}), summary.get("baselines", {})
    return {
        "method": text_cell(cell.row),
        "column": text_cell(cell.column),
        "seed": cell.seed,
        "fold": "" if cell.fold is None else cell.fold,
        "status": outcome.status,
        "accuracy": summary.get("accuracy", ""),
        "judged_on": summary.get("judged_on", ""),
        "macro_f1": metrics.get("macro_f1", ""),
        "balanced_accuracy": metrics.get("balanced_acc", ""),
        **{name: baselines.get(title, "") for name, title in BASELINES.items()},
        "images": summary.get("images", ""),
        "seconds": summary.get("seconds", ""),
        "run": cell.address,
        "failure": text_cell(outcome.failure or ""),
    }
