"""Run the categories of the torture test and print how many attempts were survived.

    python -m torture [--only flips,files] [--scale 0.1] [--seed 0] [--jobs 2] [--markdown FILE]

from the folder `tests`. The exit code is 1 if anything was lost.
"""

import argparse
import logging
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache
from multiprocessing import get_context
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")

import torch

from command_processes import Processes

from .files import files, processes
from .flips import flips
from .images import images
from .kills import full_disks, kills
from .outcome import Outcome
from .scenarios import Inputs, Scenario, scenarios
from .servers import server_kills


@dataclass(frozen=True)
class Category:
    """A kind of attempt.

    Attributes:
        title: for the table.
        count: number of attempts.
        parts: number of parts, which are computed side by side.
        run: makes the attempts of a part.
    """

    title: str
    count: int
    parts: int
    run: "Attempts"


def _log(line: str) -> None:
    if os.environ.get("TORTURE_VERBOSE"):
        print(line, file=sys.stderr, flush=True)


def _matching(given: Inputs) -> list[Scenario]:
    text = os.environ.get("TORTURE_MATCH", "")
    return [scenario for scenario in scenarios(given) if text in scenario.name]


def _image(given: Inputs) -> Path:
    return next(given.images.rglob("*.png"))


@cache
def _commands(_process: int) -> Processes:
    """Start a process that forks the commands of this worker; it ends with the worker."""
    folder = Path(tempfile.mkdtemp(dir=os.environ["SCS_CACHE"]))
    return Processes(folder, commands=True)


Attempts = Callable[[int, int, Path, Inputs, list[Scenario]], Outcome]
"""(seed, number of attempts, empty folder, inputs, commands) -> outcome."""


def _commanded(function: Callable[..., Outcome], **options: bool) -> Attempts:
    def run(seed: int, n: int, work: Path, given: Inputs, choices: list[Scenario]) -> Outcome:
        return function(seed, n, work, choices, _commands(os.getpid()), _log, **options)

    return run


def _server_kills(
    seed: int, count: int, work: Path, given: Inputs, choices: list[Scenario]
) -> Outcome:
    return server_kills(seed, count, work, given.run, _commands(os.getpid()), _log)


CATEGORIES = {
    "kills": Category(
        "SIGKILLs of `train` with every method, `compare`, `tune`, `reproduce`, `report`, "
        "`export`, `predict -o` and `doctor --fix`",
        *(200, 4, _commanded(kills)),
    ),
    "new": Category(
        "SIGKILLs of new interpreters at a random time", 20, 2, _commanded(kills, new=True)
    ),
    "serve": Category("SIGKILLs of `serve` while labels are corrected", 40, 2, _server_kills),
    "disk": Category("disks that are full at a random write", 50, 4, _commanded(full_disks)),
    "flips": Category(
        "bit flips in checkpoints and cached features",
        *(1000, 1),
        lambda seed, n, work, given, choices: flips(seed, n, work),
    ),
    "images": Category(
        "mutated images through `doctor`, `predict` and `train`",
        *(3000, 2),
        lambda seed, n, work, given, choices: images(seed, n, work, given.run),
    ),
    "files": Category(
        "damaged models, runs, recipes and tables, in one process",
        *(3000, 4),
        lambda seed, n, work, given, choices: files(seed, n, work, given.run, _image(given)),
    ),
    "processes": Category(
        "the same as new processes with limited memory",
        *(50, 2),
        lambda seed, n, work, given, choices: processes(seed, n, work, given.run, _image(given)),
    ),
}


@dataclass(frozen=True)
class PartResult:
    """What a part of a category counted, and what it needed."""

    outcome: Outcome
    seconds: float
    mebibytes: float


