"""Fill the disk at random moments, and compare what the commands end with once there is space."""

import itertools
import random
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from command_processes import CommandResult, Processes

from .kills import SECONDS, Log, no_log
from .outcome import Outcome, attempt
from .reference import Reference, compare, keep, unbroken
from .scenarios import Scenario, prepared

FULL = ("disk is full", "No space left on device", "File too large")  # what an error has to say
PAGE = 4096  # a file in memory takes whole pages


def full_disks(
    seed: int,
    count: int,
    folder: Path,
    choices: Sequence[Scenario],
    processes: Processes,
    log: Log = no_log,
) -> Iterator[Outcome]:
    """Fill the disk at a random moment, then free it: the command fails clearly, then finishes.

    The disk is a small one in memory if this user may mount it. Otherwise, and in half of the
    attempts, creating files fails from a random one on, or files have a largest size. A command
    that finishes without a word, because there was space enough, does not count.
    """
    chance = random.Random(seed)
    references: dict[str, Reference] = {}
    disk, hits = folder / "disk", 0
    commands = itertools.cycle(chance.sample(choices, len(choices)))
    for scenario in itertools.islice(commands, 3 * count):
        if hits == count:
            return
        if scenario.name not in references:
            references[scenario.name] = unbroken(scenario, processes, disk / "work")
        reference = references[scenario.name]
        fault, full, problem = _fill(scenario, reference, processes, disk, chance)
        shown = f"{scenario.name}, {fault}"
        log(f"{shown}: {problem or full.err.strip()[-120:] or 'no error'}")
        failed = full.code not in scenario.codes
        if problem or failed or _says_full(full):
            hits += 1
            yield attempt(int(failed), f"{shown}: {problem}" if problem else "")


def _says_full(result: CommandResult) -> bool:
    return any(text in result.err + result.out for text in FULL)


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
    pages = sum(-(-size // PAGE) for size in reference.sizes)
    size = max(1, int(pages * chance.uniform(0.02, 1.0))) * PAGE
    options: dict[str, object] = {}
    with _disk(scenario, work, size if kind == "disk" else None) as (folder, enlarge, mounted):
        command = scenario.command(folder)
        fault = f"a disk of {size} bytes"
        if kind == "limit":
            options["file_limit"] = int(max(reference.sizes) ** chance.uniform(0.3, 1))
            fault = f"files of at most {options['file_limit']} bytes"
        elif not mounted:
            options["full_at"] = (str(folder), chance.randint(1, max(1, reference.accesses // 2)))
            fault = f"full from file {options['full_at']}"
        full = processes.run(*command, eager=True, kill_after=SECONDS, **options)
        problem = ""
        message = full.err + full.out
        if "Traceback" in message or full.code not in (*scenario.codes, 1, 2):
            problem = f"with a full disk: exit code {full.code}: {message.strip()[-400:]}"
        elif full.code not in scenario.codes and not _says_full(full):
            problem = f"with a full disk: {message.strip()[-300:]}"
        enlarge()
        again = processes.run(*command, eager=True, kill_after=SECONDS)
        problem = problem or compare(scenario, reference, again, folder)
        if problem:
            keep(reference, folder, work.parent / "lost" / scenario.name)
        return fault, full, problem


@contextmanager
def _disk(
    scenario: Scenario, work: Path, size: int | None
) -> Iterator[tuple[Path, Callable[[], None], bool]]:
    """Yield a folder with the inputs, a function that makes space, and whether it is a disk."""
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    mounted = False
    if size is not None:
        files = [file.stat().st_size for source in scenario.inputs for file in source.rglob("*")]
        options = f"size={size + sum(-(-file // PAGE) for file in files) * PAGE}"
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
