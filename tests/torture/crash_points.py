"""Kill commands before each of their file-system operations in turn, and repeat them.

The repeated command must end with the files of one that was not killed. Where a command cannot be
repeated, it must say that the work is done, with the same files.
"""

import json
import os
import re
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from signal import SIGTERM
from typing import Any

from command_processes import CommandResult, Processes, deterministic_files

from .kills import Log, no_log
from .outcome import Outcome, differences
from .reference import is_finished, keep_files
from .scenarios import Files, Scenario, prepared
from .servers import copy_run, free_port, request, wait_for

SECONDS = 120  # after which a command counts as hanging
REPEATS = 3  # in which a killed command has to finish
CORRECTED = 3  # images whose labels are corrected on a server
# Parts of names that differ between runs: random numbers, and numbers of checkpoints.
VARYING = re.compile(r"[0-9a-f]{16}|(?<=-)\d{6}(?=\.(safetensors|json|sha256)$)")
# Files of which there may be more: locks are never removed, and every start writes an event file.
MORE = re.compile(r"\.lock$|events\.out\.tfevents\.")


@dataclass(frozen=True)
class PointOutcome(Outcome):
    """The outcome of a kill, or, without one, what is planned for a command.

    Attributes:
        command: Its name.
        operations: File-system operations of the command without a kill.
        wanted: Kills that are planned.
        left_behind: Files that the repeated command did not remove.
    """

    command: str = ""
    operations: int = 0
    wanted: int = 0
    left_behind: tuple[str, ...] = ()


@dataclass(frozen=True)
class Unbroken:
    """What a command that is not killed ends with.

    Attributes:
        files: the files that must be the same.
        names: how often each name of a file occurs, without the parts that vary.
        operations: number of its file-system operations.
    """

    files: Files
    names: Counter[str]
    operations: int


def chosen_points(operations: int, most: int) -> list[int]:
    """Return the numbers of at most `most` operations, evenly spaced, with the first and last."""
    if operations <= most:
        return list(range(1, operations + 1))
    step = (operations - 1) / max(1, most - 1)
    return [1 + round(number * step) for number in range(most)]


def crash_points(
    most: int,
    folder: Path,
    choices: Sequence[Scenario],
    processes: Processes,
    log: Log = no_log,
    share: tuple[int, int] = (0, 1),
) -> Iterator[PointOutcome]:
    """Kill each command before at most `most` of its operations.

    Every second kill also kills the workers of the command, as if the machine failed.

    Args:
        most: number of kills of a command.
        folder: for the files of the commands.
        choices: the commands.
        processes: runs them.
        log: gets a line for each kill.
        share: (number, count) of the part of the kills that is made here.
    """
    work = folder / "work"
    for scenario in choices:
        yield planned(scenario.name, 0, 1)  # in the table, even if the time is over before
    for scenario in choices:
        prepared(scenario, work)
        result = _run(scenario, processes, work, group=True, kill_before=(str(work), 0))
        assert result.code in scenario.codes, f"{scenario.name}: {result.err}"
        unbroken = Unbroken(_without_temporary(scenario, work), _names(work), processes.accesses)
        wanted = chosen_points(unbroken.operations, most)[share[0] :: share[1]]
        yield planned(scenario.name, unbroken.operations, len(wanted) - 1)
        for number in wanted:
            prepared(scenario, work)
            _run(scenario, processes, work, group=number % 2 == 0, kill_before=(str(work), number))
            if processes.accesses < number:  # it had fewer operations this time
                yield planned(scenario.name, unbroken.operations, -1)
                continue
            problem = _repeat(scenario, unbroken, processes, work)
            outcome = finished(scenario.name, unbroken, number, problem, work)
            log(_shown(outcome, number))
            if problem:
                name = f"{scenario.name.replace(' ', '-')}-{number}"
                keep_files(unbroken.files, work, folder / "lost" / name)
            yield outcome


def planned(command: str, operations: int, wanted: int) -> PointOutcome:
    """Return that more kills of a command are planned, or fewer."""
    return PointOutcome(command=command, operations=operations, wanted=wanted)


