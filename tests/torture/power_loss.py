"""What a disk can hold after the power failed, from the operations that a process made.

A kill leaves what was written in the memory of the system; a power failure does not. The operations
of an action are recorded, and for each moment the possible states of the disk are written to a
folder. What was synced is there. Of the rest,

- contents are missing, complete, cut off, or pages of zeros in files that have their full size;
- changes of names are missing from some moment on, or missing in some of the folders.
"""

import itertools
import os
import pickle
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from signal import SIGKILL

from .file_operations import Operation, kill_before, watch

PAGE = 4096
SECONDS = 120  # after which an action counts as hanging
FORK = get_context("fork")

Acknowledge = Callable[[], None]
Tree = dict[str, bytes | None]  # relative path -> content, None for a folder


@dataclass(frozen=True)
class Action:
    """Something that changes files, step by step.

    Attributes:
        name: For the report.
        prepare: Creates what exists before, which is on the disk.
        act: Changes files in a folder; calls a function after each step that a caller may rely on.
        check: (folder, number of steps that were acknowledged) -> what is wrong with the files
            after a crash; "" if nothing is. It may change them.
    """

    name: str
    prepare: Callable[[Path], None]
    act: Callable[[Path, Acknowledge], None]
    check: Callable[[Path, int], str]


@dataclass
class _File:
    """A file or, with entries, a folder, whatever its names are."""

    content: bytes = b""
    synced: bytes = b""
    entries: "dict[str, _File] | None" = None
    pending: list[tuple[int, bytes]] = field(default_factory=list)  # writes since the last sync


Change = tuple[_File, str, "_File | None"]  # folder, name, what it is now


@dataclass
class _Changes:
    """Changes of names that one operation makes at once."""

    parts: tuple[Change, ...]
    is_synced: bool = False

    @property
    def folders(self) -> set[int]:
        return {id(folder) for folder, _, _ in self.parts}


def record(action: Action, folder: Path) -> list[Operation]:
    """Return the operations of an action, with one of the kind "acknowledged" after each step."""
    result = folder.with_name(f"{folder.name}.operations")

    def work() -> None:
        operations: list[Operation] = []

        def before(operation: Operation) -> None:
            if operation.kind == "fsync" and Path(operation.path).is_file():
                # Also what native code has written.
                operation = Operation("fsync", operation.path, data=_content(operation.path))
            operations.append(operation)

        shutil._USE_CP_SENDFILE = False  # type: ignore[attr-defined]  # the system would copy
        watch(folder, before)
        action.act(folder, lambda: operations.append(Operation("acknowledged", "")))
        result.write_bytes(pickle.dumps(operations))

    assert _forked(work) == 0, f"{action.name} fails"
    return list(pickle.loads(result.read_bytes()))


def _content(path: str) -> bytes:
    handle = os.open(path, os.O_RDONLY)
    try:
        return os.pread(handle, os.fstat(handle).st_size, 0)
    finally:
        os.close(handle)


def power_losses(action: Action, folder: Path) -> Iterator[tuple[int, str]]:
    """Yield (number of operations before the power failed, what is wrong) for every state.

    The first number is that of all operations, without a state.
    """
    work = _prepared(action, folder / "work")
    before = read_tree(work)
    operations = record(action, work)
    yield sum(operation.kind != "acknowledged" for operation in operations), ""
    state = folder / "state"
    tried = set()
    for count in range(len(operations) + 1):
        done = operations[:count]
        acknowledged = sum(operation.kind == "acknowledged" for operation in done)
        for tree in disk_states(before, done, str(os.path.realpath(work))):
            key = (acknowledged, tuple(sorted(tree.items())))
            if key not in tried:
                tried.add(key)
                write_tree(tree, state)
                yield count, action.check(state, acknowledged)


