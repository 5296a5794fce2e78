"""Count the test images of all folds that only one of two methods classifies correctly.

    python experiments/recommended/pooled.py results/frozen --runs runs/compared

Reads comparison.toml and results.csv of a comparison and the predictions of its runs, and writes
pooled.csv into the same folder. Only folds that both methods have finished count. Rows with the
mean of the probabilities of the linear probe and of the control, or of the whitened features, are
added if both were run.
"""

import argparse
import csv
import json
import tomllib
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

PROBE, AVERAGE = "linear probe", "average with the linear probe"
WHITENED = "whitened features"

Probabilities = NDArray[np.float64]
Key = tuple[str, str]  # seed and fold
Folds = dict[Key, tuple[NDArray[np.int64], Probabilities]]
"""Labels (n,) and probabilities (n, classes) of the test images, by run, ordered by name."""


def test_images(run: Path) -> tuple[NDArray[np.int64], Probabilities]:
    """Return labels and probabilities of the test images of a run, ordered by name."""
    classes = json.loads((run / "classes.json").read_text(encoding="utf-8"))
    rows = pq.read_table(run / "predictions.parquet").to_pylist()
    test = sorted((row for row in rows if row["split"] == "test"), key=lambda row: row["name"])
    labels = np.array([classes.index(row["label"]) for row in test])
    return labels, np.array([row["probabilities"] for row in test], dtype=np.float64)


def read_folds(results: Path, runs: Path) -> dict[str, dict[str, Folds]]:
    """Return the finished folds by column and method."""
    columns: dict[str, dict[str, Folds]] = {}
    with results.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if row["status"] == "done":
                methods = columns.setdefault(row["column"], {})
                key = row["seed"], row["fold"]
                methods.setdefault(row["method"], {})[key] = test_images(runs / row["run"])
    return columns


def average(first: Folds, second: Folds) -> Folds:
    """Return the means of the probabilities of two methods."""
    return {
        key: (first[key][0], (first[key][1] + second[key][1]) / 2)
        for key in first.keys() & second.keys()
    }


def compare(control: Folds, other: Folds) -> dict[str, int]:
    """Return numbers of images: all, and those that exactly one method classifies correctly."""
    counts = {"images": 0, "correct": 0, "only_control": 0, "only_method": 0}
    for key in control.keys() & other.keys():
        labels = control[key][0]
        ours, theirs = (folds[key][1].argmax(1) == labels for folds in (control, other))
        counts["images"] += len(labels)
        counts["correct"] += int(theirs.sum())
        counts["only_control"] += int((ours & ~theirs).sum())
        counts["only_method"] += int((theirs & ~ours).sum())
    return counts


def main() -> None:
    """Write pooled.csv."""
    parser = argparse.ArgumentParser(description="Count images that one method gets right.")
    parser.add_argument("record", type=Path, help="folder with comparison.toml and results.csv")
    parser.add_argument("--runs", type=Path, required=True)
    arguments = parser.parse_args()
    table = tomllib.loads((arguments.record / "comparison.toml").read_text(encoding="utf-8"))
    rows = []
    for column, methods in read_folds(arguments.record / "results.csv", arguments.runs).items():
        control = methods[table["control"]]
        if PROBE in methods:
            methods[AVERAGE] = average(control, methods[PROBE])
        if PROBE in methods and WHITENED in methods:
            methods[f"{PROBE} + {WHITENED}"] = average(methods[PROBE], methods[WHITENED])
        rows += [
            {"column": column, "method": name} | compare(control, folds)
            for name, folds in methods.items()
        ]
    with (arguments.record / "pooled.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()
