"""Run the categories of the torture test and print how many attempts were survived.

    python -m torture [--only flips,files] [--scale 0.1] [--seed 0] [--jobs 2] [--minutes 60]

from the folder `tests`. The exit code is 1 if anything was lost or not tried.
"""

import argparse
import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")

import psutil
import torch

import jumping_clock
from command_processes import Processes
from jumping_clock import JumpingClock

from .crash_points import PointOutcome, crash_points, server_points
from .crash_points import table as points_table
from .disks import full_disks
from .files import files, processes
from .flips import flips
from .images import images
from .kills import kills
from .outcome import Outcome, total
from .scenarios import Inputs, Scenario, point_scenarios, scenarios
from .servers import server_kills
from .workers import Part, Progress, run_parts

MEMORY = Path("/dev/shm")  # where files are written at once, without waiting for a disk
MEMORY_BYTES = 2 << 30
POINTS = {False: 40, True: 400}  # kills of a command before its operations: as a rule, and in full


@dataclass(frozen=True)
class Attempts:
    """What a part of a category is made with.

    Attributes:
        seed: of its random numbers.
        count: number of attempts.
        folder: empty, for its files.
        given: inputs of the commands.
        choices: the commands that it kills.
        match: part of the names of commands, of those that are killed before their operations.
        share: (number, count) of the part.
        points: the most kills of one command before its operations.
    """

    seed: int
    count: int
    folder: Path
    given: Inputs
    choices: list[Scenario]
    match: str = ""
    share: tuple[int, int] = (0, 1)
    points: int = POINTS[False]


@dataclass(frozen=True)
class Category:
    """A kind of attempt.

    Attributes:
        title: for the table.
        count: number of attempts.
        parts: number of parts, which are computed side by side.
        seconds: processor time of an attempt, about; for the time that is left.
        run: makes the attempts of a part.
        is_planned: the count is about right only; the attempts say how many were wanted.
    """

    title: str
    count: int
    parts: int
    seconds: float
    run: Callable[[Attempts], Iterator[Outcome]]
    is_planned: bool = False


def _log(line: str) -> None:
    if os.environ.get("TORTURE_VERBOSE"):
        print(line, file=sys.stderr, flush=True)


def _commands(*, clock: bool = False) -> Processes:
    """Start a process that forks the commands of a part; it ends with the part."""
    folder = Path(tempfile.mkdtemp(dir=os.environ["SCS_CACHE"]))
    return Processes(folder, commands=True, clock=JumpingClock(folder / "clock") if clock else None)


def _kills(made: Attempts, **options: bool) -> Iterator[Outcome]:
    commands = _commands()
    return kills(made.seed, made.count, made.folder, made.choices, commands, _log, **options)


def _full_disks(made: Attempts) -> Iterator[Outcome]:
    commands = _commands()
    return full_disks(made.seed, made.count, made.folder, made.choices, commands, _log)


def _server_kills(made: Attempts) -> Iterator[Outcome]:
    commands = _commands()
    return server_kills(made.seed, made.count, made.folder, made.given.run, commands, _log)


def _jumps(made: Attempts) -> Iterator[Outcome]:
    if jumping_clock.library() is None:
        yield Outcome(1, problems=("libfaketime is missing: apt-get install faketime",))
        return
    commands, servers = _commands(clock=True), made.count // 4
    others = made.count - servers
    yield from kills(made.seed, others, made.folder, made.choices, commands, _log)
    yield from server_kills(made.seed, servers, made.folder, made.given.run, commands, _log)


def _points(made: Attempts) -> Iterator[Outcome]:
    commands = _commands()
    chosen = [one for one in point_scenarios(made.given) if made.match in one.name]
    if made.match in "serve":
        yield from server_points(
            made.points, made.folder, made.given.run, commands, _commands(), _log, made.share
        )
    yield from crash_points(made.points, made.folder, chosen, commands, _log, made.share)


def _durable(made: Attempts) -> Iterator[Outcome]:
    from .durable import actions, durable_points

    chosen = [action for action in actions() if made.match in action.name]
    return durable_points(made.folder, chosen)


def _images(made: Attempts) -> Iterator[Outcome]:
    return images(made.seed, made.count, made.folder, made.given.run)


def _files(read: Callable[..., Iterator[Outcome]], made: Attempts) -> Iterator[Outcome]:
    image = next(made.given.images.rglob("*.png"))
    return read(made.seed, made.count, made.folder, made.given.run, image)


