"""Replace a whole folder at once: readers find all old files or all new ones, at any moment.

A new folder is filled beside the old one, and then both exchange their names. Linux and macOS do
that in one step. Elsewhere the old folder is renamed first; if a crash comes between the two steps,
`recover`, which every reader calls, gives it its name back.
"""

import ctypes
import glob
import os
import secrets
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from scs_supcon.io.atomic import ABANDONED_SECONDS, sync, write_error
from scs_supcon.io.lock import Lock

if sys.platform != "win32":
    import fcntl

T = TypeVar("T")
ATTEMPTS = 20  # to read a folder that another process replaces meanwhile
EXCHANGE = 2  # the flag RENAME_EXCHANGE of Linux and RENAME_SWAP of macOS


@contextmanager
def replacing_folder(path: Path) -> Iterator[Path]:
    """Yield a new folder to fill, which takes the name of `path` on success.

    All files are on the disk before. On failure `path` is unchanged. If `path` is a link to a
    folder, that folder is replaced.

    Raises:
        UserError: The folder cannot be written; the message gives the cause and what to do.
    """
    path = Path(os.path.realpath(path))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        recover(path)
        remove_abandoned(path)
        with _locked_folder(path) as new:
            try:
                yield new
                _sync_tree(new)
                _publish(new, path)
                sync(path.parent)
            finally:  # the old folder after an exchange, or the new one after a failure
                shutil.rmtree(new, ignore_errors=True)
    except OSError as error:
        raise write_error(error, path) from error


@contextmanager
def updating_folder(path: Path) -> Iterator[Path]:
    """Yield a new folder as `replacing_folder` does; other files of the old one are kept."""
    with replacing_folder(path) as new:
        yield new
        if path.exists():
            _add_missing(path, new)


def keep_copy(folder: Path, copy: Path) -> None:
    """Make `copy` a copy of a folder that shares its files, which are replaced, never changed."""
    with replacing_folder(copy) as new:
        _add_missing(folder, new)


def _add_missing(folder: Path, new: Path) -> None:
    for source in folder.iterdir():
        if not (new / source.name).exists():
            _copy(source, new / source.name)


def _copy(source: Path, target: Path) -> None:
    """Copy a file or a folder; files are linked where the file system allows it."""
    if source.is_dir() and not source.is_symlink():
        shutil.copytree(source, target, symlinks=True)
        return
    try:
        os.link(source, target, follow_symlinks=False)
    except (OSError, NotImplementedError):
        shutil.copy2(source, target, follow_symlinks=False)


def read_folder(path: Path, read: Callable[[Path], T]) -> T:
    """Return `read(path)` for a folder that may be replaced while it is read.

    Args:
        path: The folder.
        read: Reads the folder, and raises an error if its files do not fit together.
    """
    for _ in range(ATTEMPTS):
        recover(path)
        with _held(path) as is_same:
            try:
                return read(path)
            except Exception:
                if is_same() and not _old(path).exists():
                    raise
    return read(path)


def recover(path: Path) -> None:
    """Finish or undo the replacement of a folder that was interrupted between its two steps."""
    old = _old(path)
    if not old.exists():
        return
    with suppress(OSError), _step_lock(path):  # OSError: the place is read-only
        if not path.exists():
            old.rename(path)
        elif old.exists():
            sync(path.parent)
            shutil.rmtree(old)


def exchange_folders(a: Path, b: Path) -> None:
    """Exchange two folders of one place; each of them is whole at any moment."""
    if not exchange_names(a, b):
        spare = a.with_name(f".{a.name}.spare")
        for source, target in ((a, spare), (b, a), (spare, b)):
            keep_copy(source, target)
        shutil.rmtree(spare)
    sync(a.parent)


def exchange_names(a: Path, b: Path) -> bool:
    """Exchange the names of two folders in one step; return False if the system cannot."""
    sys.audit("os.rename", a, b, -1, -1)  # as os.rename does, for whoever observes the process
    try:
        library = ctypes.CDLL(None, use_errno=True)
        here, names = -100, (os.fsencode(a), os.fsencode(b))  # AT_FDCWD
        if sys.platform == "darwin":
            return bool(library.renamex_np(*names, EXCHANGE) == 0)
        return bool(library.renameat2(here, names[0], here, names[1], EXCHANGE) == 0)
    except (OSError, AttributeError, TypeError):  # an old C library, or Windows
        return False


def _publish(new: Path, path: Path) -> None:
    if not path.exists():
        with suppress(OSError):  # another process was faster
            new.rename(path)
            return
    if exchange_names(new, path):
        return
    with _step_lock(path):
        path.rename(_old(path))
        new.rename(path)
        sync(path.parent)
        shutil.rmtree(_old(path))


def _step_lock(path: Path) -> Lock:
    """Return the lock that is held between the two steps, so that no reader undoes the first."""
    return Lock(path.with_name(f".{path.name}.lock"), wait=True)


def _old(path: Path) -> Path:
    return path.with_name(f".{path.name}.old")


@contextmanager
def _held(path: Path) -> Iterator[Callable[[], bool]]:
    """Yield a function that tells whether a name still belongs to the same folder.

    The folder is open meanwhile, so that a new one cannot get its inode number.
    """
    handle = before = None
    with suppress(OSError):  # there is no such folder; Windows cannot open it
        before = path.stat()
        handle = os.open(path, os.O_RDONLY)
        before = os.fstat(handle)

    def is_same() -> bool:
        try:
            return before is not None and os.path.samestat(before, path.stat())
        except OSError:
            return before is None

    try:
        yield is_same
    finally:
        if handle is not None:
            os.close(handle)


def _sync_tree(folder: Path) -> None:
    for path in folder.rglob("*"):
        if not path.is_symlink():
            sync(path)
    sync(folder)


@contextmanager
def _locked_folder(path: Path) -> Iterator[Path]:
    """Create a folder beside `path` that is locked while this process fills it."""
    folder = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    folder.mkdir()
    if sys.platform == "win32":
        yield folder
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        folder.mkdir(exist_ok=True)  # another writer may have taken it for abandoned
        yield folder
    finally:
        os.close(handle)


def remove_abandoned(path: Path) -> None:
    """Remove the unfinished folders of killed writers of `path`: those that nobody has locked."""
    for folder in path.parent.glob(f".{glob.escape(path.name)}.*.tmp"):
        with suppress(OSError):  # being filled now, or owned by another user
            if sys.platform == "win32":
                if time.time() - folder.stat().st_mtime > ABANDONED_SECONDS:
                    shutil.rmtree(folder)
                continue
            handle = os.open(folder, os.O_RDONLY)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder)
            finally:
                os.close(handle)
