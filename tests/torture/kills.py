"""Kill commands at random moments, or fill the disk, and compare what they end with."""

import itertools
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from signal import SIGKILL

from command_processes import CommandResult, Processes

from .outcome import Outcome, differences
from .scenarios import Files, Scenario, prepared

NEVER = 10**9
FULL = ("disk is full", "No space left on device", "File too large")  # what an error has to say
SECONDS = 300  # after which a command counts as hanging


@dataclass(frozen=True)
class Reference:
    """What a command that is not disturbed ends with.

    Attributes:
        files: the files that must be the same.
        accesses: how often it creates, renames or removes a file.
        seconds: its duration.
        size: size of all files that it leaves, in bytes.
    """

    files: Files
    accesses: int
    seconds: float
    size: int


Log = Callable[[str], None]


def _no_log(_line: str) -> None:
    pass


def kills(
    seed: int,
    count: int,
    folder: Path,
    choices: Sequence[Scenario],
    processes: Processes,
    log: Log = _no_log,
    *,
    new: bool = False,
) -> Outcome:
    """Kill commands `count` times in total; those that finish must leave the same files.

    Half of the kills come before a random access to a file, half at a random time; half of them
    also kill the workers of the command.

    Args:
        seed: of the moments.
        count: number of kills.
        folder: for the files of the commands.
        choices: the commands, which take turns.
        processes: runs them.
        log: gets a line for each command that finished.
        new: start a new interpreter for each command, and kill it at a random time.
    """
    chance = random.Random(seed)
    outcome = Outcome()
    references: dict[str, Reference] = {}
    for scenario in itertools.cycle(chance.sample(choices, len(choices))):
        if outcome.tried >= count:
            return outcome
        if scenario.name not in references:
            references[scenario.name] = unbroken(scenario, processes, folder / "work")
        reference = references[scenario.name]
        work = prepared(scenario, folder / "work")
        if new:
            killed, result = _kill_new_process(scenario, work, chance)
        else:
            killed, result = _kill(scenario, reference, processes, work, chance)
        problem = _compare(scenario, reference, result, work)
        outcome.tried += killed
        if problem:
            outcome.lost.append(f"{scenario.name}, {killed} kills: {problem}")
        outcome.correct += 0 if problem else killed
        log(f"{scenario.name}: {killed} kills, {problem or 'the same files'}")
    return outcome


def full_disks(
    seed: int,
    count: int,
    folder: Path,
    choices: Sequence[Scenario],
    processes: Processes,
    log: Log = _no_log,
) -> Outcome:
    """Fill the disk at a random moment, then free it: the command fails clearly, then finishes.

    The disk is a small one in memory if this user may mount it. Otherwise, and in half of the
    attempts, creating files fails from a random one on, or files have a largest size.
    """
    chance = random.Random(seed)
    outcome = Outcome()
    references: dict[str, Reference] = {}
    disk = folder / "disk"
    commands = itertools.cycle(chance.sample(choices, len(choices)))
    for scenario in itertools.islice(commands, count):
        if scenario.name not in references:
            references[scenario.name] = unbroken(scenario, processes, disk / "work")
        reference = references[scenario.name]
        fault, full, problem = _fill(scenario, reference, processes, disk, chance)
        shown = f"{scenario.name}, {fault}"
        outcome.add(full.code, f"{shown}: {problem}" if problem else "")
        log(f"{shown}: {problem or full.err.strip()[-120:] or 'no error'}")
    return outcome


