"""Is the common field alone the best input of stage 2? (docs/claims.md)

    python experiments/claims/probe_input.py RUN [RUN ...] --out probe_input.csv

A linear classifier in closed form (linear discriminant with shrinkage) is fitted to the
stored embeddings of the training images of each run and tested on its test images: on the common
field, on the style field, and on both. Nothing is trained again.
"""

import argparse
import csv
import tomllib
from pathlib import Path
from statistics import mean, stdev

import torch
from torch import Tensor

from scs_supcon.evaluation.leakage import linear_accuracy
from scs_supcon.io.records import read_parquet

INPUTS = {"common": ("common",), "style": ("style",), "common + style": ("common", "style")}


def read_split(run: Path, split: str, classes: list[str]) -> tuple[dict[str, Tensor], Tensor]:
    """Return the fields and the labels of a split."""
    rows = read_parquet(run / "embeddings.parquet").to_pylist()
    rows = [row for row in rows if row["split"] == split]
    labels = torch.tensor([classes.index(row["label"]) for row in rows])
    fields = {name: torch.tensor([row[name] for row in rows]) for name in ("common", "style")}
    return fields, labels


def accuracies(run: Path) -> dict[str, float]:
    """Return the test accuracy in per cent for each input."""
    table = read_parquet(run / "embeddings.parquet", ["label"]).to_pylist()
    classes = sorted({row["label"] for row in table})
    (train, labels), (test, test_labels) = (
        read_split(run, split, classes) for split in ("train", "test")
    )
    result = {}
    for name, parts in INPUTS.items():
        rows, test_rows = (torch.cat([side[p] for p in parts], 1) for side in (train, test))
        result[name] = 100 * linear_accuracy(rows, labels, test_rows, test_labels, len(classes))
    return result


def main() -> None:
    """Write the accuracies of every run, and print their means by method."""
    parser = argparse.ArgumentParser(description="Compare inputs of a linear classifier.")
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    rows = []
    for run in arguments.runs:
        recipe = tomllib.loads((run / "recipe.toml").read_text(encoding="utf-8"))
        name, preset = recipe["method"]["name"], recipe["method"].get("preset")
        method = f"{name}@{preset}" if preset else name
        rows.append({"method": method, "seed": recipe["seed"], "run": run.name} | accuracies(run))
    rows.sort(key=lambda row: (row["method"], row["seed"]))
    with arguments.out.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    for method in dict.fromkeys(row["method"] for row in rows):
        chosen = [row for row in rows if row["method"] == method]
        means = []
        for name in INPUTS:
            values = [row[name] for row in chosen]
            spread = f" ± {stdev(values):.1f}" if len(values) > 1 else ""
            means.append(f"{name} {mean(values):.1f}{spread}")
        print(f"{method}: {', '.join(means)} ({len(chosen)} runs)")


if __name__ == "__main__":
    main()
