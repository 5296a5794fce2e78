"""A pool of processes that train side by side and stop together.

`scs compare` runs one cell of its table per process; `scs tune` runs workers on one study.
"""

import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from enum import Enum
from multiprocessing.connection import Connection
from multiprocessing.connection import wait as wait_for
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import TracebackType
from typing import Any

from scs_supcon.device import cores
from scs_supcon.errors import UserError
from scs_supcon.io.atomic import DISK_FULL, write_error
from scs_supcon.io.lock import InUse
from scs_supcon.plugins import allow_code, allowed_code
from scs_supcon.training.checkpointing import Stopped

GRACE_SECONDS = 60.0  # that a worker has to save its run after SIGTERM


class WorkerStatus(Enum):
    """How a worker ended."""

    DONE = "done"
    BUSY = "busy"  # another process holds the run
    FAILED = "failed"
    STOPPED = "stopped"  # on request; its run is saved


@dataclass(frozen=True)
class WorkerReport:
    """The status, message and duration of a worker that ended.

    Attributes:
        message: the function's result if it is done, the reason if it failed.
        seconds: wall time since the worker was started.
    """

    status: WorkerStatus
    message: str
    seconds: float


@dataclass(frozen=True)
class _Worker:
    process: BaseProcess
    pipe: Connection
    start: float


