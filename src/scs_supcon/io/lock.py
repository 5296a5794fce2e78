"""File locks that the operating system releases when their owner exits, even if it is killed.

`filelock` provides them on Linux, macOS and Windows and closes them in forked children, so a data
worker that outlives its parent does not keep the lock.
"""

import os
import platform
from contextlib import suppress
from pathlib import Path

from filelock import FileLock, Timeout

from scs_supcon.errors import UserError
from scs_supcon.io.records import RecordError, read_text
from scs_supcon.io.text import printable_name

# `is_held` in another process holds a lock for a moment, so a single failed attempt proves nothing.
ACQUIRE_SECONDS = 0.5
TEST_SECONDS = 0.05
POLL_SECONDS = 0.01


class InUse(UserError):
    """Another process holds the lock."""


class Lock:
    """A file locked by this process until it is released or the process ends.

    Args:
        path: The lock file; it is created if needed and never removed.
        wait: Wait until the lock is free instead of raising `InUse`.

    Raises:
        InUse: Another process holds the lock; the message gives its process id and host.
        OSError: The file cannot be created.
    """

    def __init__(self, path: Path, *, wait: bool = False) -> None:
        self._lock = _file_lock(path)
        try:
            self._lock.acquire(-1 if wait else ACQUIRE_SECONDS, POLL_SECONDS)
        except Timeout as error:
            raise InUse(
                f"{path.parent} is in use by process {_owner(path)}: "
                "wait until it exits, stop it, or choose another folder"
            ) from error
        with suppress(OSError):  # Windows does not allow writing to a locked file
            path.write_text(f"{os.getpid()} on {platform.node()}")

    def release(self) -> None:
        """Release the lock; do nothing if it is already released."""
        self._lock.release()

    def __enter__(self) -> None:
        """Hold the lock."""

    def __exit__(self, *error: object) -> None:
        """Release the lock."""
        self.release()


def is_held(path: Path) -> bool:
    """Return whether any process currently holds the lock."""
    if not path.exists():
        return False
    lock = _file_lock(path)
    try:
        lock.acquire(TEST_SECONDS, POLL_SECONDS)
    except Timeout:
        return True
    lock.release()
    return False


def _file_lock(path: Path) -> FileLock:
    # A soft lock, which only checks whether the file exists, would outlive a killed process.
    return FileLock(path, thread_local=False, fallback_to_soft=False)


def _owner(path: Path) -> str:
    try:
        return printable_name(read_text(path, limit=1000)) or "(unknown)"
    except RecordError:
        return "(unknown)"
