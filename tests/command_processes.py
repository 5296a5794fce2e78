"""Run `scs` commands in processes of their own, and read the files that must be the same."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from select import select
from signal import SIGKILL
from typing import Any

import psutil

from jumping_clock import JumpingClock

DETERMINISTIC_FILES = (
    *("recipe.toml", "classes.json", "splits.csv", "metrics.csv", "predictions.parquet", "model"),
    *("embeddings.parquet", "thumbnails.parquet", "problems.json", "evaluation.json"),
)


def deterministic_files(run: Path) -> dict[str, bytes]:
    """Return the files of a run that do not differ between runs."""
    paths = [run / name for name in DETERMINISTIC_FILES]
    files = [f for path in paths for f in (sorted(path.iterdir()) if path.is_dir() else [path])]
    return {str(file.relative_to(run)): file.read_bytes() for file in files}


@dataclass(frozen=True)
class CommandResult:
    """Exit code and output of a command."""

    code: int
    out: str
    err: str


class Processes:
    """Runs commands in separate processes, one at a time; see serve_commands.py.

    Args:
        folder: for the output of the commands.
        commands: import at the start what other commands than `train` need.
        clock: the clock of the commands, which jumps before each of them.
    """

    def __init__(
        self, folder: Path, *, commands: bool = False, clock: JumpingClock | None = None
    ) -> None:
        self.folder, self.clock = folder, clock
        script = Path(__file__).with_name("serve_commands.py")
        self.server = subprocess.Popen(
            [sys.executable, str(script), *(["--commands"] if commands else [])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,  # `select` does not see what is in a buffer
            env=os.environ | (clock.environment if clock else {}),
        )

    def start(
        self,
        *arguments: str | Path,
        eager: bool = False,
        group: bool = False,
        signal_at: tuple[int, str, int] | None = None,
        kill_before: tuple[str, int] | None = None,
        executable: str = "",
        full_at: tuple[str, int] | None = None,
        file_limit: int | None = None,
    ) -> int:
        """Start a command and return its process id; see serve_commands.py for the options."""
        request = {"arguments": list(map(str, arguments)), "eager": eager, "signal_at": signal_at}
        request |= {"group": group, "full_at": full_at, "file_limit": file_limit}
        request |= {"kill_before": kill_before, "executable": executable}
        assert self.server.stdin and self.server.stdout
        if self.clock:
            self.clock.start()
        line = json.dumps(request | {"folder": str(self.folder)}) + "\n"
        self.server.stdin.write(line.encode())
        self.process = int(self.server.stdout.readline())
        return self.process

    def wait(self) -> CommandResult:
        """Wait until the command exits and return its result."""
        assert self.server.stdout
        code = int(self.server.stdout.readline())
        return CommandResult(
            code, (self.folder / "out").read_text(), (self.folder / "err").read_text()
        )

    def run(
        self,
        *arguments: str | Path,
        kill_after: float | None = None,
        signals: Sequence[int] = (SIGKILL,),
        worker: bool = False,
        **options: Any,
    ) -> CommandResult:
        """Run a command, send it signals after some seconds, if it has not ended, and wait for it.

        They are for the process or its group, or for one of its workers if it has any. The last
        signal is SIGKILL, if it has not ended five minutes after the others.
        """
        process = self.start(*arguments, **options)
        target = -process if options.get("group") else process
        if kill_after is not None and not self.ends(kill_after):
            workers = _children(process) if worker else []
            for number in signals:
                with suppress(ProcessLookupError):
                    os.kill(workers[-1] if workers else target, number)
                if self.ends(0.7):  # a second Ctrl-C within half a second counts as the first
                    break
            if not self.ends(300):
                os.kill(process, SIGKILL)
        return self.wait()

    def ends(self, seconds: float) -> bool:
        """Wait until the command ends; return whether it has."""
        return bool(select([self.server.stdout], [], [], seconds)[0])

    @property
    def accesses(self) -> int:
        """Number of accesses to files that the last command counted, until it ended."""
        return (self.folder / "accesses").stat().st_size

    def close(self) -> None:
        """End the server."""
        assert self.server.stdin
        self.server.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            self.server.wait(10)
        self.server.kill()


def _children(process: int) -> list[int]:
    with suppress(psutil.NoSuchProcess):
        return [child.pid for child in psutil.Process(process).children()]
    return []