def finished(
    command: str, unbroken: Unbroken, number: int, problem: str, work: Path
) -> PointOutcome:
    """Return the outcome of a kill after which the command was repeated."""
    left_behind = tuple(sorted(_names(work) - unbroken.names))
    if problem:
        problem = f"{command}, killed before operation {number}: {problem}"
    return PointOutcome(
        tried=1,
        correct=int(not problem),
        problems=(problem,) if problem else (),
        command=command,
        left_behind=() if problem else left_behind,
    )


def table(outcomes: Iterable[PointOutcome]) -> tuple[list[str], bool]:
    """Return a table in Markdown, and whether everything was tried and nothing lost or left."""
    by_command: dict[str, list[PointOutcome]] = {}
    for outcome in outcomes:
        by_command.setdefault(outcome.command, []).append(outcome)
    lines = [
        "| command | operations | tried | survived | lost | left behind |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    is_good = bool(by_command)
    for name, entries in by_command.items():
        operations = max(entry.operations for entry in entries)
        wanted = sum(entry.wanted for entry in entries)
        tried = sum(entry.tried for entry in entries)
        lost = sum(entry.lost for entry in entries)
        left = sum(bool(entry.left_behind) for entry in entries)
        missing = f" ({wanted} wanted)" if tried < wanted else ""
        is_good = is_good and not (lost or left or missing)
        numbers = f"{operations:,} | {tried:,}{missing} | {tried - lost:,} | {lost:,} | {left:,}"
        lines.append(f"| `{name}` | {numbers} |")
    return lines, is_good


def _repeat(scenario: Scenario, unbroken: Unbroken, processes: Processes, work: Path) -> str:
    """Repeat a killed command until it finishes; return what is wrong then, "" if nothing is."""
    for _ in range(REPEATS):
        result = _run(scenario, processes, work)
        if "Traceback" in result.err:
            break
        if is_finished(scenario, result):
            return ", ".join(differences(unbroken.files, _without_temporary(scenario, work)))
    return f"exit code {result.code}: {(result.err or result.out).strip()[-300:]}"


def _run(scenario: Scenario, processes: Processes, work: Path, **options: Any) -> CommandResult:
    return processes.run(*scenario.command(work), eager=True, kill_after=SECONDS, **options)


def _without_temporary(scenario: Scenario, work: Path) -> Files:
    """Return the files that must be the same; temporary ones are reported as left behind."""
    files = scenario.result(work).items()
    return {name: content for name, content in files if not name.endswith(".tmp")}


def _names(work: Path) -> Counter[str]:
    names = (str(file.relative_to(work)) for file in work.rglob("*"))
    return Counter(VARYING.sub("#", name) for name in names if not MORE.search(name))


def _shown(outcome: PointOutcome, number: int) -> str:
    end = "the same files" if outcome.correct else outcome.problems[0]
    left = f", left behind: {', '.join(outcome.left_behind)}" if outcome.left_behind else ""
    return f"{outcome.command}, operation {number}: {end}{left}"


# A server: labels are corrected, a training is started, and the new run is promoted.


def server_points(
    most: int,
    folder: Path,
    run: Path,
    processes: Processes,
    trainings: Processes,
    log: Log = no_log,
    share: tuple[int, int] = (0, 1),
) -> Iterator[PointOutcome]:
    """Kill a server before at most `most` of its operations, and start it again.

    What it acknowledged must be stored. The client then repeats what was not acknowledged, and
    the files must be those of a server that was not killed.

    Args:
        most: number of kills.
        folder: for the files.
        run: a finished run.
        processes: runs the server.
        trainings: runs the training that the server started, forked from a process that has
            imported everything; the one that the server starts ends at once.
        log: gets a line for each kill.
        share: (number, count) of the part of the kills that is made here.
    """
    name = "serve"
    session = _Session(copy_run(run, folder), processes, trainings)
    problem = session.go_on(kill_before=0)
    assert not problem, problem
    unbroken = Unbroken(session.files(), _names(folder / "served"), processes.accesses)
    wanted = chosen_points(unbroken.operations, most)[share[0] :: share[1]]
    yield planned(name, unbroken.operations, len(wanted))
    for number in wanted:
        session = _Session(copy_run(run, folder), processes, trainings)
        problem = session.go_on(kill_before=number) or session.go_on()
        if not problem:
            problem = ", ".join(differences(unbroken.files, session.files()))
        outcome = finished(name, unbroken, number, problem, folder / "served")
        log(_shown(outcome, number))
        yield outcome


class _Session:
    """A client that corrects labels, trains and promotes, also after the server was killed."""

    def __init__(self, run: Path, processes: Processes, trainings: Processes) -> None:
        self._run, self._processes, self._trainings = run, processes, trainings
        self._corrected: dict[int, str] = {}  # acknowledged
        self._trained = self._promoted = ""  # name of the run
        self._rows = b""

    def go_on(self, kill_before: int | None = None) -> str:
        """Start a server and do what was not acknowledged; return what is wrong.

        Args:
            kill_before: number of the operation before which it is killed; 0 only counts.
        """
        port = free_port()
        options: dict[str, Any] = {"executable": "/bin/true"}  # instead of the training
        if kill_before is not None:
            options["kill_before"] = (str(self._run.parent), kill_before)
        process = self._processes.start("serve", self._run, "--port", str(port), **options)
        problem = ""
        try:
            wait_for(port, lambda: self._processes.ends(0))
            problem = self._check(port)
            if not problem:
                self._work(port)
        except (OSError, HTTPException, ValueError) as error:  # killed, or it does not answer
            if not kill_before or isinstance(error, ValueError):
                problem = f"{type(error).__name__}: {error}"
        with suppress(ProcessLookupError):
            os.kill(process, SIGTERM)
        result = self._processes.wait()
        return result.err.strip()[-300:] if "Traceback" in result.err else problem

    def _check(self, port: int) -> str:
        """Return what was acknowledged but is not stored."""
        rows = request(port, "GET", "/api/corrections")["rows"]
        data = request(port, "GET", "/api/data")
        stored = {row["image"]: row["new_label"] for row in rows}
        for image, label in self._corrected.items():
            if stored.get(data["names"][image]) != label:
                return f"the correction of image {image} was acknowledged and is not stored"
        training = request(port, "GET", "/api/retrain")
        if self._trained and training.get("run") != self._trained:
            return f"the training of {self._trained} was acknowledged and is not known"
        if self._promoted and request(port, "GET", "/api/runs")["current"] != self._promoted:
            return f"{self._promoted} was promoted and is not used"
        return ""

    def _work(self, port: int) -> None:
        data = request(port, "GET", "/api/data")
        classes, originals = data["classes"], data["originals"]
        for image in range(CORRECTED):
            if image not in self._corrected:
                label = classes[(originals[image] + 1) % len(classes)]
                document = {"images": [image], "label": label}
                request(port, "POST", "/api/corrections", document)
                self._corrected[image] = label
        if not self._trained:
            status = request(port, "GET", "/api/retrain")
            action = "" if status["state"] == "none" else "/resume"
            status = request(port, "POST", f"/api/retrain{action}", {})
            self._trained = status["run"]
        status = request(port, "GET", "/api/retrain")
        if status["state"] != "finished":
            command = shlex.split(status["command"])[1:]
            result = self._trainings.run(*command, kill_after=SECONDS)
            if result.code:
                raise ValueError(f"the training ends with code {result.code}: {result.err[-300:]}")
        if not self._promoted:
            request(port, "POST", "/api/promote", {"run": self._trained})
            self._promoted = self._trained
        rows = request(port, "GET", "/api/corrections")["rows"]
        self._rows = json.dumps([{**row, "time": ""} for row in rows]).encode()

    def files(self) -> Files:
        """Return the files that must be the same."""
        new = self._run.with_name(self._trained)
        files = {f"{new.name}/{key}": value for key, value in deterministic_files(new).items()}
        for file in (self._run / "retrain.json", self._run / "current.json"):
            files[file.name] = file.read_bytes()
        return files | {"corrections": self._rows}
