"""Show the progress of long computations: a bar with the time left, or log lines."""

import math
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ParamSpec, Protocol, TypeVar

from scs_supcon.io.text import printable

P = ParamSpec("P")
R = TypeVar("R")

ProgressCallback = Callable[[int, int], None]
"""Called with the number of completed steps and the total number of steps."""

# Seconds between two log lines.
LOG_INTERVAL = float(os.environ.get("SCS_LOG_SECONDS") or 15)
SLOWER = 1.25  # factor above which a longer estimate is announced


class Progress(Protocol):
    """Reports progress: completed steps, total number of steps, and a note to show with them."""

    def __call__(self, done: int, total: int, note: str = "") -> None: ...


class TimeLeft:
    """The remaining time, from the mean duration of the steps so far. It never counts up.

    If the steps become slower, for example because other programs start, the last value is kept and
    shown as "more than".
    """

    def __init__(self) -> None:
        self.shown = math.inf
        """Seconds shown last."""
        self._start = time.monotonic()
        self._first: int | None = None  # steps completed before a run was resumed

    def update(self, done: int, total: int) -> str:
        """Return for example "about 40 s left"; empty before the first and after the last step."""
        first = self.start(done)
        if not first < done < total:
            return ""
        seconds = (time.monotonic() - self._start) / (done - first) * (total - done)
        slower = seconds > SLOWER * self.shown
        self.shown = min(self.shown, seconds)
        about = (
            f"more than {format_duration(self.shown)}" if slower else format_estimate(self.shown)
        )
        return f"{about} left"

    def start(self, done: int) -> int:
        """Return the number of steps that were complete at the first call."""
        self._first = done if self._first is None else self._first
        return self._first


class Stopwatch:
    """Adds up the time that calls of a function take."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def timed(self, function: Callable[P, R]) -> Callable[P, R]:
        """Return the function, with its time added to `seconds`."""

        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            start = time.monotonic()
            try:
                return function(*args, **kwargs)
            finally:
                self.seconds += time.monotonic() - start

        return call


class Display:
    """Messages and progress on the standard error stream.

    Args:
        quiet: do not print anything.

    Attributes:
        later: estimated seconds of the training that follows the current stage.
    """

    def __init__(self, quiet: bool = False) -> None:
        self.quiet = quiet
        self.terminal = sys.stderr.isatty()
        self.later = 0.0

    def line(self, text: str = "") -> None:
        """Print one line."""
        if not self.quiet:
            print(printable(text), file=sys.stderr, flush=True)

    @contextmanager
    def progress(self, title: str) -> Iterator[Progress]:
        """Yield a callback, and show the progress that is reported to it."""
        if self.quiet:
            yield lambda done, total, note="": None
        elif self.terminal:
            with self._bar(title) as update:
                yield update
        else:
            yield self._log(title)

    @contextmanager
    def _bar(self, title: str) -> Iterator[Progress]:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
        from rich.progress import Progress as ProgressBar

        time_left = TimeLeft()
        columns = [TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()]
        columns.append(TextColumn("{task.fields[note]}"))
        with ProgressBar(*columns, console=Console(stderr=True)) as bar:
            task = bar.add_task(title, total=None, note="")

            def update(done: int, total: int, note: str = "") -> None:
                notes = [note, self._time_left(time_left, done, total)]
                text = ", ".join(part for part in notes if part)
                bar.update(task, completed=done, total=total, note=text)

            yield update

    def _log(self, title: str) -> Progress:
        last = time.monotonic()
        time_left = TimeLeft()

        def update(done: int, total: int, note: str = "") -> None:
            nonlocal last
            now = time.monotonic()
            if done < total and now - last < LOG_INTERVAL:
                time_left.start(done)
                return
            last = now
            notes = [f"{title}: {done} of {total}", note, self._time_left(time_left, done, total)]
            self.line(", ".join(part for part in notes if part))

        return update

    def _time_left(self, time_left: TimeLeft, done: int, total: int) -> str:
        text = time_left.update(done, total)
        if not text or not self.later:
            return text
        return f"{text} ({format_estimate(time_left.shown + self.later)} for all training)"


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
