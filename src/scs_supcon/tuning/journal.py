"""The lock of the journal in which Optuna stores a study."""

from pathlib import Path

from scs_supcon.io.lock import Lock

BLOCK = 4096  # bytes at the end of the journal that are searched for a line break at a time


class JournalLock:
    """Lets one process at a time append to a journal; for Optuna's `JournalFileBackend`.

    The system frees the lock of a process that is killed, so that nobody waits for it. A line that
    a crash or a full disk cut off is removed before the next one is written: in the middle of the
    file it would make the study unreadable.
    """

    def __init__(self, journal: Path) -> None:
        self._journal = journal
        self._lock: Lock | None = None

    def acquire(self) -> bool:
        """Wait for the lock, and repair the end of the journal."""
        self._lock = Lock(self._journal.with_name(".journal.lock"), wait=True)
        try:
            _remove_incomplete_line(self._journal)
        except OSError:
            self.release()
            raise
        return True

    def release(self) -> None:
        """Free the lock."""
        if self._lock is not None:
            self._lock.release()


def _remove_incomplete_line(file: Path) -> None:
    """Cut off what follows the last line break."""
    with file.open("r+b") as stream:
        start = end = stream.seek(0, 2)
        tail = b""
        while start and b"\n" not in tail:
            start = max(0, start - BLOCK)
            stream.seek(start)
            tail = stream.read(end - start)
        complete = start + tail.rfind(b"\n") + 1
        if complete < end:
            stream.truncate(complete)
