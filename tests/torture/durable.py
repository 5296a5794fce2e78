"""What must survive crashes and power failures at any moment: journals and replaced folders."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from scs_supcon.io import exchange
from scs_supcon.io.atomic import write_bytes
from scs_supcon.io.exchange import read_folder, replacing_folder
from scs_supcon.io.journal import Journal

from . import power_loss
from .crash_points import PointOutcome, planned
from .power_loss import Acknowledge, Action

KIND = "test"
# One record is longer than a page of the disk.
RECORDS = [{"image": "ä.png", "label": "a"}, {"text": "x" * 10_000}, {"label": "b\n"}, [1.5]]
OLD = {"model.json": b"old", "weights": b"old" * 3000, "sums": b"old sums"}
NEW = {"model.json": b"new", "weights": b"new" * 4000, "sums": b"new sums", "card": b"new card"}


def actions() -> list[Action]:
    """Return what is killed before each operation, and cut from the power."""
    return [
        Action("journal", _nothing, _append, _check_journal),
        Action("journal that was cut off", _cut_journal, _append_to_cut, _check_journal_after_cut),
        Action("file", lambda folder: _write(folder, OLD), _replace_files, _check_files),
        Action("new folder", _nothing, _replace_folder, _check_new_folder),
        Action("exchange", _old_folder, _replace_folder, _check_folder),
        _in_two_steps(Action("exchange in two steps", _old_folder, _replace_folder, _check_folder)),
    ]


def durable_points(folder: Path, chosen: Iterable[Action]) -> Iterator[PointOutcome]:
    """Kill actions before every operation, then cut them from the power after every one."""
    for action in chosen:
        for kind, attempts in (
            ("killed", power_loss.kills(action, folder / "kills")),
            ("power lost", power_loss.power_losses(action, folder / "power")),
        ):
            command = f"{action.name}, {kind}"
            operations, _ = next(attempts)
            yield planned(command, operations, 0)
            for number, problem in attempts:
                text = f"{command} at operation {number}: {problem}"
                yield PointOutcome(
                    tried=1,
                    correct=int(not problem),
                    problems=(text,) if problem else (),
                    command=command,
                )


def _nothing(folder: Path) -> None:
    pass


# Journals.


def _append(folder: Path, acknowledge: Acknowledge) -> None:
    journal = Journal(folder / "journal", KIND)
    for record in RECORDS:
        journal.append(record)
        acknowledge()


def _cut_journal(folder: Path) -> None:
    journal = Journal(folder / "journal", KIND)
    journal.append("first")
    with journal.file.open("ab") as file:
        file.write(b'{"crc32": "00')


def _append_to_cut(folder: Path, acknowledge: Acknowledge) -> None:
    journal = Journal(folder / "journal", KIND)
    journal.append("second")
    acknowledge()


def _check_journal(folder: Path, acknowledged: int) -> str:
    return _check_records(folder, RECORDS, acknowledged)


def _check_journal_after_cut(folder: Path, acknowledged: int) -> str:
    return _check_records(folder, ["first", "second"], acknowledged + 1)


def _check_records(folder: Path, records: list[object], acknowledged: int) -> str:
    """What was acknowledged is read, at most one more record, and the journal can go on."""
    try:
        journal = Journal(folder / "journal", KIND)
        count = len(journal.records)
        if journal.records != records[:count] or not acknowledged <= count <= acknowledged + 1:
            return f"{acknowledged} records were acknowledged, {count} are read"
        journal.append("next")
        again = Journal(folder / "journal", KIND).records
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "" if again == [*records[:count], "next"] else "a record cannot be appended"


# Files and folders.


def _write(folder: Path, files: dict[str, bytes]) -> None:
    for name, content in files.items():
        (folder / name).write_bytes(content)


def _replace_files(folder: Path, acknowledge: Acknowledge) -> None:
    for name in OLD:
        write_bytes(folder / name, NEW[name])
        acknowledge()


def _check_files(folder: Path, acknowledged: int) -> str:
    for number, name in enumerate(OLD):
        content = (folder / name).read_bytes() if (folder / name).exists() else None
        allowed = [NEW[name]] if number < acknowledged else [OLD[name], NEW[name]]
        if content not in allowed:
            return f"{name} is {_shown(content)}"
    for name in OLD:
        write_bytes(folder / name, NEW[name])
    left = {path.name for path in folder.iterdir()} - OLD.keys()
    return f"left behind: {left}" if left else ""


def _old_folder(folder: Path) -> None:
    (folder / "model").mkdir()
    _write(folder / "model", OLD)


def _replace_folder(folder: Path, acknowledge: Acknowledge) -> None:
    with replacing_folder(folder / "model") as new:
        _write(new, NEW)
    acknowledge()


def _check_folder(folder: Path, acknowledged: int) -> str:
    return _check_model(folder, [NEW] if acknowledged else [OLD, NEW])


def _check_new_folder(folder: Path, acknowledged: int) -> str:
    return _check_model(folder, [NEW] if acknowledged else [{}, NEW])


def _check_model(folder: Path, allowed: list[dict[str, bytes]]) -> str:
    """The folder has all old files or all new ones, and can be replaced without leaving others."""
    model = folder / "model"
    try:
        files = read_folder(model, _read)
        if files not in allowed or (model.exists() and not files):
            shown = ", ".join(f"{name} is {_shown(content)}" for name, content in files.items())
            return shown or "the folder is missing or empty"
        _replace_folder(folder, lambda: None)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    left = {path.name for path in folder.iterdir()} - {"model", ".model.lock"}
    return f"left behind: {left}" if left else ""


def _read(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()} if folder.exists() else {}


def _shown(content: bytes | None) -> str:
    if content is None:
        return "missing"
    return f"{content[:3]!r} with {len(content)} bytes"


def _in_two_steps(action: Action) -> Action:
    """Return an action on a system that cannot exchange two names in one step."""

    def without_exchange(function):  # type: ignore[no-untyped-def]
        def call(folder: Path, other: object) -> str:
            original = exchange.exchange_names
            exchange.exchange_names = lambda a, b: False
            try:
                return function(folder, other)
            finally:
                exchange.exchange_names = original

        return call

    return replace(action, act=without_exchange(action.act), check=without_exchange(action.check))
