"""Watch the file-system operations of a process, and kill it before one of them.

Counted are, below one folder: opening a file for writing, write, fsync, rename, link, unlink,
mkdir, rmdir and truncate, in this process and in those forked from it later. What is called from
Python is seen one by one. Native code that opens and writes files by itself (pyarrow, safetensors,
the encoders of Pillow) is not: its files are seen again when they are synced and renamed.
"""

import builtins
import io
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from signal import SIGKILL
from typing import Any

WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
# Audit event -> kind of the operation. The first arguments are one or two paths.
EVENTS = {
    "open": "open",
    "os.rename": "rename",  # also os.replace
    "os.link": "link",
    "os.symlink": "symlink",
    "os.remove": "unlink",
    "os.mkdir": "mkdir",
    "os.rmdir": "rmdir",
    "os.truncate": "truncate",  # also os.ftruncate
}
TWO_PATHS = ("os.rename", "os.link", "os.symlink")


@dataclass(frozen=True)
class Operation:
    """One operation, before it is made.

    Attributes:
        kind: open, write, fsync, rename, exchange, link, symlink, unlink, mkdir, rmdir, truncate.
        path: absolute path.
        target: new path of a rename, an exchange or a link.
        flags: of an open.
        offset: of a write; the size after a truncate.
        data: of a write; empty if it is not known.
    """

    kind: str
    path: str
    target: str = ""
    flags: int = 0
    offset: int = 0
    data: bytes = b""


Before = Callable[[Operation], None]


def kill_before(number: int, folder: Path, count_file: Path, *, group: bool) -> None:
    """Kill this process before its operation `number` (from 1) below a folder; 0 only counts.

    Operations are counted over this process and those that it forks.

    Args:
        number: of the operation.
        folder: whose files count.
        count_file: gets a byte for each operation.
        group: kill the group of the process, as if the machine failed.
    """
    lock = get_context("fork").Lock()
    handle = os.open(count_file, os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_WRONLY)
    write = os.write

    def before(_operation: Operation) -> None:
        with lock:
            write(handle, b"x")
            count = os.fstat(handle).st_size
        if count == number:
            os.kill(0 if group else os.getpid(), SIGKILL)

    watch(folder, before)


def watch(folder: Path, before: Before) -> None:
    """Call `before` before every operation below a folder until this process ends."""
    root = os.path.realpath(folder)
    inside = (root, root + os.sep)

    def see(kind: str, path: str, target: str = "", **details: Any) -> None:
        if any(name == inside[0] or name.startswith(inside[1]) for name in (path, target)):
            before(Operation(kind, path, target, **details))

    _watch_paths(see)
    _watch_handles(see)
    _watch_files(see)


See = Callable[..., None]


def _watch_paths(see: See) -> None:
    """See what Python reports as audit events."""

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        kind = EVENTS.get(event)
        if kind is None:
            return
        first = arguments[0]
        if event == "open":
            flags = arguments[2] or 0
            if not isinstance(first, int) and flags & WRITING:
                see(kind, _absolute(first), flags=flags)
        elif event == "os.truncate":
            see(kind, _absolute(first), offset=arguments[1])
        elif event in TWO_PATHS:
            folders = arguments[2:4] if len(arguments) >= 4 else (-1, -1)
            see(kind, _absolute(first, folders[0]), _absolute(arguments[1], folders[1]))
        else:
            see(kind, _absolute(first, arguments[-1]))

    sys.addaudithook(hook)


def _absolute(path: Any, folder: Any = -1) -> str:
    """Return the path of a name or an open file; `folder` is the open folder it is relative to."""
    if isinstance(path, int):
        return handle_path(path)
    name = Path(os.fsdecode(path))
    if isinstance(folder, int) and folder >= 0:
        name = Path(handle_path(folder), name)
    return str(name.parent.resolve() / name.name)  # a link itself, not what it points to


def handle_path(handle: int) -> str:
    """Return the path of an open file, or "" if it is not known."""
    with suppress(OSError):
        return str(Path(f"/proc/self/fd/{handle}").readlink())
    if sys.platform == "darwin":
        import fcntl

        with suppress(OSError):
            return os.fsdecode(fcntl.fcntl(handle, fcntl.F_GETPATH, b"\0" * 1024).rstrip(b"\0"))
    return ""


def _position(handle: int) -> int:
    """Return where the next write to an open file begins."""
    import fcntl

    if fcntl.fcntl(handle, fcntl.F_GETFL) & os.O_APPEND:
        return os.fstat(handle).st_size
    with suppress(OSError):  # a pipe has no position
        return os.lseek(handle, 0, os.SEEK_CUR)
    return 0


def _watch_handles(see: See) -> None:
    """Replace the functions of `os` that write to an open file, which are no audit events."""
    write, pwrite, fsync, sendfile = os.write, os.pwrite, os.fsync, os.sendfile

    def watched_write(handle: int, data: Any) -> int:
        if path := handle_path(handle):
            see("write", path, offset=_position(handle), data=bytes(data))
        return write(handle, data)

    def watched_pwrite(handle: int, data: Any, offset: int) -> int:
        see("write", handle_path(handle), offset=offset, data=bytes(data))
        return pwrite(handle, data, offset)

    def watched_fsync(handle: Any) -> None:
        see("fsync", handle_path(handle if isinstance(handle, int) else handle.fileno()))
        fsync(handle)

    def watched_sendfile(out: int, *arguments: Any, **options: Any) -> int:
        see("write", handle_path(out), offset=_position(out))
        return sendfile(out, *arguments, **options)

    os.write, os.pwrite, os.sendfile = watched_write, watched_pwrite, watched_sendfile
    os.fsync = watched_fsync
    if hasattr(os, "fdatasync"):
        os.fdatasync = watched_fsync


def _watch_files(see: See) -> None:
    """Replace `open`, so that each write to the system of a file object is seen."""
    original = io.open

    class WatchedFile(io.FileIO):
        def write(self, data: Any, /) -> int:
            if path := handle_path(self.fileno()):
                see("write", path, offset=_position(self.fileno()), data=bytes(data))
            return super().write(data)

        def truncate(self, size: int | None = None, /) -> int:
            see(
                "truncate", handle_path(self.fileno()), offset=self.tell() if size is None else size
            )
            return super().truncate(size)

    def watched_open(
        file: Any,
        mode: str = "r",
        buffering: int = -1,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
        closefd: bool = True,
        opener: Any = None,
    ) -> Any:
        if not set(mode) & set("wax+"):
            return original(file, mode, buffering, encoding, errors, newline, closefd, opener)
        raw = WatchedFile(file, mode.replace("b", "").replace("t", ""), closefd, opener)
        if buffering == 0:
            return raw
        size = buffering if buffering > 1 else io.DEFAULT_BUFFER_SIZE
        kind = io.BufferedRandom if "+" in mode else io.BufferedWriter
        buffered = kind(raw, size)  # type: ignore[type-var]
        if "b" in mode:
            return buffered
        text = io.TextIOWrapper(buffered, encoding, errors, newline, buffering == 1)
        text.mode = mode  # type: ignore[misc]
        return text

    for module in (io, builtins, sys.modules["_io"]):
        module.open = watched_open  # type: ignore[attr-defined]
