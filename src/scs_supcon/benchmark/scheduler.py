"""Train the cells of a table in worker processes or on a cluster; see `cluster.tasks`."""

from collections.abc import Sequence
from pathlib import Path

from scs_supcon.benchmark.expand import Cell
from scs_supcon.cluster.tasks import SharedTask, run_tasks, task_pool
from scs_supcon.device import Compute
from scs_supcon.io.atomic import write_text
from scs_supcon.progress import Display
from scs_supcon.recipe import from_toml, write_toml


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
    dask: str | None = None,
) -> dict[str, str]:
    """Train the cells that are not finished.

    Args:
        cells: the cells of the table; cells with the same address share a run.
        runs: folder of the runs; each run directory is named by its cell's address.
        recipes: folder that receives each cell's recipe.
        compute: device, data loading and cache.
        jobs: number of processes at a time; with Dask, on each machine.
        display: shows progress.
        dask: address of the scheduler of a Dask cluster that trains the cells.

    Returns:
        The reasons for failures, by address.

    Raises:
        Stopped: on Ctrl-C or SIGTERM, after all runs are saved.
    """
    tasks = {}
    for cell in {cell.address: cell for cell in cells}.values():
        recipe, run = write_toml(cell.recipe), runs / cell.address
        if not is_finished(run):
            write_text(recipes / f"{cell.address}.toml", recipe)
        settings = (compute.device, compute.workers, str(compute.cache), compute.offline)
        tasks[cell.address] = SharedTask(
            str(cell),
            train_recipe,
            (recipe, cell.weights, str(run), *settings),
            run / "finished.json",
            run / ".lock",
            run / "worker.log",
        )
    preload = ["scs_supcon.benchmark.scheduler", "scs_supcon.training.pipeline"]
    return run_tasks(tasks, task_pool(jobs, dask, preload), display, "runs")


def train_recipe(
    recipe: str,
    weights: str | None,
    out: str,
    device: str,
    workers: int,
    cache: str,
    offline: bool,
) -> str:
    """Train a resolved recipe, given in TOML, and return its result in one line.

    Args:
        recipe: its text.
        weights: file of the encoder's weights; the recipe holds its digest only.
        out: the run directory.
        device: see `Compute`, as for the other arguments.
        workers: processes that load images.
        cache: folder for the features of frozen encoders.
        offline: never download weights.
    """
    from scs_supcon.data.load import load_dataset
    from scs_supcon.training.pipeline import run
    from scs_supcon.training.result import headline

    settings = from_toml(recipe)
    images, problems = load_dataset(settings.data.source, workers, lambda done, total: None)
    result = run(
        settings,
        images,
        Path(out),
        Compute(device, workers, Path(cache), offline),
        problems=problems,
        weights=Path(weights) if weights else None,
    )
    return headline(result.summary)