CATEGORIES = {
    "kills": Category(
        "SIGKILLs of `train` with every method, `compare`, `tune`, `reproduce`, `report`, "
        "`export`, `predict -o` and `doctor --fix`",
        *(200, 2, 2.0, _kills),
    ),
    "points": Category(
        "SIGKILLs before each file operation in turn; see the table of commands",
        *(700, 2, 4.0, _points),
        is_planned=True,
    ),
    "durable": Category(
        "journals, files and folders: SIGKILLs before every file operation, and power failures",
        *(500, 1, 0.02, _durable),
        is_planned=True,
    ),
    "new": Category(
        "SIGKILLs of new interpreters at a random time",
        *(20, 2, 10.0, partial(_kills, new=True)),
    ),
    "stops": Category(
        "SIGTERM or Ctrl-C, once or twice", *(40, 2, 2.0, partial(_kills, stops=True))
    ),
    "clock": Category(
        "SIGKILLs while the clock jumps by years, of the same commands and of `serve`",
        *(40, 2, 2.0, _jumps),
    ),
    "serve": Category(
        "SIGKILLs of `serve` while labels are corrected", *(40, 2, 2.0, _server_kills)
    ),
    "disk": Category("disks that are full at a random write", *(50, 2, 6.0, _full_disks)),
    "flips": Category(
        "bit flips in checkpoints and cached features",
        *(1000, 1, 0.01, lambda made: flips(made.seed, made.count, made.folder)),
    ),
    "images": Category(
        "mutated and intact images through `doctor`, `predict` and `train`",
        *(3000, 2, 0.03, _images),
    ),
    "files": Category(
        "damaged models, runs, recipes and tables, in one process",
        *(3000, 2, 0.1, partial(_files, files)),
    ),
    "processes": Category(
        "the same as new processes with limited memory",
        *(50, 2, 8.0, partial(_files, processes)),
    ),
}


def main() -> int:
    """Run the chosen categories; return the exit code."""
    chosen = _arguments()
    if chosen.verbose:
        os.environ["TORTURE_VERBOSE"] = "1"
    torch.set_num_threads(1)
    logging.getLogger("scs_supcon").setLevel(logging.ERROR)
    start = time.monotonic()
    folder = _folder()
    os.environ["SCS_CACHE"] = str(folder / "cache")
    (folder / "cache").mkdir()
    given = _prepare(folder)
    choices = [scenario for scenario in scenarios(given) if chosen.match in scenario.name]
    parts = _parts(chosen, len(choices))

    def run(part: Part) -> Iterator[Outcome]:
        work = folder / f"{part.category}-{part.number}"
        work.mkdir()
        seed = chosen.seed * 1000 + part.number
        mine = choices[part.number :: part.parts]
        points = POINTS[True] if chosen.full else max(2, round(POINTS[False] * chosen.scale))
        share = (part.number, part.parts)
        attempts = Attempts(seed, part.count, work, given, mine, chosen.match, share, points)
        return CATEGORIES[part.category].run(attempts)

    signal.signal(signal.SIGTERM, signal.default_int_handler)  # what was counted is printed
    results = _Results(parts, chosen.jobs, start)
    deadline = start + 60 * chosen.minutes
    try:
        for part, progress in run_parts(parts, chosen.jobs, run, _processor_time, deadline):
            results.add(part, progress)
    except KeyboardInterrupt:
        print("stopped")
    is_good = results.show()
    if is_good:
        shutil.rmtree(folder)
    else:
        print(f"files: {folder}")
    return int(not is_good)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default=",".join(CATEGORIES), help="categories, by comma")
    parser.add_argument(
        "--scale", default="1", help="share of the attempts, or full: also 400 points per command"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2, help="parts that are computed at a time")
    parser.add_argument("--minutes", type=float, default=60, help="when to stop")
    parser.add_argument("--part", type=int, help="only this part of each category: 0, 1, …")
    parser.add_argument("--match", default="", help="kill only commands with this in their name")
    parser.add_argument("--verbose", action="store_true", help="print every command")
    chosen = parser.parse_args()
    chosen.full = chosen.scale == "full"
    chosen.scale = 1.0 if chosen.full else float(chosen.scale)
    return chosen


def _folder() -> Path:
    in_memory = MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > MEMORY_BYTES
    return Path(tempfile.mkdtemp(prefix="scs-torture-", dir=MEMORY if in_memory else None))


def _parts(chosen: argparse.Namespace, commands: int) -> list[Part]:
    """Return the parts of the chosen categories, those that take longest first."""
    parts = []
    for name in chosen.only.split(","):
        count = max(1, round(CATEGORIES[name].count * chosen.scale))
        number_of_parts = min(CATEGORIES[name].parts, count)
        if not CATEGORIES[name].is_planned:  # the others have commands of their own
            number_of_parts = min(number_of_parts, commands)
        for number in range(number_of_parts):
            share = count // number_of_parts + (number < count % number_of_parts)
            if chosen.part in (None, number):
                parts.append(Part(name, number, number_of_parts, share))
    return sorted(parts, key=_expected_seconds, reverse=True)


def _expected_seconds(part: Part) -> float:
    return part.count * CATEGORIES[part.category].seconds


def _processor_time() -> float:
    """Return the seconds that this process, its children and the forked commands have used."""
    seconds = 0.0
    for process in (psutil.Process(), *psutil.Process().children()):
        with suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            seconds += times.user + times.system + times.children_user + times.children_system
    return seconds


