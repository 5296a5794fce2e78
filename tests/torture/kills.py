"""Kill or stop commands at random moments, and compare what they end with."""

import itertools
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from signal import SIGINT, SIGKILL, SIGTERM

from command_processes import CommandResult, Processes

from .outcome import Outcome, resumed
from .reference import Reference, compare, keep, unbroken
from .scenarios import Scenario, prepared

SECONDS = 300  # after which a command counts as hanging
STOPS = ((SIGTERM,), (SIGINT,), (SIGINT, SIGINT), (SIGTERM, SIGTERM))

Log = Callable[[str], None]


def no_log(_line: str) -> None:
    """Do nothing."""


def kills(
    seed: int,
    count: int,
    folder: Path,
    choices: Sequence[Scenario],
    processes: Processes,
    log: Log = no_log,
    *,
    new: bool = False,
    stops: bool = False,
) -> Iterator[Outcome]:
    """Kill commands `count` times in total; those that finish must leave the same files.

    Half of the kills come before a random access to a file, half at a random time; half of them
    also kill the workers of the command, and some of them only a worker.

    Args:
        seed: of the moments.
        count: number of kills.
        folder: for the files of the commands.
        choices: the commands, which take turns.
        processes: runs them; its clock, if it has one, also jumps while a command runs.
        log: gets a line for each command that finished.
        new: start a new interpreter for each command, and kill it at a random time.
        stops: send SIGTERM or SIGINT, once or twice, instead of SIGKILL.
    """
    chance = random.Random(seed)
    references: dict[str, Reference] = {}
    tried = 0
    for scenario in itertools.cycle(chance.sample(choices, len(choices))):
        if tried >= count:
            return
        if scenario.name not in references:
            references[scenario.name] = unbroken(scenario, processes, folder / "work")
        reference = references[scenario.name]
        work = prepared(scenario, folder / "work")
        start = time.monotonic()
        if new:
            killed, result = _kill_new_process(scenario, work, chance)
        else:
            killed, result = _kill(scenario, reference, processes, work, chance, stops=stops)
        if not killed:  # it was faster than the first time
            seconds = min(reference.seconds, time.monotonic() - start)
            references[scenario.name] = replace(reference, seconds=seconds)
        problem = compare(scenario, reference, result, work)
        tried += killed
        if problem:
            keep(reference, work, folder / "lost" / str(tried))
        log(f"{scenario.name}: {killed} kills, {problem or 'the same files'}")
        yield resumed(killed, f"{scenario.name}, {killed} kills: {problem}" if problem else "")


def _kill(
    scenario: Scenario,
    reference: Reference,
    processes: Processes,
    work: Path,
    chance: random.Random,
    *,
    stops: bool,
) -> tuple[int, CommandResult]:
    """Kill a command again and again, then let it finish; return the number of kills."""
    killed, left = 0, 1.0  # share of the work that is left, so that a resumed one is killed, too
    for _ in range(scenario.most_kills):
        signals = chance.choice(STOPS) if stops else (SIGKILL,)
        group = chance.random() < 0.5
        worker = not group and not stops and chance.random() < 0.5
        share = chance.uniform(0, left)
        left = max(0.1, left - share)
        at_access = chance.random() < 0.5 and len(signals) == 1
        moment = (signals[0], str(work), 1 + int(share * (reference.accesses - 1)))
        result = _run(
            *(scenario, reference, processes, work, chance),
            group=group,
            worker=worker,
            signal_at=moment if at_access else None,
            kill_after=SECONDS if at_access else share * reference.seconds,
            signals=(SIGKILL,) if at_access else signals,
        )
        if not _is_ended_by(signals[0], result):
            return killed, result
        killed += 1
    return killed, _run(scenario, reference, processes, work, chance, kill_after=SECONDS)


def _is_ended_by(number: int, result: CommandResult) -> bool:
    if "Traceback" in result.err:
        return False
    # A command whose worker is killed says so.
    says_so = f"signal {number}" in result.err or "was killed" in result.err
    # One whose worker is stopped, too, stops as after Ctrl-C.
    stopped = number != SIGKILL and result.code in (128 + SIGINT, 128 + SIGTERM)
    return result.code == -number or stopped or (result.code != 0 and says_so)


def _run(
    scenario: Scenario,
    reference: Reference,
    processes: Processes,
    work: Path,
    chance: random.Random,
    **options: object,
) -> CommandResult:
    """Run a command; the clock, if it jumps, jumps also while it runs."""
    command = scenario.command(work)
    clock = processes.clock
    if clock is None:
        return processes.run(*command, eager=True, **options)
    timer = threading.Timer(chance.uniform(0, reference.seconds), clock.jump)
    timer.start()
    result = processes.run(*command, eager=True, **options)
    timer.cancel()
    timer.join()
    clock.change_times(work)
    return result


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