def threads_per_worker(jobs: int) -> int:
    """Return the share of the cores, or OMP_NUM_THREADS if that is less, as for one process."""
    share = max(1, cores() // jobs)
    limit = os.environ.get("OMP_NUM_THREADS", "")
    return min(share, int(limit)) if limit.isdecimal() and int(limit) else share


class WorkerPool:
    """Run functions in up to `jobs` processes that share the cores.

    Use it as a context manager: Ctrl-C, SIGTERM and errors inside stop all workers, which save
    their runs first; Ctrl-C and SIGTERM then raise `Stopped`. Workers also stop when this process
    is killed.

    Args:
        jobs: number of processes at a time.
        preload: modules that every worker needs.
    """

    def __init__(self, jobs: int, preload: Sequence[str] = ()) -> None:
        self.jobs = jobs
        self.threads = threads_per_worker(jobs)
        self.workers: dict[str, _Worker] = {}
        # With forkserver, workers are forked from a process that has imported everything and
        # computed nothing. Elsewhere fork is missing or unsafe.
        self._context: Any = multiprocessing.get_context(
            "forkserver" if sys.platform == "linux" else "spawn"
        )
        self._context.set_forkserver_preload(["scs_supcon.training.workers", *preload])

    def __enter__(self) -> "WorkerPool":
        self._exits = stoppable(self.stop)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._exits.__exit__(kind, error, trace)

    @property
    def has_room(self) -> bool:
        """Whether another worker may be started."""
        return len(self.workers) < self.jobs

    def start(
        self, name: str, function: Callable[..., str], *args: Any, log: Path | None = None
    ) -> None:
        """Start a worker that calls `function(*args)`.

        Args:
            name: a unique name, under which `wait` returns the report.
            function: a module-level function; it returns the message of the report.
            args: its arguments, which must be picklable.
            log: file for the output of the worker; default: this terminal.
        """
        receiver, sender = self._context.Pipe(duplex=False)
        process = self._context.Process(
            target=_run_worker,
            args=(sender, self.threads, log, allowed_code(), function, args),
        )
        with _later_signals():  # otherwise a worker could be started and not be known
            process.start()
            sender.close()
            self.workers[name] = _Worker(process, receiver, time.monotonic())

    def wait(self, timeout: float) -> dict[str, WorkerReport]:
        """Wait up to `timeout` seconds for a worker to end; return the reports by name.

        Raises:
            KeyboardInterrupt: a worker was stopped, as by a Ctrl-C that it received first.
        """
        if not self.workers:
            time.sleep(timeout)
            return {}
        wait_for([worker.pipe for worker in self.workers.values()], timeout)
        reports = {
            name: _report(worker)
            for name, worker in self.workers.items()
            if worker.pipe.poll() or not worker.process.is_alive()
        }
        for name in reports:
            del self.workers[name]
        if any(report.status is WorkerStatus.STOPPED for report in reports.values()):
            raise KeyboardInterrupt
        return reports

    def stop(self) -> None:
        """Stop all workers and wait until their runs are saved."""
        for worker in self.workers.values():
            worker.process.terminate()
        for worker in self.workers.values():
            worker.process.join(GRACE_SECONDS)
            worker.process.kill()
            worker.process.join()
        self.workers.clear()


@contextmanager
def _later_signals() -> Iterator[None]:
    """Handle stop signals that arrive in the body at its end."""
    received: list[int] = []
    handlers = {
        number: signal.signal(number, lambda number, _: received.append(number))
        for number in (signal.SIGTERM, signal.SIGINT)
    }
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        if received:
            signal.raise_signal(received[0])


def stoppable(stop: Callable[[], object]) -> ExitStack:
    """Handle SIGTERM like Ctrl-C until the end of the returned stack, which calls `stop` first.

    If it ends because of one of them, it raises `Stopped`.
    """
    with ExitStack() as exits:
        exits.enter_context(_raise_stopped())
        exits.callback(stop)
        return exits.pop_all()


@contextmanager
def _raise_stopped() -> Iterator[None]:
    old_handler = signal.signal(signal.SIGTERM, _raise_interrupt)
    try:
        yield
    except KeyboardInterrupt as error:
        raise Stopped(143 if error.args else 130) from None
    finally:
        signal.signal(signal.SIGTERM, old_handler)


def _raise_interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt(number)


def _report(worker: _Worker) -> WorkerReport:
    """Receive a worker's report; a crashed worker sends none."""
    result: tuple[WorkerStatus, str] | None = None
    with suppress(EOFError, ConnectionError):
        if worker.pipe.poll():
            result = worker.pipe.recv()
    worker.pipe.close()
    worker.process.join()
    if result is None:
        code = worker.process.exitcode or 0
        cause = f"signal {-code}" if code < 0 else f"exit code {code}"
        message = f"the process ended with {cause}, perhaps out of memory: use fewer --jobs"
        result = WorkerStatus.FAILED, message
    return WorkerReport(*result, seconds=time.monotonic() - worker.start)


def _run_worker(
    pipe: Connection,
    threads: int,
    log: Path | None,
    own_code: Sequence[str],
    function: Callable[..., str],
    args: tuple[Any, ...],
) -> None:
    import torch

    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    allow_code(*own_code)

    # Data loaders of this process use the platform's default start method.
    multiprocessing.set_start_method(None, force=True)
    _stop_with_parent()
    torch.set_num_threads(threads)
    pipe.send(call_and_report(function, args, log))


def call_and_report(
    function: Callable[..., str], args: tuple[Any, ...], log: Path | None
) -> tuple[WorkerStatus, str]:
    """Call a function with its output in `log`; return how it ended, and its result or error."""
    try:
        if log is not None:
            _redirect_output(log)
        return WorkerStatus.DONE, function(*args)
    except Stopped:
        return WorkerStatus.STOPPED, ""
    except InUse:
        return WorkerStatus.BUSY, ""
    except UserError as error:
        return WorkerStatus.FAILED, str(error)
    except Exception as error:
        if isinstance(error, OSError) and error.errno in DISK_FULL:
            return WorkerStatus.FAILED, str(write_error(error, Path(error.filename or "a file")))
        traceback.print_exc()
        text = f"{type(error).__name__}: {error}".strip()
        return WorkerStatus.FAILED, f"{text}; see {log}" if log else text


def _stop_with_parent() -> None:
    """Stop this process when its parent has ended; a run is saved first."""

    def wait() -> None:
        parent = multiprocessing.parent_process()
        if parent is not None:
            parent.join()
            os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, daemon=True).start()


def _redirect_output(log: Path) -> None:
    """Append standard output and error, also of libraries, to a file."""
    log.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for stream in (1, 2):
        os.dup2(descriptor, stream)
    os.close(descriptor)
