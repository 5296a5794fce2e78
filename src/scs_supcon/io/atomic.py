"""Atomic writes: a file is either completely written or unchanged, even after a crash."""

import errno
import json
import os
import secrets
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from scs_supcon.errors import UserError

WINDOWS = os.name == "nt"
DISK_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
ABANDONED_SECONDS = 3600.0  # on Windows: age at which a temporary file is deleted


class CannotWrite(UserError):
    """A file cannot be written, for a reason outside the program such as a full disk."""


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path to write to, which replaces `path` on success.

    The content is on the disk before the file is renamed. On failure `path` is unchanged.
    Concurrent writers use different temporary paths; the last one to finish wins.

    Raises:
        UserError: The file cannot be written; the message gives the cause and what to do.
    """
    try:
        with _temporary_file(path) as temporary:
            yield temporary
            sync(temporary)
            temporary.replace(path)
            sync(path.parent)
    except OSError as error:
        raise write_error(error, path) from error


def make_folder(path: Path) -> None:
    """Create a folder, and check that files can be created in it.

    Raises:
        UserError: It cannot be created or written to; the message gives the cause and what to do.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        with _temporary_file(path / "test"):
            pass
    except OSError as error:
        raise write_error(error, path) from error


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file atomically."""
    with replacing(path) as temporary:
        temporary.write_bytes(content)


def write_text(path: Path, text: str) -> None:
    """Write a UTF-8 text file atomically, with the same bytes on every system."""
    write_bytes(path, text.encode())


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file atomically."""
    write_text(path, json.dumps(value, indent=1) + "\n")


def sync(path: Path) -> None:
    """Wait until a file's content, or a folder's list of names, is on the disk."""
    if WINDOWS and path.is_dir():
        return  # Windows cannot sync a folder
    handle = os.open(path, os.O_RDWR if WINDOWS else os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_error(error: OSError, path: Path) -> CannotWrite:
    """Return an error that names the path, the cause, and what to do."""
    if error.errno in DISK_FULL:
        cause = "the disk is full or a quota is reached: free some space"
    elif error.errno in {errno.EACCES, errno.EPERM, errno.EROFS}:
        cause = "no permission to write there: choose another folder, or change its permissions"
    elif error.errno in {errno.EEXIST, errno.ENOTDIR}:
        cause = "a file exists where a folder is needed: choose another folder"
    elif error.errno in {errno.EBUSY, errno.EXDEV}:
        cause = "it is mounted there, so it cannot be replaced: choose a folder inside it"
    else:
        cause = str(error.strerror or error)
    return CannotWrite(f"cannot write {path}: {cause}. Files saved earlier are intact.")


def check_writable(path: Path) -> None:
    """Raise a `UserError` if a file or folder cannot be created at `path`.

    Called before long computations whose result is written there. It creates an empty file beside
    `path` and removes it: some folders cannot be written to although their permissions allow it.
    """
    folder = path.parent
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    if not folder.is_dir():
        raise write_error(OSError(errno.ENOTDIR, "not a folder"), path)
    if not os.access(path if path.exists() else folder, os.W_OK):
        raise write_error(OSError(errno.EACCES, "no permission"), path)
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise write_error(error, path) from error


@contextmanager
def _temporary_file(path: Path) -> Iterator[Path]:
    """Yield a unique temporary path in the same folder, and remove it afterwards.

    The temporary file is locked while it is written, so an unlocked one was abandoned by a killed
    process and may be deleted. Windows cannot rename a locked file: there, old ones are deleted.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    remove_abandoned(path.parent, f".{path.name}.")
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    lock = None if WINDOWS else _lock(temporary, timeout=10)  # another writer may be testing it
    try:
        yield temporary
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        if lock:
            lock.release()


def remove_abandoned(folder: Path, prefix: str = "") -> None:
    """Remove the temporary files of killed writers whose names start with `prefix`."""
    for file in folder.iterdir():
        if file.name.startswith(prefix) and file.name.endswith(".tmp"):
            with suppress(Timeout, OSError):  # being written now, or owned by another user
                if WINDOWS:
                    if time.time() - file.stat().st_mtime > ABANDONED_SECONDS:
                        file.unlink()
                else:
                    lock = _lock(file, timeout=0)
                    file.unlink(missing_ok=True)
                    lock.release()


def _lock(file: Path, timeout: float) -> FileLock:
    lock = FileLock(file, timeout, thread_local=False, fallback_to_soft=False)
    lock.acquire(poll_interval=0.001)
    return lock
