"""Tasks in a folder that several commands, also on several machines, may share.

A task belongs to the process that holds its lock, and the system frees the lock of a process that
ends. Each command starts the tasks that are neither finished nor locked. It then waits for the
locked ones, and starts those that are unlocked before they are finished.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from scs_supcon.io.file_systems import lock_caution
from scs_supcon.io.lock import is_held
from scs_supcon.progress import Display
from scs_supcon.training.workers import WorkerPool, WorkerReport, WorkerStatus

POLL_SECONDS = 1.0  # between checks for tasks that other commands have finished

Argument = str | int | bool | None
"""What a task may be given: plain values, which other machines can be sent."""


@dataclass(frozen=True)
class SharedTask:
    """A call of a function of this package whose result is a file.

    Attributes:
        title: for the display.
        function: returns its result in one line.
        arguments: of the function.
        result: the file that exists when the task is finished.
        lock: the lock that the function holds while it works.
        log: file for the output of the worker.
    """

    title: str
    function: Callable[..., str]
    arguments: tuple[Argument, ...]
    result: Path
    lock: Path
    log: Path | None = None


class TaskPool(Protocol):
    """Runs functions elsewhere: `WorkerPool` in processes, `DaskPool` on a cluster."""

    @property
    def workers(self) -> Collection[str]:
        """The names of what was started and has not ended."""

    @property
    def has_room(self) -> bool:
        """Whether another function may be started."""

    @property
    def jobs(self) -> int:
        """How many functions run at a time."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...

    def start(
        self, name: str, function: Callable[..., str], *args: Any, log: Path | None = None
    ) -> None:
        """Start `function(*args)`; see `WorkerPool.start`."""

    def wait(self, timeout: float) -> dict[str, WorkerReport]:
        """Return the reports of those that have ended, by name; see `WorkerPool.wait`."""


def task_pool(jobs: int, dask: str | None = None, preload: Sequence[str] = ()) -> TaskPool:
    """Return a pool of processes on this machine, or of the workers of a Dask cluster.

    Args:
        jobs: number of processes at a time; with Dask, on each machine.
        dask: address of a Dask scheduler.
        preload: modules that every process on this machine needs.
    """
    if dask is None:
        return WorkerPool(jobs, preload)
    from scs_supcon.cluster.dask_pool import DaskPool

    return DaskPool(dask, jobs)


def run_tasks(
    tasks: Mapping[str, SharedTask], pool: TaskPool, display: Display, what: str
) -> dict[str, str]:
    """Run the tasks that are not finished; return the reasons for failures, by name.

    Args:
        tasks: by unique names, in the order in which they are started.
        pool: where to run them.
        display: shows progress and the result of each task.
        what: the name of the progress bar, such as "runs".

    Raises:
        Stopped: on Ctrl-C or SIGTERM, after the workers of this machine have saved their runs.
        UserError: the connection to a cluster is lost.
    """
    _check_locks(tasks, display)
    pending = dict.fromkeys(tasks)  # neither finished nor failed, in order
    failures: dict[str, str] = {}
    with display.progress(what) as progress, pool:
        while True:
            for name in [name for name in pending if name not in pool.workers]:
                if tasks[name].result.exists():
                    del pending[name]
            progress(len(tasks) - len(pending) - len(failures), len(tasks))
            if not pending:
                return failures
            for name in pending:
                task = tasks[name]
                if name not in pool.workers and not is_held(task.lock) and pool.has_room:
                    pool.start(name, task.function, *task.arguments, log=task.log)
            for name, report in pool.wait(POLL_SECONDS).items():
                if report.status is WorkerStatus.DONE:
                    del pending[name]
                    display.line(f"{tasks[name].title}: {report.message}, {report.seconds:.0f} s")
                elif report.status is WorkerStatus.FAILED:
                    del pending[name]
                    failures[name] = report.message
                    reason = report.message.splitlines()[-1]
                    display.line(f"failed: {tasks[name].title}: {reason}")


def _check_locks(tasks: Mapping[str, SharedTask], display: Display) -> None:
    """Warn if the folder of the tasks has locks that do not hold between machines."""
    first = next(iter(tasks.values()), None)  # all tasks are in one folder
    if first is not None and (caution := lock_caution(first.lock.parent)):
        display.line(f"caution   {caution}")
