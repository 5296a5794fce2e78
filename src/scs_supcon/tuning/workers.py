"""Several processes on one piece of work: started, watched, and stopped together."""

import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from scs_supcon.device import cores
from scs_supcon.errors import UserError
from scs_supcon.training.checkpointing import Stopped


def side_by_side(
    work: Callable[[Any], None], job: Any, jobs: int, watch: Callable[[], None]
) -> list[int]:
    """Run `work(job)` in `jobs` processes that share the cores, and return their exit codes.

    Args:
        work: a function of a module; it gets what each process is to do.
        job: what to do, the same for all.
        jobs: how many processes.
        watch: called twice a second, to show how far they are.
    """
    # Each is forked from a process that has imported everything and computed nothing.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([work.__module__])
    with _threads(max(1, cores() // jobs)):
        started = [context.Process(target=_worker, args=(work, job)) for _ in range(jobs)]
        for process in started:
            process.start()
    try:
        while any(process.is_alive() for process in started):
            watch()
            time.sleep(0.5)
    except BaseException:
        for process in started:
            process.terminate()  # a run saves itself first
        raise
    finally:
        for process in started:
            process.join()
    watch()
    return [process.exitcode or 0 for process in started]


def _worker(work: Callable[[Any], None], job: Any) -> None:
    """Work until done, or until the process that started this one is gone."""
    follow_parent()
    try:
        work(job)
    except UserError as error:
        sys.exit(f"error: {error}")
    except Stopped as stopped:
        sys.exit(stopped.exit_code)


def follow_parent() -> None:
    """Stop when the process that started this one is gone; a run saves itself first."""

    def wait() -> None:
        parent = multiprocessing.parent_process()
        if parent is not None:
            parent.join()
            os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, daemon=True).start()


@contextmanager
def _threads(number: int) -> Iterator[None]:
    """Let processes that are started inside compute with so many threads each."""
    before = os.environ.get("OMP_NUM_THREADS")
    os.environ["OMP_NUM_THREADS"] = str(number)
    try:
        yield
    finally:
        if before is None:
            del os.environ["OMP_NUM_THREADS"]
        else:
            os.environ["OMP_NUM_THREADS"] = before
