"""Run the parts of categories in processes of their own; what one counted stays if it dies."""

import os
import signal
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess

from .outcome import Outcome

GRACE = 120.0  # seconds that an attempt may take after the deadline
FORK = get_context("fork")  # the processes inherit what was imported and prepared


@dataclass(frozen=True)
class Part:
    """A share of the attempts of a category.

    Attributes:
        category: its name.
        number: of the part, from 0.
        parts: number of parts of the category.
        count: number of attempts.
    """

    category: str
    number: int
    parts: int
    count: int


@dataclass(frozen=True)
class Progress:
    """What a part did since its last message.

    Attributes:
        outcome: the new attempts.
        seconds: time for them.
        cpu: processor time for them.
        is_last: whether the part has ended.
    """

    outcome: Outcome
    seconds: float = 0.0
    cpu: float = 0.0
    is_last: bool = False


Run = Callable[[Part], Iterator[Outcome]]
ProcessorTime = Callable[[], float]


@dataclass(frozen=True)
class _Worker:
    part: Part
    process: ForkProcess
    connection: Connection


def run_parts(
    parts: Sequence[Part], jobs: int, run: Run, processor_time: ProcessorTime, deadline: float
) -> Iterator[tuple[Part, Progress]]:
    """Run the parts, `jobs` at a time, and yield what each of them does.

    A part that dies, fails or does not end counts as one lost attempt; the others go on.

    Args:
        parts: in the order in which they are started.
        jobs: number of processes.
        run: makes the attempts of a part, in a process of its own.
        processor_time: seconds that this process and its children have used, called there.
        deadline: time (`time.monotonic`) after which no attempt is begun.
    """
    waiting = list(parts)
    workers: list[_Worker] = []
    try:
        while True:
            if time.monotonic() > deadline:
                waiting.clear()
            while waiting and len(workers) < jobs:
                workers.append(_start(waiting.pop(0), run, processor_time, deadline))
            if not workers:
                return
            ready = wait([worker.connection for worker in workers], 10)
            is_late = time.monotonic() > deadline + GRACE
            for worker in [w for w in workers if w.connection in ready or is_late]:
                progress = _receive(worker, is_late=is_late)
                if progress.is_last:
                    workers.remove(worker)
                    worker.process.join()
                yield worker.part, progress
    finally:
        for worker in workers:
            worker.process.kill()
            worker.process.join()


def _start(part: Part, run: Run, processor_time: ProcessorTime, deadline: float) -> _Worker:
    ours, theirs = FORK.Pipe(duplex=False)
    process = FORK.Process(target=_work, args=(theirs, part, run, processor_time, deadline))
    process.start()
    theirs.close()
    return _Worker(part, process, ours)


def _receive(worker: _Worker, *, is_late: bool) -> Progress:
    """Return the next message of a part, or what happened to its process."""
    if is_late:
        worker.process.kill()
        problem = f"no result {GRACE:.0f} s after the time was over"
    else:
        try:
            progress: Progress = worker.connection.recv()
            return progress
        except (EOFError, OSError):
            worker.process.join()
            problem = f"the process ended with code {worker.process.exitcode}"
    name = f"{worker.part.category}, part {worker.part.number}"
    return Progress(Outcome(1, problems=(f"{name}: {problem}",)), is_last=True)


def _work(
    connection: Connection, part: Part, run: Run, processor_time: ProcessorTime, deadline: float
) -> None:
    """Make the attempts of a part and send what they did."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    start, used = time.monotonic(), processor_time()

    def send(outcome: Outcome, *, is_last: bool = False) -> None:
        nonlocal start, used
        before, start, cpu, used = start, time.monotonic(), used, processor_time()
        connection.send(Progress(outcome, start - before, used - cpu, is_last))

    try:
        for outcome in run(part):
            send(outcome)
            if time.monotonic() > deadline:
                break
        send(Outcome(), is_last=True)
    except Exception:
        problem = f"{part.category}, part {part.number}: {traceback.format_exc(-3)}"
        send(Outcome(1, problems=(problem,)), is_last=True)
    os._exit(0)  # without waiting for the threads of libraries
