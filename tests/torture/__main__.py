"""Run the categories of the torture test and print how many attempts were survived.

    python -m torture [--only flips,files] [--scale 0.1] [--seed 0] [--markdown FILE]

from the folder `tests`. The exit code is 1 if anything was lost.
"""

import argparse
import logging
import os
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")

import torch

from .files import files, processes
from .flips import flips
from .images import images
from .kills import full_disks, kills, scenarios
from .outcome import Outcome

COUNTS = {
    "flips": 1000,
    "images": 3000,
    "files": 3000,
    "processes": 50,
    "disk": 50,
    "kills": 200,
}
TITLES = {
    "kills": "SIGKILLs of train, report, predict and doctor --fix",
    "disk": "full disks at random writes",
    "flips": "bit flips in checkpoints and cached features",
    "images": "mutated images through doctor, predict and train",
    "files": "damaged models, runs, recipes and tables",
    "processes": "the same as processes with limited memory",
}


def main() -> int:
    """Run the chosen categories; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default=",".join(COUNTS), help="categories, by comma")
    parser.add_argument("--scale", type=float, default=1.0, help="share of the attempts")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--markdown", type=Path, help="file that a table is appended to")
    parser.add_argument("--verbose", action="store_true", help="print every killed command")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    logging.getLogger("scs_supcon").setLevel(logging.ERROR)
    chosen = arguments.only.split(",")
    outcomes = {}
    with tempfile.TemporaryDirectory(prefix="scs-torture-") as temporary:
        folder = Path(temporary)
        os.environ["SCS_CACHE"] = str(folder / "cache")
        category = _categories(folder, verbose=arguments.verbose)
        for name in (name for name in COUNTS if name in chosen):
            count = max(1, round(COUNTS[name] * arguments.scale))
            start = time.monotonic()
            work = folder / name
            work.mkdir()
            outcome = outcomes[name] = category[name](arguments.seed, count, work)
            memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
            seconds = time.monotonic() - start
            print(_line(name, outcome, seconds), f"; {memory:,.0f} MiB at most", sep="", flush=True)
            for problem in outcome.lost[:20]:
                print(f"  lost: {problem}", flush=True)
    if arguments.markdown:
        with arguments.markdown.open("a", encoding="utf-8") as file:
            file.writelines(_row(name, outcome) for name, outcome in outcomes.items())
    return int(any(outcome.lost for outcome in outcomes.values()))


def _categories(folder: Path, *, verbose: bool) -> dict[str, Callable[[int, int, Path], Outcome]]:
    run, data, weights = _prepare(folder)
    image = next(data.rglob("*.png"))
    choices = scenarios(run, data, weights)
    log = _log if verbose else _no_log
    return {
        "flips": flips,
        "images": lambda seed, count, work: images(seed, count, work, run),
        "files": lambda seed, count, work: files(seed, count, work, run, image),
        "processes": lambda seed, count, work: processes(seed, count, work, run, image),
        "disk": lambda seed, count, work: full_disks(seed, count, work, choices, log),
        "kills": lambda seed, count, work: kills(seed, count, work, choices, log),
    }


def _prepare(folder: Path) -> tuple[Path, Path, Path]:
    """Return a finished run, a folder of images, and weights of the tiny encoder."""
    import numpy as np
    from safetensors.torch import save_file

    from scs_supcon.data.builtin import shapes
    from scs_supcon.nn.encoder import build_encoder
    from scs_supcon.training.train import train

    data, weights = folder / "shapes", folder / "tiny.safetensors"
    images = shapes(per_class=6)
    for index in np.flatnonzero(images.labels < 4).tolist():
        label = data / images.classes[images.labels[index]]
        label.mkdir(parents=True, exist_ok=True)
        images.open(index).resize((16, 16)).save(label / f"{index:02d}.png")
    torch.manual_seed(0)
    save_file(build_encoder("tiny", small_stem=False, in_size=16).body.state_dict(), weights)
    settings = ["probe.epochs=2", "probe.views=1"]
    train(data, out=folder / "run", epochs=2, batch_size=8, workers=0, device="cpu", quiet=True,
          settings=settings)  # fmt: skip
    return folder / "run", data, weights


def _log(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _no_log(_line: str) -> None:
    pass


def _line(name: str, outcome: Outcome, seconds: float) -> str:
    return (
        f"{name:<10} tried {outcome.tried:>5}  survived {outcome.survived:>5} "
        f"({outcome.errors} clear errors)  lost {len(outcome.lost)}  in {seconds:.0f} s"
    )


def _row(name: str, outcome: Outcome) -> str:
    return (
        f"| {TITLES[name]} | {outcome.tried:,} | {outcome.survived:,} | {outcome.errors:,} | "
        f"{len(outcome.lost)} |\n"
    )


if __name__ == "__main__":
    sys.exit(main())
