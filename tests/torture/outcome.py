"""What the attempts of the torture test count."""

import signal
import sys
import traceback
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path

SECONDS = 120  # after which a command counts as hanging


@dataclass(frozen=True)
class Outcome:
    """Number of attempts, and what was lost.

    Attributes:
        tried: Attempts.
        errors: Attempts that ended with a clear error.
        correct: Attempts that ended with the right result.
        problems: A line for each traceback, hang or wrong result.
    """

    tried: int = 0
    errors: int = 0
    correct: int = 0
    problems: tuple[str, ...] = ()

    @property
    def survived(self) -> int:
        """Attempts with a clear error or the right result."""
        return self.errors + self.correct

    @property
    def lost(self) -> int:
        """Attempts with a traceback, a hang or a wrong result."""
        return self.tried - self.survived

    def __add__(self, other: "Outcome") -> "Outcome":
        """Return the sum of both."""
        return Outcome(
            self.tried + other.tried,
            self.errors + other.errors,
            self.correct + other.correct,
            self.problems + other.problems,
        )


def attempt(code: int, problem: str = "") -> Outcome:
    """Return the outcome of one attempt: exit code, and why it counts as lost, if it does."""
    if problem:
        return Outcome(1, problems=(problem,))
    return Outcome(1, errors=1) if code else Outcome(1, correct=1)


def resumed(count: int, problem: str) -> Outcome:
    """Return the outcome of a command that was disturbed `count` times until it finished."""
    if problem:
        return Outcome(max(1, count), problems=(problem,))
    return Outcome(count, correct=count)


def total(outcomes: Iterable[Outcome]) -> Outcome:
    """Return the sum."""
    return sum(outcomes, Outcome())


@dataclass(frozen=True)
class Called:
    """Exit code and output of a command; `crash` is the end of a traceback."""

    code: int
    out: str
    err: str
    crash: str = ""

    @property
    def problem(self) -> str:
        """Why the command counts as lost; "" if it ended with a result or a clear error."""
        if self.crash:
            return self.crash
        if "Traceback (most recent call last)" in self.err:
            return f"traceback in the output: {self.err.strip().splitlines()[-1]}"
        if self.code and not self.err.strip() and not self.out.strip():
            return f"exit code {self.code} without a message"
        unsafe = {char for char in self.out + self.err if ord(char) < 32 and char not in "\n\t"}
        return f"control characters in the output: {unsafe}" if unsafe else ""


def call(*arguments: str | Path) -> Called:
    """Run `scs` in this process."""
    from scs_supcon.__main__ import main

    out, err, crash, code = StringIO(), StringIO(), "", 0
    previous = sys.argv
    sys.argv = ["scs", *map(str, arguments)]
    try:
        with redirect_stdout(out), redirect_stderr(err), time_limit(SECONDS):
            main()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        crash = (
            f"{type(error).__name__}: {str(error)[:200]} ({Path(last.filename).name}:{last.lineno})"
        )
    finally:
        sys.argv = previous
    return Called(code, out.getvalue(), err.getvalue(), crash)


class Hang(BaseException):
    """A command took too long."""


@contextmanager
def time_limit(seconds: int) -> Iterator[None]:
    """Raise `Hang` if the body takes longer."""

    def stop(_number: int, _frame: object) -> None:
        raise Hang(f"no result after {seconds} s")

    previous = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, previous)


def differences(expected: dict[str, bytes], actual: dict[str, bytes]) -> Sequence[str]:
    """Return the names of the files that differ."""
    names = expected.keys() | actual.keys()
    return sorted(name for name in names if expected.get(name) != actual.get(name))
