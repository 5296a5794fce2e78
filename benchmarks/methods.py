"""Every method on the handwritten digits, with one budget: docs/benchmarks/methods.md.

    python benchmarks/methods.py                  # one seed
    python benchmarks/methods.py --seeds 3        # resumes if it was stopped
    python benchmarks/methods.py --seeds 0        # only write the page from the finished runs

Two runs at a time, one thread each. Every method gets the same encoder, images, epochs, batches
and stage 2; only the loss and the head settings that it requires differ.
"""

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from scs_supcon.methods import available, method_class
from scs_supcon.training.result import RunResult

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "benchmarks" / "methods.md"
METHODS = [*available(), "scs_supcon@paper"]


def main() -> None:
    """Train the missing runs, then write the page from all finished ones."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--runs", type=Path, default=ROOT / "runs" / "methods")
    options = parser.parse_args()
    jobs = [(method, seed) for seed in range(options.seeds) for method in METHODS]
    start = time.monotonic()
    try:
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(lambda job: train(*job, options.runs), jobs))
    finally:  # also after an error: the finished runs took long enough
        PAGE.write_text(build_page(options.runs))
    print(f"{len(jobs)} runs after {time.monotonic() - start:.0f} s")


def run_path(method: str, seed: int, runs: Path) -> Path:
    """Return the directory of a run."""
    return runs / f"{method.replace('@', '-')}-{seed}"


def train(method: str, seed: int, runs: Path) -> None:
    """Train one method in a new process, unless it is finished."""
    out = run_path(method, seed, runs)
    command = ["train", "digits", "--out", str(out), "--method", method, "--seed", str(seed)]
    command += ["--workers", "0", "--device", "cpu", "--quiet"]
    subprocess.run(
        [sys.executable, "-m", "scs_supcon", *command],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
        check=True,
    )
    print(f"{method:<20} seed {seed}: {RunResult.read(out).accuracy:.2%}", flush=True)


def build_page(runs: Path) -> str:
    """Return the page, best method first."""
    results: dict[str, list[RunResult]] = {}
    for method in METHODS:
        files = sorted(runs.glob(f"{method.replace('@', '-')}-[0-9]*/finished.json"))
        if files:
            results[method] = [RunResult.read(file.parent) for file in files]
    order = sorted(results, key=lambda m: -statistics.fmean(r.accuracy for r in results[m]))
    seeds = min(map(len, results.values()))
    recipe, images = results[order[0]][0].recipe, results[order[0]][0].evaluation.images
    seconds = [result.seconds for of_method in results.values() for result in of_method]
    missing = [method for method in METHODS if method not in results]
    return TEXT.format(
        missing=f"\nNot run yet: {', '.join(missing)}.\n" if missing else "",
        seeds="one seed" if seeds == 1 else f"{seeds} seeds",
        encoder=recipe.encoder.name,
        epochs=recipe.pretrain.epochs,
        batch=recipe.pretrain.batch_size,
        lr=recipe.pretrain.lr,
        optimizer=recipe.pretrain.optimizer,
        images=images,
        error=f"{100 * (0.97 * 0.03 / images / seeds) ** 0.5:.1f}",
        seconds=f"{min(seconds):.0f} to {max(seconds):.0f}",
        table="\n".join(table_row(method, results[method]) for method in order),
    )


def table_row(method: str, results: Sequence[RunResult]) -> str:
    """Return one row of the table."""
    classifiers = {
        "own" if head.own else "stage 2"
        for result in results
        for head in result.summary.probe_heads
        if head.chosen
    }
    adapted = " (adapted)" if method_class(method.partition("@")[0]).adapted else ""
    accuracies = [result.accuracy for result in results]
    spread = f" ± {100 * statistics.stdev(accuracies):.1f}" if len(results) > 1 else ""
    baselines = [result.evaluation.baselines for result in results]
    cells = [
        f"`{method}`{adapted}",
        f"{mean_percent(accuracies)}{spread}",
        ", ".join(sorted(classifiers)),
        mean_percent(measured.own_classifier for measured in baselines),
        mean_percent(measured.probe for measured in baselines),
        mean_percent(measured.knn_on_probe_input for measured in baselines),
        mean_percent(measured.linear_probe_of_encoder for measured in baselines),
    ]
    return f"| {' | '.join(cells)} |"


def mean_percent(values: Iterable[float | None]) -> str:
    """Return the mean in per cent, or an empty string if there are no values."""
    numbers = [value for value in values if value is not None]
    return f"{100 * statistics.fmean(numbers):.1f}" if numbers else ""


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
