"""`--dask` with a scheduler and workers as separate processes, some of which are killed."""

import csv
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from cluster_commands import run, scs_command, wait_until
from dask_processes import DaskProcesses

pytest.importorskip("distributed")

COMPARE = (
    *("compare", "shapes", "--methods", "supcon", "--seeds", "1", "--no-tune", "--epochs", "8"),
    *("--set", "probe.epochs=2", "--set", "probe.views=1", "--out", "table"),
)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[DaskProcesses]:
    folder = tmp_path / "dask"
    folder.mkdir()
    started = DaskProcesses(folder)
    try:
        started.start_scheduler()
        yield started
    finally:
        started.stop()


def _results(folder: Path) -> list[dict[str, str]]:
    with (folder / "table" / "results.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    return [{key: value for key, value in row.items() if "seconds" not in key} for row in rows]


def _calls(worker: subprocess.Popen[bytes]) -> list[psutil.Process]:
    """Return the processes that a worker has started for its calls."""
    return psutil.Process(worker.pid).children() if worker.poll() is None else []


def _ended(process: psutil.Process) -> bool:
    """Return whether a process has ended; it stays a zombie where nobody waits for orphans."""
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


def test_every_cell_is_trained_once_after_a_killed_worker_and_a_restarted_scheduler(
    cluster: DaskProcesses, tmp_path: Path
) -> None:
    for name in ("alone", "shared"):
        (tmp_path / name).mkdir()
    run(*COMPARE, cwd=tmp_path / "alone")
    folder = tmp_path / "shared"
    runs = folder / "runs" / "compared"
    workers = [cluster.start_worker() for _ in range(2)]
    with (tmp_path / "command.log").open("w") as log:
        command = subprocess.Popen(
            scs_command(*COMPARE, "--dask", cluster.address), cwd=folder, stdout=log, stderr=log
        )

    def begun() -> list[Path]:
        return [f.parent for f in runs.glob("*/metrics.csv") if _in_training(f.parent)]

    wait_until(lambda: begun() and _calls(workers[0]), 900, "a cell in training")
    (call,) = _calls(workers[0])
    workers[0].kill()  # SIGKILL: the call is told by the end of its standard input
    wait_until(lambda: _ended(call), 300, "the end of its call")
    wait_until(lambda: list(runs.glob("*/finished.json")), 900, "the first finished cell")

    assert cluster.scheduler is not None
    cluster.scheduler.kill()
    cluster.scheduler.wait()
    assert command.wait(300) == 2, (tmp_path / "command.log").read_text()
    assert "run the same command again to resume" in (tmp_path / "command.log").read_text()
    finished = {f: f.stat().st_mtime_ns for f in runs.glob("*/finished.json")}
    cluster.start_scheduler()
    cluster.start_worker()
    run(*COMPARE, "--dask", cluster.address, cwd=folder)

    assert {file: file.stat().st_mtime_ns for file in finished} == finished
    assert _results(folder) == _results(tmp_path / "alone")
    for file in runs.glob("*/metrics.csv"):
        with file.open(newline="") as rows:
            steps = [tuple(row.values())[:4] for row in csv.DictReader(rows)]
        assert len(steps) == len(set(steps)), f"{file.parent} was trained twice"


def _in_training(run: Path) -> bool:
    rows = len((run / "metrics.csv").read_text().splitlines())
    return rows > 4 and not (run / "finished.json").exists()


def test_a_search_on_a_cluster_outlives_a_worker(cluster: DaskProcesses, tmp_path: Path) -> None:
    command = ["tune", "shapes", "--out", "search", "--trials", "3", "--dask", cluster.address]
    command += ["--over", "pretrain.lr=0.01..1:log", "--epochs", "5", "--workers", "0"]
    command += ["--method", "supcon", "--set", "probe.epochs=2", "--set", "probe.views=1"]
    workers = [cluster.start_worker() for _ in range(2)]
    wait_until(lambda: cluster.logs().count("Registered to") >= 2, 60, "two workers")
    with (tmp_path / "command.log").open("w") as log:
        process = subprocess.Popen(scs_command(*command), cwd=tmp_path, stdout=log, stderr=log)
    trials = tmp_path / "search" / "trials"
    wait_until(lambda: list(trials.glob("*/metrics.csv")) and _calls(workers[0]), 900, "a trial")
    workers[0].kill()
    assert process.wait(900) == 0, (tmp_path / "command.log").read_text() + cluster.logs()
    assert "best of 3 trials" in (tmp_path / "command.log").read_text()
    assert len((tmp_path / "search" / "trials.csv").read_text().splitlines()) == 4
