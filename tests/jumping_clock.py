"""A clock that is set back and forward by years, for commands in processes of their own.

libfaketime (`apt-get install faketime`) shows it to a process and to its children. The times of
files are those of the computer, so they are changed afterwards, to what the clock showed.
"""

import os
import random
import time
from contextlib import suppress
from pathlib import Path

YEAR = 365 * 24 * 3600
EARLIEST, LATEST = 1971, 2090


def library() -> Path | None:
    """Return the file of libfaketime, or None if it is not installed."""
    return next(Path("/usr").glob("lib/*/faketime/libfaketimeMT.so.1"), None)


class JumpingClock:
    """Sets the clock of processes that are started with `environment`, also while they run.

    Args:
        file: from which they read the clock.
        seed: of the times.
    """

    def __init__(self, file: Path, seed: int = 0) -> None:
        self._file, self._chance = file, random.Random(seed)
        self._offset, self._start = 0, time.time()
        self._write()

    @property
    def environment(self) -> dict[str, str]:
        """Variables for the processes."""
        return {
            "LD_PRELOAD": str(library()),
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            "FAKETIME_CACHE_DURATION": "1",  # seconds
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",  # it does not jump in reality
            "NO_FAKE_STAT": "1",
        }

    def jump(self) -> None:
        """Set the clock to a random year."""
        year = self._chance.uniform(EARLIEST, LATEST)
        self._offset = int((year - 1970) * YEAR - time.time())
        self._write()

    def start(self) -> None:
        """Set the clock for a new command."""
        self.jump()
        self._start = time.time()

    def change_times(self, folder: Path) -> None:
        """Give the files that were changed since `start` the times that the clock showed."""
        now = time.time() + 1
        for file in folder.rglob("*"):
            with suppress(FileNotFoundError):
                changed = file.lstat().st_mtime
                if self._start - 1 < changed < now:
                    shown = changed + self._offset
                    os.utime(file, (shown, shown), follow_symlinks=False)

    def _write(self) -> None:
        temporary = self._file.with_suffix(".new")
        temporary.write_text(f"{self._offset:+d}\n")
        temporary.replace(self._file)
