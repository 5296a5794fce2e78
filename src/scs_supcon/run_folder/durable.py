"""Files that are wholly there or not at all, whatever happens while they are written."""

import errno
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from scs_supcon.errors import UserError


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path to write to; afterwards it takes the place of `path` in one step.

    The content is on the disk before the name is. If anything fails, `path` is as it was.
    """
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield temporary
        sync(temporary)
        temporary.replace(path)
        sync(path.parent)
    except OSError as error:
        raise explained(error, path) from error
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


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