def _fill(
    scenario: Scenario,
    reference: Reference,
    processes: Processes,
    work: Path,
    chance: random.Random,
) -> tuple[str, CommandResult, str]:
    """Run a command on a disk that gets full, then again with space.

    Returns:
        The fault, the result of the command with a full disk, and what went wrong.
    """
    kind = chance.choice(("disk", "disk", "access", "limit"))
    size = int(reference.size * chance.uniform(0.02, 1.0))
    options: dict[str, object] = {}
    with _disk(scenario, work, size if kind == "disk" else None) as (folder, enlarge, mounted):
        command = scenario.command(folder)
        fault = f"a disk of {size} bytes"
        if kind == "limit":
            options["file_limit"] = int(2 ** chance.uniform(8, 18))
            fault = f"files of at most {options['file_limit']} bytes"
        elif not mounted:
            options["full_at"] = (str(folder), chance.randint(1, max(1, reference.accesses // 2)))
            fault = f"full from file {options['full_at']}"
        full = processes.run(*command, eager=True, kill_after=SECONDS, **options)
        problem = ""
        message = full.err + full.out
        if "Traceback" in message or full.code not in (*scenario.codes, 1, 2):
            problem = f"with a full disk: exit code {full.code}: {message.strip()[-400:]}"
        elif full.code not in scenario.codes and not any(text in message for text in FULL):
            problem = f"with a full disk: {message.strip()[-300:]}"
        enlarge()
        again = processes.run(*command, eager=True, kill_after=SECONDS)
        return fault, full, problem or _compare(scenario, reference, again, folder)


@contextmanager
def _disk(
    scenario: Scenario, work: Path, size: int | None
) -> Iterator[tuple[Path, Callable[[], None], bool]]:
    """Yield a folder with the inputs, a function that makes space, and whether it is a disk."""
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    mounted = False
    if size is not None:
        inputs = sum(f.stat().st_size for s in scenario.inputs for f in s.rglob("*"))
        # A file takes whole pages; 16 of them are for folders and locks.
        options = f"size={(size + inputs + 16 * 4096) // 4096 * 4096}"
        with suppress(FileNotFoundError):
            line = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(work)]
            mounted = subprocess.run(line, capture_output=True, check=False).returncode == 0
    folder = work / "work"

    def enlarge() -> None:
        if mounted:
            subprocess.run(["mount", "-o", "remount,size=2g", str(work)], check=True)

    try:
        try:
            prepared(scenario, folder)
        except OSError:  # the disk has no space for the inputs: the command gets a larger one
            enlarge()
            prepared(scenario, folder)
        yield folder, enlarge, mounted
    finally:
        if mounted:
            subprocess.run(["umount", "--lazy", str(work)], check=True)


def unbroken(scenario: Scenario, processes: Processes, work: Path) -> Reference:
    """Run a command without a disturbance."""
    prepared(scenario, work)
    start = time.monotonic()
    count = (0, str(work), NEVER)  # counts the accesses, and never sends a signal
    result = processes.run(*scenario.command(work), eager=True, group=True, signal_at=count)
    seconds = time.monotonic() - start
    assert result.code in scenario.codes, f"{scenario.name}: {result.err}"
    size = sum(file.stat().st_size for file in work.rglob("*") if file.is_file())
    return Reference(scenario.result(work), processes.accesses, seconds, size)


def _kill(
    scenario: Scenario,
    reference: Reference,
    processes: Processes,
    work: Path,
    chance: random.Random,
) -> tuple[int, CommandResult]:
    """Kill a command again and again, then let it finish; return the number of kills."""
    command = scenario.command(work)
    killed, left = 0, 1.0  # share of the work that is left, so that a resumed one is killed, too
    for _ in range(scenario.most_kills):
        group = chance.random() < 0.5
        share = chance.uniform(0, left)
        left = max(0.1, left - share)
        if chance.random() < 0.5:
            moment = (SIGKILL, str(work), 1 + int(share * (reference.accesses - 1)))
            result = processes.run(*command, eager=True, group=group, signal_at=moment)
        else:
            seconds = share * reference.seconds
            result = processes.run(*command, eager=True, group=group, kill_after=seconds)
        # A command whose worker is killed says so.
        if result.code != -SIGKILL and "signal 9" not in result.err:
            return killed, result
        killed += 1
    return killed, processes.run(*command, eager=True, kill_after=SECONDS)


def _kill_new_process(
    scenario: Scenario, work: Path, chance: random.Random
) -> tuple[int, CommandResult]:
    """Kill a new interpreter at a random time, then let one finish; return the number of kills."""
    command = [sys.executable, "-m", "scs_supcon", *map(str, scenario.command(work))]
    killed = 0
    while True:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, process_group=0
        )
        limit = chance.uniform(3, 12) if killed < scenario.most_kills else SECONDS
        try:
            out, err = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, SIGKILL)
            out, err = process.communicate()
            if limit == SECONDS:
                return killed, CommandResult(1, out, f"no result after {SECONDS} s")
            killed += 1
            continue
        return killed, CommandResult(process.returncode, out, err)


def _compare(scenario: Scenario, reference: Reference, result: CommandResult, work: Path) -> str:
    """Return what is wrong with the end of a command; "" if nothing is."""
    if result.code not in scenario.codes:
        return f"exit code {result.code}: {(result.err or result.out).strip()[-400:]}"
    return ", ".join(differences(reference.files, scenario.result(work)))
