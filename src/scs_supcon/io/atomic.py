"""Files that are wholly there or not at all, whatever happens while they are written."""

import errno
import json
import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from scs_supcon.errors import UserError
from scs_supcon.io.lock import InUse, Lock


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path to write to; afterwards it takes the place of `path` in one step.

    The content is on the disk before the name is. If anything fails, `path` is as it was. Of
    several that write at once each has a path of its own, and the last to end wins.
    """
    try:
        with _beside(path) as temporary:
            yield temporary
            sync(temporary)
            temporary.replace(path)
            sync(path.parent)
    except OSError as error:
        raise explained(error, path) from error


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file in one step."""
    with replacing(path) as temporary:
        temporary.write_bytes(content)


def write_text(path: Path, text: str) -> None:
    """Write a text file in one step, with the same bytes on every system."""
    write_bytes(path, text.encode())


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file in one step."""
    write_text(path, json.dumps(value, indent=1) + "\n")


def write_together(folder: Path, contents: Mapping[str, bytes], seal: str) -> None:
    """Write files that are good for nothing without each other.

    All are on the disk before the first takes its place, so that what fails leaves the old ones
    whole. The seal is gone while they take their places and comes last: without it they are not.
    """
    try:
        with ExitStack() as stack:
            ready = {name: stack.enter_context(_beside(folder / name)) for name in contents}
            for name, temporary in ready.items():
                temporary.write_bytes(contents[name])
                sync(temporary)
            (folder / seal).unlink(missing_ok=True)
            for name in sorted(ready, key=lambda name: name == seal):
                ready[name].replace(folder / name)
            sync(folder)
    except OSError as error:
        raise explained(error, folder) from error


@contextmanager
def _beside(path: Path) -> Iterator[Path]:
    """Yield a path that nobody else writes to; what is left there afterwards goes.

    It is locked for as long: the dead hold no locks, and what they left is known by that.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    _sweep(path)
    temporary, lock = _claim(path)
    try:
        yield temporary
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        lock.release()


def _claim(path: Path) -> tuple[Path, Lock]:
    while True:
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
        with suppress(InUse):  # one who sweeps came before the lock
            lock = Lock(temporary)
            if temporary.exists():
                return temporary, lock
            lock.release()


def _sweep(path: Path) -> None:
    """Remove what writers of this path left when they were killed."""
    for file in path.parent.iterdir():
        if file.name.startswith(f".{path.name}.") and file.name.endswith(".tmp"):
            with suppress(InUse, OSError):  # somebody writes it now, or another user did
                lock = Lock(file)
                file.unlink(missing_ok=True)
                lock.release()


def sync(path: Path) -> None:
    """Wait until a file's content, or a folder's list of names, is on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def explained(error: OSError, path: Path) -> UserError:
    """Return the error for people: what could not be written, why, and what to do."""
    if error.errno in {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}:
        cause = "the disk is full, or a quota is reached: free some space"
    elif error.errno in {errno.EACCES, errno.EPERM, errno.EROFS}:
        cause = "no permission to write there: choose another folder or change its permissions"
    elif error.errno in {errno.EEXIST, errno.ENOTDIR}:
        cause = "a file stands where a folder is needed: choose another folder"
    else:
        cause = str(error.strerror or error)
    return UserError(f"cannot write {path}: {cause}. What was saved before is intact.")
