"""Kill commands at random moments, or fill the disk, and compare what they end with."""

import random
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from signal import SIGKILL

from command_processes import Processes, deterministic_files

from .outcome import Outcome, differences

QUICK = (
    *("--epochs", "2", "--batch-size", "64", "--workers", "0", "--device", "cpu", "--no-report"),
    *("--set", "probe.epochs=3", "--set", "probe.views=1", "--quiet"),
)
MOST_KILLS = 25  # of one run, which then has to finish
WRITES = 40  # the latest file access at which a process is killed


@dataclass(frozen=True)
class Scenario:
    """A command that can be repeated until it has finished.

    Attributes:
        name: For the report.
        command: Folder -> arguments of `scs`.
        result: Folder -> content of the files that must be the same.
        inputs: Files and folders that each attempt gets a copy of.
        codes: Exit codes of success; `doctor` ends with 1 if it finds problems.
    """

    name: str
    command: Callable[[Path], Sequence[str | Path]]
    result: Callable[[Path], dict[str, bytes]]
    inputs: tuple[Path, ...] = ()
    codes: tuple[int, ...] = (0,)


def scenarios(run: Path, images: Path, weights: Path) -> list[Scenario]:
    """Return training with several methods and stages, and the other commands that write files."""
    tiny = ("--encoder", "tiny", "--weights", weights)
    frozen = (*tiny, "--frozen")
    unfreeze = (*tiny, "--unfreeze", "--set", "pretrain.head_epochs=2")
    averaged = ("--set", "pretrain.ema=0.9", "--set", "pretrain.patience=2")
    trained = {
        "default": (),
        "supcon, micro-batches": ("--method", "supcon", "--micro-batch", "32"),
        "byol": ("--method", "byol"),
        "pcl": ("--method", "pcl"),
        "scs_supcon, mixed": ("--method", "scs_supcon", "--set", "pretrain.mixup=0.4"),
        "frozen": frozen,
        "frozen paco": (*frozen, "--method", "paco"),
        "unfreeze": (*unfreeze, "--method", "baseline", *averaged),
    }
    listed = [
        Scenario(f"train {name}", _train(extra), _run_files) for name, extra in trained.items()
    ]
    listed.append(Scenario("report", _on_copy(run, "report"), _report_files, (run,)))
    listed.append(
        Scenario(
            "predict",
            lambda f: ("predict", run, images, "--format", "csv", "-o", f / "names.csv", "--quiet"),
            lambda f: _files(f, "names.csv"),
        )
    )
    listed.append(
        Scenario(
            "doctor --fix",
            lambda f: ("doctor", images, "--fix", "--out", f / "problems.csv", "--quiet"),
            lambda f: _files(f, "*-fixed.csv"),
            codes=(0, 1),
        )
    )
    return listed


def kills(
    seed: int, count: int, folder: Path, choices: Sequence[Scenario], log: Callable[[str], None]
) -> Outcome:
    """Kill processes `count` times in total; every run that finishes must have the same files."""
    chance = random.Random(seed)
    outcome = Outcome()
    processes = Processes(_new(folder / "processes"))
    references: dict[str, dict[str, bytes]] = {}
    order: list[Scenario] = []
    while outcome.tried < count:
        order = order or chance.sample(list(choices), len(choices))
        scenario = order.pop()
        expected = references.get(scenario.name) or _unbroken(scenario, processes, folder)
        references[scenario.name] = expected
        work = _prepared(scenario, folder / "work")
        killed, problem = _kill_until_finished(scenario, processes, work, chance)
        problem = problem or ", ".join(differences(expected, scenario.result(work)))
        outcome.tried += killed
        if problem:
            outcome.lost.append(f"{scenario.name}, {killed} kills: {problem}")
        outcome.correct += 0 if problem else killed
        log(f"{scenario.name}: {killed} kills, {problem or 'the same files'}")
    processes.close()
    return outcome


def full_disks(
    seed: int, count: int, folder: Path, choices: Sequence[Scenario], log: Callable[[str], None]
) -> Outcome:
    """Fill the disk at a random moment, then free it: the command fails clearly, then finishes."""
    chance = random.Random(seed)
    outcome = Outcome()
    processes = Processes(_new(folder / "processes"))
    references: dict[str, dict[str, bytes]] = {}
    for number in range(count):
        scenario = chance.choice(list(choices))
        expected = references.get(scenario.name) or _unbroken(scenario, processes, folder)
        references[scenario.name] = expected
        work = _prepared(scenario, folder / "work")
        command = scenario.command(work)
        if number % 2:
            fault = {"full_at": (str(work), chance.randint(1, WRITES))}
        else:
            fault = {"file_limit": int(2 ** chance.uniform(8, 18))}
        full = processes.run(*command, eager=True, **fault)
        problem = ""
        if "Traceback" in full.err or full.code not in (*scenario.codes, 2):
            problem = f"with a full disk: exit code {full.code}: {full.err.strip()[-300:]}"
        elif full.code == 2 and "disk is full" not in full.err and "cannot use" not in full.err:
            problem = f"with a full disk: {full.err.strip()[-300:]}"
        again = processes.run(*command, eager=True)
        if again.code not in scenario.codes:
            problem = problem or f"afterwards: {again.err.strip()[-300:]}"
        problem = problem or ", ".join(differences(expected, scenario.result(work)))
        outcome.add(int(full.code == 2), f"{scenario.name} {fault}: {problem}" if problem else "")
        log(f"{scenario.name} {fault}: {problem or 'survived'}")
    processes.close()
    return outcome


def _kill_until_finished(
    scenario: Scenario, processes: Processes, work: Path, chance: random.Random
) -> tuple[int, str]:
    command = scenario.command(work)
    for killed in range(MOST_KILLS + 1):
        moment = (SIGKILL, str(work), chance.randint(1, WRITES))
        options = {} if killed == MOST_KILLS else {"signal_at": moment}
        result = processes.run(*command, eager=True, **options)
        if result.code != -SIGKILL:
            problem = (
                ""
                if result.code in scenario.codes
                else f"exit code {result.code}: {result.err[-300:]}"
            )
            return killed, problem
    return MOST_KILLS, "it did not finish"


def _unbroken(scenario: Scenario, processes: Processes, folder: Path) -> dict[str, bytes]:
    work = _prepared(scenario, folder / "work")
    result = processes.run(*scenario.command(work))
    assert result.code in scenario.codes, f"{scenario.name}: {result.err}"
    return scenario.result(work)


def _prepared(scenario: Scenario, work: Path) -> Path:
    _new(work)
    for source in scenario.inputs:
        shutil.copytree(source, work / source.name)
    return work


def _new(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def _train(extra: Sequence[str | Path]) -> Callable[[Path], Sequence[str | Path]]:
    def command(folder: Path) -> Sequence[str | Path]:
        out = ("--out", folder / "run", "--cache", folder / "cache")
        return ("train", "shapes", *out, *QUICK, *extra)

    return command


def _on_copy(run: Path, name: str) -> Callable[[Path], Sequence[str | Path]]:
    return lambda folder: (name, folder / run.name)


def _run_files(folder: Path) -> dict[str, bytes]:
    return deterministic_files(folder / "run")


def _report_files(folder: Path) -> dict[str, bytes]:
    return _files(folder, "*/report.html") | _files(folder, "*/figures/*.svg")


def _files(folder: Path, pattern: str) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.glob(pattern)}
