"""What a category of the torture test counts."""

import signal
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path

SECONDS = 120  # after which a command counts as hanging


@dataclass
class Outcome:
    """Number of attempts of a category, and what was lost.

    Attributes:
        tried: Attempts.
        errors: Attempts that ended with a clear error.
        correct: Attempts that ended with the right result.
        lost: One line for each attempt with a traceback, a hang, or a wrong result.
    """

    tried: int = 0
    errors: int = 0
    correct: int = 0
    lost: list[str] = field(default_factory=list)

    @property
    def survived(self) -> int:
        """Attempts with a clear error or the right result."""
        return self.errors + self.correct

    def add(self, code: int, problem: str = "") -> None:
        """Count an attempt: exit code of a command, and why it counts as lost, if it does."""
        self.tried += 1
        if problem:
            self.lost.append(problem)
        elif code:
            self.errors += 1
        else:
            self.correct += 1


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
