"""Every method on the handwritten digits, by one budget: docs/benchmarks/methods.md.

    python benchmarks/methods.py                  # one seed
    python benchmarks/methods.py --seeds 3        # goes on where it was stopped
    python benchmarks/methods.py --seeds 0        # the page again, of the runs that are finished

Two runs at a time, one thread each. Every method gets the same encoder, images, epochs, batches
and stage 2; what differs is the loss, and the parts of the recipe that it suggests for its head.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from scs_supcon.methods import available, method_class

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "benchmarks" / "methods.md"
METHODS = [*available(), "scs_supcon@paper"]
OWN, STAGE_2 = "the method's own classifier", "stage 2 on the readout"


def main() -> None:
    """Train what is missing, then write the page of all that is finished."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--runs", type=Path, default=ROOT / "runs" / "methods")
    asked = parser.parse_args()
    wanted = [(method, seed) for seed in range(asked.seeds) for method in METHODS]
    start = time.monotonic()
    try:
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(lambda one: run(*one, asked.runs), wanted))
    finally:  # an hour's work is worth a page, whatever ended it
        PAGE.write_text(page(asked.runs))
    print(f"{len(wanted)} runs after {time.monotonic() - start:.0f} s")


def folder(method: str, seed: int, runs: Path) -> Path:
    """Where a run is kept."""
    return runs / f"{method.replace('@', '-')}-{seed}"


def run(method: str, seed: int, runs: Path) -> None:
    """Train one method in a process of its own, or find it finished."""
    out = folder(method, seed, runs)
    line = ["train", "digits", "--out", str(out), "--method", method, "--seed", str(seed)]
    subprocess.run(
        [sys.executable, "-m", "scs_supcon", *line, "--workers", "0", "--device", "cpu", "--quiet"],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
        check=True,
    )
    print(f"{method:<20} seed {seed}: {read(out)['accuracy']:.2%}", flush=True)


def read(out: Path) -> dict[str, Any]:
    """What a finished run says of itself."""
    summary: dict[str, Any] = json.loads((out / "finished.json").read_text())
    return summary


def page(runs: Path) -> str:
    """The page, best method first."""
    rows: dict[str, list[dict[str, Any]]] = {}
    for method in METHODS:
        files = sorted(runs.glob(f"{method.replace('@', '-')}-[0-9]*/finished.json"))
        if files:
            rows[method] = [read(file.parent) for file in files]
    order = sorted(rows, key=lambda m: -mean(one["accuracy"] for one in rows[m]))
    seeds = min(map(len, rows.values()))
    recipe = tomllib.loads((folder(order[0], 0, runs) / "recipe.toml").read_text())
    how, one = recipe["pretrain"], rows[order[0]][0]
    times = [summary["seconds"] for found in rows.values() for summary in found]
    missing = [method for method in METHODS if method not in rows]
    numbers = {
        "missing": f"\nNot run yet: {', '.join(missing)}.\n" if missing else "",
        "seeds": "one seed" if seeds == 1 else f"{seeds} seeds",
        "encoder": recipe["encoder"]["name"],
        "epochs": how["epochs"],
        "batch": how["batch_size"],
        "lr": how["lr"],
        "optimizer": how["optimizer"],
        "images": one["images"],
        "error": f"{100 * (0.97 * 0.03 / one['images'] / seeds) ** 0.5:.1f}",
        "seconds": f"{min(times):.0f} to {max(times):.0f}",
    }
    lines = [describe(method, rows[method]) for method in order]
    return TEXT.format(**numbers, table="\n".join(lines))


def describe(method: str, runs: list[dict[str, Any]]) -> str:
    """One row of the table."""
    used = {
        "own" if head["own"] else "stage 2" for r in runs for head in r["bank"] if head["chosen"]
    }
    adapted = " (adapted)" if method_class(method.partition("@")[0]).adapted else ""
    accuracies = [one["accuracy"] for one in runs]
    spread = f" ± {100 * statistics.stdev(accuracies):.1f}" if len(runs) > 1 else ""
    cells = [
        f"`{method}`{adapted}",
        f"{100 * mean(accuracies):.1f}{spread}",
        ", ".join(sorted(used)),
        *(percent(one["baselines"].get(name) for one in runs) for name in (OWN, STAGE_2)),
        *(percent(one["baselines"][n] for one in runs) for n in ("kNN on the readout",)),
        percent(one["baselines"]["linear probe of the encoder"] for one in runs),
    ]
    return f"| {' | '.join(cells)} |"


def percent(values: Any) -> str:
    """Their mean in percent; nothing where there is none."""
    there = [value for value in values if value is not None]
    return f"{100 * mean(there):.1f}" if there else ""


def mean(values: Any) -> float:
    """The mean."""
    return statistics.fmean(values)


TEXT = """# Every method on the digits, with one budget

This table was written by `benchmarks/methods.py`: {seeds}, test accuracy in %, chance is 10.
Encoder `{encoder}` from random weights, {epochs} epochs with batch size {batch}, {optimizer} at a
learning rate of {lr}, then stage 2. This is the default recipe of `scs train digits`, the same for
every method except for the head that a method requires. Each seed also has its own split. One
standard error of a row is about {error} points ({images} test images per seed), so rows closer than
that are equal.

"predicts with" says which classifier the model uses: the method's own classifier if it has one,
unless it is behind stage 2 on the validation split by more than chance. "kNN" is the vote of the 10
nearest training images in the probe input, "probe" a linear classifier on the encoder's features.

| method | accuracy | predicts with | own classifier | stage 2 | kNN | probe |
|---|---|---|---|---|---|---|
{table}
{missing}
Why some methods are behind (numbers of single runs, seed 0):

- `byol` and `simclr` use no labels in stage 1, and this is a small number of steps for them.
- `paco`'s own classifier: its logits share a softmax with more than a thousand rows, each of which
  contributes up to exp(1/τ) = 148. Until the logit of a class has grown to the logarithm of their
  sum, about 12, the classes hardly compete. More steps help: after 80 epochs its own classifier
  reaches 96.7, stage 2 99.2.
- `circle` is designed for large datasets: γ = 256 is too sharp for so few steps from random
  weights. With `method.options.gamma=32` it reaches 96.9, its own class vectors 76.0. Gradient
  clipping is not the cause: without it 70.8.
- `baseline`'s own classifier was trained for no more steps than the encoder; stage 2 has time to
  converge.
- `scs_supcon@paper` starts at t = 0.1, where all pairs have nearly the same cost, and spends most
  of these steps on that plateau ([paper choices](../paper_choices.md), §3).
- `cstcn` has 300 prototypes for ten classes: its clusters separate same-class images that SupCon
  attracts. With `method.options.weight=0.1` it reaches 98.1, with 30 prototypes 97.5; twice the
  epochs change nothing.
- `selfcon` has one view of each image, the other methods have two. Twice the epochs (92.5), a third
  of the learning rate (93.0) and τ = 0.5 (94.2) hardly change it. The second exit, after two of
  four layers, may be too weak; this was not tested.
- `oscs_supcon` differs little from `scs_supcon`: its additional term is λ = 0.01 times a squared
  cosine, which is near 1/192 for unrelated fields. `method.options.weight` is λ.

A run took {seconds} s (two at a time, one thread each, on a machine that was not idle).
"""

if __name__ == "__main__":
    main()
