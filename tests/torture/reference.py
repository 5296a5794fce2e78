"""What a command that is not disturbed ends with, and how others are compared with it."""

import shutil
import time
from dataclasses import dataclass
from pathlib import Path

from command_processes import CommandResult, Processes

from .outcome import differences
from .scenarios import Files, Scenario, prepared

NEVER = 10**9


@dataclass(frozen=True)
class Reference:
    """What a command that is not disturbed ends with.

    Attributes:
        files: the files that must be the same.
        accesses: how often it creates, renames or removes a file.
        seconds: its duration.
        sizes: sizes of the files that it writes, in bytes.
    """

    files: Files
    accesses: int
    seconds: float
    sizes: list[int]


def unbroken(scenario: Scenario, processes: Processes, work: Path) -> Reference:
    """Run a command without a disturbance."""
    prepared(scenario, work)
    inputs = _sizes(work)
    start = time.monotonic()
    count = (0, str(work), NEVER)  # counts the accesses, and never sends a signal
    result = processes.run(*scenario.command(work), eager=True, group=True, signal_at=count)
    seconds = time.monotonic() - start
    assert result.code in scenario.codes, f"{scenario.name}: {result.err}"
    sizes = [size for file, size in _sizes(work).items() if inputs.get(file) != size]
    return Reference(scenario.result(work), processes.accesses, seconds, sizes or [1])


def compare(scenario: Scenario, reference: Reference, result: CommandResult, work: Path) -> str:
    """Return what is wrong with the end of a command; "" if nothing is."""
    if not is_finished(scenario, result) or "Traceback" in result.err:
        return f"exit code {result.code}: {(result.err or result.out).strip()[-400:]}"
    return ", ".join(differences(reference.files, scenario.result(work)))


def is_finished(scenario: Scenario, result: CommandResult) -> bool:
    """Return whether a command has finished, or says that it had finished before."""
    is_done = bool(scenario.done) and result.code == 2 and scenario.done in result.err
    return result.code in scenario.codes or is_done


def keep(reference: Reference, work: Path, folder: Path) -> None:
    """Keep the expected and the actual files of a lost attempt."""
    keep_files(reference.files, work, folder)


def keep_files(expected: Files, work: Path, folder: Path) -> None:
    """Keep the expected and the actual files of a lost attempt."""
    shutil.copytree(work, folder / "actual", symlinks=True, dirs_exist_ok=True)
    for name, content in expected.items():
        file = folder / "expected" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)


def _sizes(folder: Path) -> dict[Path, int]:
    return {file: file.stat().st_size for file in folder.rglob("*") if file.is_file()}
