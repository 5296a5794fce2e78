"""One owner for a folder. The system holds the lock, so a dead owner holds nothing."""

import fcntl
import os
import platform
from pathlib import Path

from scs_supcon.errors import UserError

_held: set[int] = set()


def _forget() -> None:
    """Close the locks in a forked child: a data worker that outlives its parent holds nothing."""
    for handle in _held:
        os.close(handle)
    _held.clear()


os.register_at_fork(after_in_child=_forget)


class InUse(UserError):
    """Another process has the folder."""


class Lock:
    """A file locked by this process until it is released or the process ends."""

    def __init__(self, path: Path):
        """Take the lock.

        Raises:
            InUse: another process has it; its number is named.
        """
        self._handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(self._handle, 0)
            os.write(self._handle, f"{os.getpid()} on {platform.node()}".encode())
        except BlockingIOError as error:
            owner = os.read(self._handle, 256).decode() or "of unknown number"
            os.close(self._handle)
            raise InUse(
                f"{path.parent} is in use by process {owner}: "
                "wait until it ends, stop it, or choose another folder"
            ) from error
        except OSError:
            os.close(self._handle)
            raise
        _held.add(self._handle)

    def release(self) -> None:
        """Let others take the lock."""
        if self._handle in _held:
            _held.remove(self._handle)
            os.close(self._handle)


def is_held(path: Path) -> bool:
    """Whether some process has the lock at this moment."""
    try:
        handle = os.open(path, os.O_RDWR)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(handle)
    return False