class _Results:
    """Collects what the parts did, and prints progress and tables."""

    def __init__(self, parts: list[Part], jobs: int, start: float) -> None:
        self._jobs, self._start, self._begin = jobs, start, time.monotonic()
        self._left = {part: part.count for part in parts}
        self._parts: dict[Part, list[Progress]] = {part: [] for part in parts}

    def add(self, part: Part, progress: Progress) -> None:
        self._parts[part].append(progress)
        self._left[part] = max(0, self._left[part] - progress.outcome.tried)
        for problem in progress.outcome.problems:
            print(f"  lost: {problem[:600]}", flush=True)
        if isinstance(progress.outcome, PointOutcome) and progress.outcome.left_behind:
            left = ", ".join(progress.outcome.left_behind)
            print(f"  left behind by {progress.outcome.command}: {left[:600]}", flush=True)
        if progress.is_last:
            self._left[part] = 0
            outcome, seconds, cpu = _sum(self._parts[part])
            print(
                f"[{self._clock()}, {self._minutes_left():.0f} min left] {part.category} "
                f"{part.number + 1}/{part.parts}: tried {outcome.tried}, survived "
                f"{outcome.survived}, lost {outcome.lost}; {seconds:.0f} s, {cpu:.0f} s of CPU",
                flush=True,
            )

    def show(self) -> bool:
        """Print a table in Markdown; return whether everything was tried and nothing lost."""
        is_good = True
        print("\n| attempts | tried | survived | of these clear errors | lost | s | CPU, s |")
        print("|---|---:|---:|---:|---:|---:|---:|")
        names = dict.fromkeys(part.category for part in self._parts)
        all_cpu = 0.0
        for name in (name for name in CATEGORIES if name in names):
            parts = [part for part in self._parts if part.category == name]
            outcome, seconds, cpu = _sum([p for part in parts for p in self._parts[part]])
            wanted = sum(part.count for part in parts)
            is_short = outcome.tried < wanted and not CATEGORIES[name].is_planned
            missing = f" ({wanted} wanted)" if is_short else ""
            is_good = is_good and not outcome.lost and not missing
            all_cpu += cpu
            print(
                f"| {CATEGORIES[name].title} | {outcome.tried:,}{missing} | {outcome.survived:,} "
                f"| {outcome.errors:,} | {outcome.lost:,} | {seconds:,.0f} | {cpu:,.0f} |"
            )
        if "points" in names or "durable" in names:
            lines, is_complete = points_table(
                progress.outcome
                for part in self._parts
                for progress in self._parts[part]
                if isinstance(progress.outcome, PointOutcome)
            )
            print("", *lines, sep="\n")
            is_good = is_good and is_complete
        print(f"\n{self._clock()} with {self._jobs} workers, {all_cpu:,.0f} s of CPU")
        return is_good

    def _clock(self) -> str:
        minutes, seconds = divmod(int(time.monotonic() - self._start), 60)
        return f"{minutes}:{seconds:02d}"

    def _minutes_left(self) -> float:
        expected = {part: CATEGORIES[part.category].seconds for part in self._parts}
        left = sum(count * expected[part] for part, count in self._left.items())
        done = sum(part.count * expected[part] for part in self._parts) - left
        return left / max(done, 1) * (time.monotonic() - self._begin) / 60


def _sum(progress: list[Progress]) -> tuple[Outcome, float, float]:
    """Return the outcome, the seconds and the processor time."""
    outcome = total(entry.outcome for entry in progress)
    return outcome, sum(e.seconds for e in progress), sum(e.cpu for e in progress)


def _prepare(folder: Path) -> Inputs:
    """Create a finished run, a folder of images, and weights of the tiny encoder."""
    import numpy as np
    from safetensors.torch import save_file

    from scs_supcon.data.builtin import shapes
    from scs_supcon.nn.encoder import build_encoder

    data, weights, run = folder / "shapes", folder / "tiny.safetensors", folder / "run"
    images = shapes(per_class=6)
    for index in np.flatnonzero(images.labels < 4).tolist():
        label = data / images.classes[images.labels[index]]
        label.mkdir(parents=True, exist_ok=True)
        images.open(index).resize((16, 16)).save(label / f"{index:02d}.png")
    torch.manual_seed(0)
    save_file(build_encoder("tiny", small_stem=False, in_size=16).body.state_dict(), weights)
    # In another process: the parts are forked from this one, which must not have used threads.
    quick = ("--epochs", "2", "--batch-size", "8", "--workers", "0", "--device", "cpu", "--quiet")
    line = ["train", str(data), "--out", str(run), *quick, "--set", "probe.epochs=2"]
    subprocess.run(
        [sys.executable, "-m", "scs_supcon", *line, "--set", "probe.views=1"],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    return Inputs(run, data, weights)


if __name__ == "__main__":
    sys.exit(main())
