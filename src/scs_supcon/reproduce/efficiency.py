"""Table 6: seconds per epoch and peak memory of stage 1, measured on the device at hand."""

import json
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from scs_supcon.benchmark.compare import plan as plan_cells
from scs_supcon.benchmark.expand import Cell
from scs_supcon.benchmark.tables import NOT_RUN, escape_markdown
from scs_supcon.device import Compute, torch_device
from scs_supcon.errors import UserError
from scs_supcon.io.atomic import write_json, write_text
from scs_supcon.io.csv import csv_text
from scs_supcon.io.records import read_json_object
from scs_supcon.io.typed import validate
from scs_supcon.progress import Display, Progress
from scs_supcon.recipe import Values, make_recipe, merge, write_toml
from scs_supcon.reproduce.experiment import published_columns
from scs_supcon.reproduce.markdown import heading
from scs_supcon.reproduce.plan import Plan
from scs_supcon.reproduce.records import portable_recipe
from scs_supcon.runs.environment import describe_environment
from scs_supcon.training.workers import WorkerPool, WorkerStatus

STAGE_1 = "stage 1"
EPOCHS = 2  # the first epoch also loads libraries; the last one is measured


class StepTimer(Display):
    """A silent display that records when each step of stage 1 ended, and the memory by then."""

    def __init__(self, device: str) -> None:
        super().__init__(quiet=True)
        self.device = device
        self.times: dict[int, float] = {}
        self.before = self.peak = 0

    @contextmanager
    def progress(self, title: str) -> Iterator[Progress]:
        """Yield a callback that records the steps of stage 1."""
        if title != STAGE_1:
            yield lambda done, total, note="": None
            return
        self.before = peak_memory(self.device)
        yield lambda done, total, note="": self.times.update({done: time.perf_counter()})
        self.peak = peak_memory(self.device)

    def seconds_per_epoch(self, epochs: int) -> float:
        """Return the duration of the last epoch."""
        total = max(self.times)
        return self.times[total] - self.times[total - total // epochs]


def peak_memory(device: str) -> int:
    """Return the largest memory so far in bytes: allocated on a GPU, or of this process."""
    if device.startswith("cuda"):
        import torch

        return torch.cuda.max_memory_allocated(device)
    if sys.platform == "win32":
        return 0
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def measure_table(plan: Plan, out: Path, runs: Path, compute: Compute, display: Display) -> str:
    """Measure every method, one at a time, and write the results folder; return a text."""
    table = plan.table(seeds=1)
    cells, _ = plan_cells(table, runs, compute, 1, display, accept_old=False)
    wanted = {row.name for row in plan.rows}
    datasets = {column.name: column.dataset for column in plan.columns}
    measured = []
    for cell in cells:
        if cell.row in wanted:
            display.line(f"measuring {cell}")
            values = _measure_or_read(cell, runs / "efficiency", compute)
            recipe = portable_recipe(_short(cell).recipe, datasets[cell.column])
            write_text(out / "recipes" / f"{cell.address}.toml", write_toml(recipe))
            measured.append((cell, values))
    lines = _page(plan, measured)
    write_text(out / "rows.csv", _csv(measured))
    write_text(out / "README.md", "\n\n".join(lines) + "\n")
    return lines[-2]


def _measure_or_read(cell: Cell, folder: Path, compute: Compute) -> dict[str, float]:
    """Return the measurement of a cell; one of the same recipe, code and device is kept."""
    file = folder / f"{cell.address}-{torch_device(compute.device).replace(':', '')}.json"
    if not file.exists():
        with WorkerPool(1, ["scs_supcon.training.pipeline"]) as pool:
            pool.start(cell.address, measure_cell, _short(cell), compute)
            reports = pool.wait(1.0)
            while not reports:
                reports = pool.wait(1.0)
        (report,) = reports.values()
        if report.status is not WorkerStatus.DONE:
            raise UserError(f"{cell} cannot be measured: {report.message}")
        write_json(file, json.loads(report.message))
    values: dict[str, float] = validate(dict[str, float], read_json_object(file), file)
    return values


def measure_cell(cell: Cell, compute: Compute) -> str:
    """Train a cell in this process and return its measurement as JSON."""
    from scs_supcon.data.load import load_dataset
    from scs_supcon.training.pipeline import run

    images, _ = load_dataset(cell.recipe.data.source, compute.workers, lambda done, total: None)
    timer = StepTimer(torch_device(compute.device))
    weights = Path(cell.weights) if cell.weights else None
    with tempfile.TemporaryDirectory(prefix="scs-efficiency-") as folder:
        run(cell.recipe, images, Path(folder) / "run", compute, timer, weights=weights)
    return json.dumps(
        {
            "seconds_per_epoch": timer.seconds_per_epoch(cell.recipe.pretrain.epochs),
            "peak_bytes": timer.peak,
            "bytes_before": timer.before,
        }
    )


def _short(cell: Cell) -> Cell:
    """Return the cell with two epochs of stage 1 and one of stage 2."""
    short: Values = {"pretrain": {"epochs": EPOCHS, "warmup_epochs": 0.0}, "probe": {"epochs": 1}}
    values = merge(cell.recipe.model_dump(exclude_none=True), short)
    return replace(cell, recipe=make_recipe(values))


def _csv(measured: list[tuple[Cell, dict[str, float]]]) -> str:
    header = ["method", "column", "seconds_per_epoch", "peak_bytes", "bytes_before", "run"]
    rows = ([cell.row, cell.column, *v.values(), cell.address] for cell, v in measured)
    return csv_text([header, *rows])


def _page(plan: Plan, measured: list[tuple[Cell, dict[str, float]]]) -> list[str]:
    published = published_columns(plan.experiment)
    environment = describe_environment()
    device = environment.gpu or f"{environment.cpu}, threads: {environment.threads}"
    lines = [
        "| method | column | seconds per epoch | peak memory, MiB | of which stage 1, MiB "
        "| paper: seconds | paper: peak, GB |",
        "|---|---|---:|---:|---:|---:|---:|",
    ]
    for cell, values in measured:
        paper = [f"{value:g}" for value in published.get(cell.row, {}).values()] or [NOT_RUN] * 2
        peak, before = values["peak_bytes"] / 2**20, values["bytes_before"] / 2**20
        lines.append(
            f"| {escape_markdown(cell.row)} | {escape_markdown(cell.column)} "
            f"| [{values['seconds_per_epoch']:.2f}](recipes/{cell.address}.toml) "
            f"| {peak:.0f} | {peak - before:.0f} | {' | '.join(paper)} |"
        )
    explanation = (
        f"Measured on {device}: the second epoch of stage 1 with data loading, one process at a "
        "time; the largest memory of the process (on a GPU: allocated), and by how much stage 1 "
        "raised it. Other programs on the machine disturb the times."
    )
    return [*heading(plan), "\n".join(lines), explanation]
