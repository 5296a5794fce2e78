"""Train the cells of a table in a few processes, beside any others on the same runs folder.

Nothing is shared but the folder. A run belongs to the process that holds its lock, and a dead
process holds none; so every process walks through the cells, skips those that are finished or
held, trains the rest, and at the end waits for what others hold and takes over what they drop.
"""

import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerProcess
from pathlib import Path

from scs_supcon.benchmark.expand import Cell
from scs_supcon.device import Compute, cores
from scs_supcon.errors import UserError
from scs_supcon.io.atomic import write_text
from scs_supcon.io.lock import InUse, is_held
from scs_supcon.progress import Display
from scs_supcon.recipe import write_toml
from scs_supcon.training.checkpointing import Stopped
from scs_supcon.tuning.workers import follow_parent

LOOK_AGAIN = 1.0  # seconds between looks at what other processes do
PATIENCE = 60.0  # seconds for a process that was asked to stop to save its run

DONE, BUSY, FAILED, STOPPED = "done", "busy", "failed", "stopped"


@dataclass(frozen=True)
class Task:
    """One cell for one process.

    Attributes:
        recipe: the cell's recipe file.
        out: the run's folder.
        threads: of this process.
    """

    recipe: Path
    out: Path
    source: str
    method: str
    weights: str | None
    place: Compute
    threads: int


def is_finished(run: Path) -> bool:
    """Whether nothing is left to do in a run's folder."""
    return (run / "finished.json").exists()


def work(
    cells: Sequence[Cell], runs: Path, recipes: Path, place: Compute, jobs: int, display: Display
) -> dict[str, str]:
    """Train what is not finished.

    Args:
        cells: of the table; cells of one address are one run.
        runs: where runs lie, each under its cell's address.
        recipes: where each cell's recipe is written.
        place: device, cache, and so on.
        jobs: processes at a time.
        display: tells how far it is.

    Returns:
        Why a cell failed, by address.

    Raises:
        Stopped: this process was asked to stop; all runs are saved.
    """
    unique = {cell.address: cell for cell in cells}
    pool = _Pool(unique, runs, recipes, place, jobs, display)
    before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        with display.progress("cells") as tell:
            pool.run(tell)
    except KeyboardInterrupt as asked:
        pool.stop()
        raise Stopped(143 if asked.args else 130) from None
    except BaseException:
        pool.stop()
        raise
    finally:
        signal.signal(signal.SIGTERM, before)
    return pool.failures


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt(number)


@dataclass(frozen=True)
class _Job:
    process: ForkServerProcess
    answer: Connection
    start: float


class _Pool:
    """The processes of this call, and what is known of each cell."""

    def __init__(
        self,
        cells: dict[str, Cell],
        runs: Path,
        recipes: Path,
        place: Compute,
        jobs: int,
        display: Display,
    ) -> None:
        self.cells, self.runs, self.recipes = cells, runs, recipes
        self.place, self.jobs, self.display = place, jobs, display
        self.open = dict.fromkeys(cells)  # addresses neither finished nor failed, in order
        self.failures: dict[str, str] = {}
        self.active: dict[str, _Job] = {}
        self.context = multiprocessing.get_context("forkserver")
        # Each process is forked from one that has imported everything and computed nothing.
        self.context.set_forkserver_preload(
            ["scs_supcon.benchmark.scheduler", "scs_supcon.training.train"]
        )

    def run(self, tell: Callable[[int, int], None]) -> None:
        while True:
            self._collect()
            for address in [a for a in self.open if a not in self.active]:
                if is_finished(self.runs / address):
                    del self.open[address]
            tell(len(self.cells) - len(self.open) - len(self.failures), len(self.cells))
            if not self.open:
                return
            self._start()
            wait([job.answer for job in self.active.values()], LOOK_AGAIN)
            if not self.active:
                time.sleep(LOOK_AGAIN)

    def stop(self) -> None:
        """Ask all processes to stop and wait until their runs are saved."""
        for job in self.active.values():
            job.process.terminate()
        for job in self.active.values():
            job.process.join(PATIENCE)
            job.process.kill()
            job.process.join()

    def _start(self) -> None:
        for address in self.open:
            if len(self.active) >= self.jobs:
                return
            if address not in self.active and not is_held(self.runs / address / ".lock"):
                self.active[address] = self._begin(self.cells[address])

    def _begin(self, cell: Cell) -> _Job:
        file = self.recipes / f"{cell.address}.toml"
        write_text(file, write_toml(cell.recipe))
        threads = max(1, cores() // self.jobs)
        out, source = self.runs / cell.address, cell.recipe.data.source
        task = Task(file, out, source, cell.method, cell.weights, self.place, threads)
        ours, theirs = self.context.Pipe(duplex=False)
        process = self.context.Process(target=train_cell, args=(task, theirs))
        process.start()
        theirs.close()
        return _Job(process, ours, time.monotonic())

    def _collect(self) -> None:
        for address, job in list(self.active.items()):
            if not job.answer.poll() and job.process.is_alive():
                continue
            kind, message = _answer(job)
            del self.active[address]
            if kind == DONE:
                del self.open[address]
                took = time.monotonic() - job.start
                self.display.line(f"{self.cells[address]}: {message} ({took:.0f} s)")
            elif kind == FAILED:
                del self.open[address]
                self.failures[address] = message
                self.display.line(f"failed: {self.cells[address]}: {message.splitlines()[-1]}")
            elif kind == STOPPED:
                raise KeyboardInterrupt  # Ctrl-C reached the process before it reached us


def _answer(job: _Job) -> tuple[str, str]:
    kind, message = FAILED, ""
    with suppress(EOFError):
        if job.answer.poll():
            kind, message = job.answer.recv()
    job.answer.close()
    job.process.join()
    if not message and kind == FAILED:
        code = job.process.exitcode or 0
        cause = f"signal {-code}" if code < 0 else f"exit code {code}"
        message = f"its process ended by {cause}, perhaps for want of memory: use fewer --jobs"
    return kind, message


def train_cell(task: Task, answer: Connection) -> None:
    """Train one cell in a process of its own and send how it ended."""
    # This process was forked by a server; those that load its images start the usual way.
    multiprocessing.set_start_method(None, force=True)
    _leave_terminal_alone(task.out)
    follow_parent()
    try:
        answer.send(_trained(task))
    except Stopped:
        answer.send((STOPPED, ""))
    except InUse:
        answer.send((BUSY, ""))
    except UserError as error:
        answer.send((FAILED, str(error)))
    except Exception as error:
        import traceback

        traceback.print_exc()  # into the log
        text = f"{type(error).__name__}: {error}".strip()
        answer.send((FAILED, f"{text}; see {task.out / 'worker.log'}"))


def _trained(task: Task) -> tuple[str, str]:
    import torch

    from scs_supcon.training.stage2 import headline
    from scs_supcon.training.train import train

    torch.set_num_threads(task.threads)
    place = task.place
    summary = train(
        task.source,
        out=task.out,
        method=task.method,
        weights=task.weights,
        recipe=task.recipe,
        device=place.device,
        workers=place.workers,
        cache=place.cache,
        offline=place.offline,
        report=False,
        quiet=True,
    )
    return DONE, headline(summary)


def _leave_terminal_alone(out: Path) -> None:
    """Send what libraries print to a log in the run's folder."""
    out.mkdir(parents=True, exist_ok=True)
    log = os.open(out / "worker.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for stream in (1, 2):
        os.dup2(log, stream)
    os.close(log)
