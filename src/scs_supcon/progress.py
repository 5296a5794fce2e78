"""Show the progress of long computations: a bar with the time left, or log lines."""

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

ProgressCallback = Callable[[int, int], None]
"""Called with the number of completed steps and the total number of steps."""

# Seconds between two log lines.
LOG_INTERVAL = float(os.environ.get("SCS_LOG_SECONDS") or 15)


class Display:
    """Messages and progress on the standard error stream.

    Args:
        quiet: do not print anything.
    """

    def __init__(self, quiet: bool = False) -> None:
        self.quiet = quiet
        self.terminal = sys.stderr.isatty()

    def line(self, text: str = "") -> None:
        """Print one line."""
        if not self.quiet:
            print(text, file=sys.stderr, flush=True)

    @contextmanager
    def progress(self, title: str) -> Iterator[ProgressCallback]:
        """Yield a callback, and show the progress that is reported to it."""
        if self.quiet:
            yield lambda done, total: None
        elif self.terminal:
            with self._bar(title) as update:
                yield update
        else:
            yield self._log(title)

    @contextmanager
    def _bar(self, title: str) -> Iterator[ProgressCallback]:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
        from rich.progress import TimeRemainingColumn as TimeLeft

        columns = [TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeLeft()]
        with Progress(*columns, console=Console(stderr=True)) as bar:
            task = bar.add_task(title, total=None)
            yield lambda done, total: bar.update(task, completed=done, total=total)

    def _log(self, title: str) -> ProgressCallback:
        start = last = time.monotonic()
        first: int | None = None  # steps completed before the run was resumed

        def update(done: int, total: int) -> None:
            nonlocal last, first
            first = done if first is None else first
            now = time.monotonic()
            if done < total and now - last < LOG_INTERVAL:
                return
            last = now
            time_left = ""
            if first < done < total:
                seconds = (now - start) / (done - first) * (total - done)
                time_left = f", {format_estimate(seconds)} left"
            self.line(f"{title}: {done} of {total}{time_left}")

        return update


def format_duration(seconds: float) -> str:
    """Return a duration as text: "less than a second", "40 s", "12 min", "3.5 h"."""
    if seconds < 1:
        return "less than a second"
    if seconds < 100:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


def format_estimate(seconds: float) -> str:
    """Return an estimated duration as text: "less than a second", "about 40 s"."""
    return f"{'about ' * (seconds >= 1)}{format_duration(seconds)}"