def main() -> int:
    """Run the chosen categories; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default=",".join(CATEGORIES), help="categories, by comma")
    parser.add_argument("--scale", type=float, default=1.0, help="share of the attempts")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2, help="parts that are computed at a time")
    parser.add_argument("--markdown", type=Path, help="file that a table is appended to")
    parser.add_argument("--part", type=int, help="only this part of each category: 0, 1, …")
    parser.add_argument("--match", default="", help="kill only commands with this in their name")
    parser.add_argument("--verbose", action="store_true", help="print every command")
    arguments = parser.parse_args()
    if arguments.verbose:
        os.environ["TORTURE_VERBOSE"] = "1"
    os.environ["TORTURE_MATCH"] = arguments.match
    torch.set_num_threads(1)
    logging.getLogger("scs_supcon").setLevel(logging.ERROR)
    start = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="scs-torture-"))
    os.environ["SCS_CACHE"] = str(folder / "cache")
    (folder / "cache").mkdir()
    given = _prepare(folder)
    outcomes = {}
    with ProcessPoolExecutor(arguments.jobs, get_context("fork")) as pool:
        names = [name for name in CATEGORIES if name in arguments.only.split(",")]
        waiting = {name: list(_start(pool, name, arguments, folder, given)) for name in names}
        for name, parts in waiting.items():
            if not parts:
                continue
            outcomes[name] = _report(name, [part.result() for part in parts])
    lost = any(outcome.lost for outcome in outcomes.values())
    if not lost:
        shutil.rmtree(folder)
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    cpu = sum(usage.ru_utime + usage.ru_stime for usage in used)
    print(f"{time.monotonic() - start:.0f} s, {cpu:.0f} s of CPU", f"files: {folder}" * lost)
    if arguments.markdown:
        with arguments.markdown.open("a", encoding="utf-8") as file:
            file.writelines(_row(name, outcome) for name, outcome in outcomes.items())
    return int(lost)


def _start(
    pool: ProcessPoolExecutor, name: str, chosen: argparse.Namespace, folder: Path, given: Inputs
) -> "Iterator[Future[PartResult]]":
    """Start the parts of a category."""
    category = CATEGORIES[name]
    count = max(1, round(category.count * chosen.scale))
    choices = _matching(given)
    parts = min(category.parts, len(choices), count)
    for part in [number for number in range(parts) if chosen.part in (None, number)]:
        share = count // parts + (part < count % parts)
        work = folder / f"{name}-{part}"
        seed = chosen.seed * 1000 + part
        yield pool.submit(_run_part, name, seed, share, work, given, part, parts)


def _run_part(
    name: str, seed: int, count: int, work: Path, given: Inputs, part: int, parts: int
) -> PartResult:
    start = time.monotonic()
    work.mkdir()
    outcome = CATEGORIES[name].run(seed, count, work, given, _matching(given)[part::parts])
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
    return PartResult(outcome, time.monotonic() - start, memory)


def _report(name: str, parts: list[PartResult]) -> Outcome:
    """Print what was counted in all parts of a category, and return it."""
    total = Outcome()
    for part in parts:
        total.tried += part.outcome.tried
        total.errors += part.outcome.errors
        total.correct += part.outcome.correct
        total.lost += part.outcome.lost
    seconds, memory = sum(part.seconds for part in parts), max(part.mebibytes for part in parts)
    print(
        f"{name:<10} tried {total.tried:>5}  survived {total.survived:>5} "
        f"({total.errors} clear errors)  lost {len(total.lost)}  in {seconds:.0f} s; "
        f"{memory:,.0f} MiB at most",
        flush=True,
    )
    for problem in total.lost[:20]:
        print(f"  lost: {problem}", flush=True)
    return total


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
        [sys.executable, "-m", "scs_supcon", *line, "--set", "probe.views=1"], check=True
    )
    return Inputs(run, data, weights)


def _row(name: str, outcome: Outcome) -> str:
    return (
        f"| {CATEGORIES[name].title} | {outcome.tried:,} | {outcome.survived:,} | "
        f"{outcome.errors:,} | {len(outcome.lost)} |\n"
    )


if __name__ == "__main__":
    sys.exit(main())