def kills(action: Action, folder: Path) -> Iterator[tuple[int, str]]:
    """Kill an action before each operation; yield its number and what is wrong afterwards.

    The first number is that of all operations, without a kill.
    """
    work, count_file, steps = folder / "work", folder / "count", folder / "steps"

    def run(number: int) -> int:
        _prepared(action, work)
        steps.write_bytes(b"")

        def work_until_killed() -> None:
            handle = os.open(steps, os.O_WRONLY | os.O_APPEND)
            write = os.write
            kill_before(number, work, count_file, group=False)
            action.act(work, lambda: (write(handle, b"x"), None)[1])

        return _forked(work_until_killed)

    assert run(0) == 0, f"{action.name} fails"
    operations = count_file.stat().st_size
    yield operations, ""
    for number in range(1, operations + 1):
        assert run(number) == -SIGKILL, f"{action.name} was not killed before {number}"
        yield number, action.check(work, steps.stat().st_size)


def disk_states(before: Tree, operations: Sequence[Operation], root: str) -> Iterator[Tree]:
    """Yield what a disk can hold after some operations.

    Args:
        before: what it held before them.
        operations: in their order.
        root: path of the folder in the operations.
    """
    top = _files_of(before)
    names = {id(file): dict(file.entries) for file in _all(top) if file.entries is not None}
    disk = _Disk(top, root)
    for operation in operations:
        disk.make(operation)
    changes = disk.changes
    everything = [*_all(top), *(file for change in changes for _, _, file in change.parts if file)]
    files = [f for f in everything if f.entries is None and (f.pending or f.content != f.synced)]
    unsynced = [number for number, change in enumerate(changes) if not change.is_synced]
    kept_names = [set(unsynced[:count]) for count in range(len(unsynced) + 1)]
    folders = sorted({folder for number in unsynced for folder in changes[number].folders})
    for count in range(1, len(folders)):
        for chosen in itertools.combinations(folders, count):
            kept_names.append({n for n in unsynced if changes[n].folders <= set(chosen)})
    for kept in kept_names:
        for version in _versions(files):
            shown = [c for n, c in enumerate(changes) if c.is_synced or n in kept]
            yield _tree(top, names, shown, version)


def _tree(
    top: _File,
    names: dict[int, dict[str, _File]],
    changes: Sequence[_Changes],
    version: Callable[[_File], bytes],
) -> Tree:
    """Return the files of a folder with the names `names` and some changes of them."""
    names = {folder: dict(entries) for folder, entries in names.items()}
    for change in changes:
        for folder, name, file in change.parts:
            entries = names.setdefault(id(folder), {})
            entries.pop(name, None)
            if file is not None:
                entries[name] = file
    tree: Tree = {}

    def visit(folder: _File, prefix: str) -> None:
        for name, file in names.get(id(folder), {}).items():
            path = f"{prefix}{name}"
            tree[path] = version(file) if file.entries is None else None
            if file.entries is not None:
                visit(file, f"{path}/")

    visit(top, "")
    return tree


def _versions(files: Sequence[_File]) -> Iterator[Callable[[_File], bytes]]:
    """Yield functions that return the content of a file after the failure."""
    yield lambda file: file.content
    if not files:
        return
    yield lambda file: file.synced
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        yield lambda file, share=share: _cut(file, share)  # type: ignore[misc]
    for first in (True, False):
        yield lambda file, first=first: _zeros(file, first)  # type: ignore[misc]


def _cut(file: _File, share: float) -> bytes:
    """Return a file with a part of the bytes of its last write; at most all but one of them."""
    if not file.pending:
        return file.content
    offset, data = file.pending[-1]
    content = file.synced
    for start, written in file.pending[:-1]:
        content = _written(content, start, written)
    return _written(content, offset, data[: min(int(share * len(data)), len(data) - 1)])


def _zeros(file: _File, first: bool) -> bytes:
    """Return a file with zeros in the pages that are not synced; `first`: not in the last one."""
    if len(file.content) <= len(file.synced):
        return file.content
    start, end = len(file.synced), len(file.content)
    if first and (end - 1) // PAGE > start // PAGE:
        end = (end - 1) // PAGE * PAGE
    return file.content[:start] + bytes(end - start) + file.content[end:]


def _written(content: bytes, offset: int, data: bytes) -> bytes:
    content = content.ljust(offset, b"\0")
    return content[:offset] + data + content[offset + len(data) :]


