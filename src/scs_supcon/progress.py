"""What a person sees while a run goes on: bars with the time left, or a plain log."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Tell = Callable[[int, int], None]

QUIET_SECONDS = 15.0  # between two lines of a plain log


class Display:
    """Lines and progress on the standard error stream, or nothing at all.

    Args:
        quiet: show nothing.
    """

    def __init__(self, quiet: bool = False) -> None:
        self.quiet = quiet
        self.terminal = sys.stderr.isatty()

    def line(self, text: str = "") -> None:
        """Say one thing."""
        if not self.quiet:
            print(text, file=sys.stderr, flush=True)

    @contextmanager
    def progress(self, title: str) -> Iterator[Tell]:
        """Show how far something is: the yielded function takes (done, total)."""
        if self.quiet:
            yield lambda done, total: None
        elif self.terminal:
            with self._bar(title) as tell:
                yield tell
        else:
            yield self._log(title)

    @contextmanager
    def _bar(self, title: str) -> Iterator[Tell]:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
        from rich.progress import TimeRemainingColumn as TimeLeft

        columns = [TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeLeft()]
        with Progress(*columns, console=Console(stderr=True)) as bar:
            task = bar.add_task(title, total=None)
            yield lambda done, total: bar.update(task, completed=done, total=total)

    def _log(self, title: str) -> Tell:
        start = last = time.monotonic()
        first: int | None = None

        def tell(done: int, total: int) -> None:
            nonlocal last, first
            first = done if first is None else first
            now = time.monotonic()
            if done < total and now - last < QUIET_SECONDS:
                return
            last = now
            ending = ""
            if first < done < total:
                left = (now - start) / (done - first) * (total - done)
                ending = f", about {spell_seconds(left)} left"
            self.line(f"{title}: {done} of {total}{ending}")

        return tell


def spell_seconds(seconds: float) -> str:
    """Spell a duration: "40 s", "12 min", "3.5 h"."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
