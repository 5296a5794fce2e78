"""Train the cells of a table in worker processes.

Several commands, also on several machines, may share one folder of runs. A run belongs to the
process that holds its lock, and the system frees the lock of a process that ends. Each command
trains the cells that are neither finished nor locked. It then waits for the locked ones, and trains
those that are unlocked before they are finished.
"""

from collections.abc import Sequence
from pathlib import Path

from scs_supcon.benchmark.expand import Cell
from scs_supcon.device import Compute
from scs_supcon.io.atomic import write_text
from scs_supcon.io.lock import is_held
from scs_supcon.progress import Display
from scs_supcon.recipe import write_toml
from scs_supcon.training.workers import WorkerPool, WorkerStatus

POLL_SECONDS = 1.0  # between checks for runs that other commands have finished


def is_finished(run: Path) -> bool:
    """Return whether a run directory holds a finished run."""
    return (run / "finished.json").exists()


def train_cells(
    cells: Sequence[Cell],
    runs: Path,
    recipes: Path,
    compute: Compute,
    jobs: int,
    display: Display,
) -> dict[str, str]:
    """Train the cells that are not finished.

    Args:
        cells: the cells of the table; cells with the same address share a run.
        runs: folder of the runs; each run directory is named by its cell's address.
        recipes: folder that receives each cell's recipe.
        compute: device, data loading and cache.
        jobs: number of processes at a time.
        display: shows progress.

    Returns:
        The reasons for failures, by address.

    Raises:
        Stopped: on Ctrl-C or SIGTERM, after all runs are saved.
    """
    unique = {cell.address: cell for cell in cells}
    pending = dict.fromkeys(unique)  # neither finished nor failed, in order
    failures: dict[str, str] = {}
    preload = ["scs_supcon.benchmark.scheduler", "scs_supcon.training.pipeline"]
    with display.progress("runs") as progress, WorkerPool(jobs, preload) as pool:
        while True:
            for address in [a for a in pending if a not in pool.workers]:
                if is_finished(runs / address):
                    del pending[address]
            progress(len(unique) - len(pending) - len(failures), len(unique))
            if not pending:
                return failures
            for address in pending:
                run = runs / address
                waiting = address not in pool.workers and not is_held(run / ".lock")
                if waiting and pool.has_room:
                    cell = unique[address]
                    write_text(recipes / f"{address}.toml", write_toml(cell.recipe))
                    log = run / "worker.log"
                    pool.start(address, train_cell, cell, run, compute, log=log)
            for address, report in pool.wait(POLL_SECONDS).items():
                if report.status is WorkerStatus.DONE:
                    del pending[address]
                    display.line(f"{unique[address]}: {report.message}, {report.seconds:.0f} s")
                elif report.status is WorkerStatus.FAILED:
                    del pending[address]
                    failures[address] = report.message
                    reason = report.message.splitlines()[-1]
                    display.line(f"failed: {unique[address]}: {reason}")


def train_cell(cell: Cell, out: Path, compute: Compute) -> str:
    """Train one cell and return its result in one line."""
    from scs_supcon.data.load import load_dataset
    from scs_supcon.training.pipeline import run
    from scs_supcon.training.result import headline

    images, problems = load_dataset(
        cell.recipe.data.source, compute.workers, lambda done, total: None
    )
    weights = Path(cell.weights) if cell.weights else None
    result = run(cell.recipe, images, out, compute, problems=problems, weights=weights)
    return headline(result.summary)