class _Disk:
    """Makes operations in memory; there is a method for each kind that changes something."""

    def __init__(self, top: _File, root: str) -> None:
        self._top, self._root = top, Path(root)
        self.changes: list[_Changes] = []

    def make(self, operation: Operation) -> None:
        method = getattr(self, f"_{operation.kind}", None)
        file = self._find(operation.path) if operation.path else None
        if method is not None and (file is not None or operation.kind in ("open", "mkdir")):
            method(operation, file)

    def _open(self, operation: Operation, file: _File | None) -> None:
        if file is None and operation.flags & os.O_CREAT:
            self._change((operation.path, _File()))
        elif file is not None and operation.flags & os.O_TRUNC:
            file.content = b""

    def _write(self, operation: Operation, file: _File) -> None:
        file.content = _written(file.content, operation.offset, operation.data)
        file.pending.append((operation.offset, operation.data))

    def _truncate(self, operation: Operation, file: _File) -> None:
        file.content = file.content[: operation.offset].ljust(operation.offset, b"\0")

    def _mkdir(self, operation: Operation, file: _File | None) -> None:
        if file is None:
            self._change((operation.path, _File(entries={})))

    def _unlink(self, operation: Operation, _file: _File) -> None:
        self._change((operation.path, None))

    _rmdir = _unlink

    def _link(self, operation: Operation, file: _File) -> None:
        self._change((operation.target, file))

    def _rename(self, operation: Operation, file: _File) -> None:
        other = self._find(operation.target)
        # A folder cannot be renamed to one that has files: their names were exchanged.
        left = other if other is not None and other.entries else None
        self._change((operation.path, left), (operation.target, file))

    def _fsync(self, operation: Operation, file: _File) -> None:
        if file.entries is None:
            file.content = file.synced = operation.data
            file.pending.clear()
        for change in self.changes:
            if id(file) in change.folders:
                change.is_synced = True

    def _find(self, path: str) -> _File | None:
        current: _File | None = self._top
        for part in Path(path).relative_to(self._root).parts:
            current = (current.entries or {}).get(part) if current is not None else None
        return current

    def _change(self, *parts: tuple[str, _File | None]) -> None:
        entries = []
        for path, file in parts:
            folder, name = self._find(str(Path(path).parent)), Path(path).name
            assert folder is not None
            assert folder.entries is not None
            entries.append((folder, name, file))
            folder.entries.pop(name, None)
            if file is not None:
                folder.entries[name] = file
        self.changes.append(_Changes(tuple(entries)))


def _files_of(tree: Tree) -> _File:
    """Return a folder with files that are on the disk."""
    top = _File(entries={})
    for path, content in sorted(tree.items()):
        *folders, name = Path(path).parts
        folder = top
        for part in folders:
            assert folder.entries is not None
            folder = folder.entries[part]
        assert folder.entries is not None
        is_folder = content is None
        folder.entries[name] = _File(content or b"", content or b"", {} if is_folder else None)
    return top


def _all(file: _File) -> Iterator[_File]:
    """Yield a file, or a folder and everything in it."""
    yield file
    for child in (file.entries or {}).values():
        yield from _all(child)


def read_tree(folder: Path) -> Tree:
    """Return the files below a folder."""
    return {
        str(path.relative_to(folder)): None if path.is_dir() else path.read_bytes()
        for path in folder.rglob("*")
    }


def write_tree(tree: Tree, folder: Path) -> None:
    """Make a folder that holds these files only."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name, content in sorted(tree.items()):
        if content is None:
            (folder / name).mkdir()
        else:
            (folder / name).write_bytes(content)


def _prepared(action: Action, folder: Path) -> Path:
    write_tree({}, folder)
    action.prepare(folder)
    return folder


def _forked(function: Callable[[], None]) -> int:
    """Run a function in a forked process, which can be killed; return its exit code."""
    process = FORK.Process(target=function)
    process.start()
    process.join(SECONDS)
    if process.exitcode is None:
        process.kill()
        process.join()
    assert process.exitcode is not None
    return process.exitcode
