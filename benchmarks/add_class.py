"""Measure `add_class` against retraining: accuracy on old, new and all classes.

    python benchmarks/add_class.py digits --held-out 3 --seeds 3
    python benchmarks/add_class.py ./birds --weights encoder.safetensors --held-out 10

Some classes are left out of training and added later from a few of their training images. Rows of
the Markdown table: the model before, with added classes, and trained again on all classes. All are
tested on the same test images. The spread is the standard deviation over the seeds, which choose
the classes, the images and the weights.
"""

import argparse
import csv
import statistics
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from scs_supcon.data.dataset import ImageDataset
from scs_supcon.data.load import load_dataset
from scs_supcon.data.splits import assign_splits
from scs_supcon.inference import Model
from scs_supcon.training.train import train

COUNTS = (1, 5, 20)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", help="images as for `scs train`")
    parser.add_argument("--weights", help="weights of the frozen encoder")
    parser.add_argument("--cache", help="folder of cached features")
    parser.add_argument("--held-out", type=int, default=3, help="classes that are added later")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--set", nargs="*", default=[], help="settings of the recipe")
    arguments = parser.parse_args()
    images, _ = load_dataset(arguments.data, 1, lambda done, total: None)
    options = {"weights": arguments.weights, "cache": arguments.cache, "settings": arguments.set}
    scores: dict[str, list[tuple[float, ...]]] = defaultdict(list)
    with tempfile.TemporaryDirectory(prefix="scs-add-class-") as folder:
        for seed in range(arguments.seeds):
            measured = measure(images, Path(folder) / str(seed), arguments.held_out, seed, options)
            for row, values in measured.items():
                scores[row].append(values)
    counts = f"{len(images.classes)} classes, {arguments.held_out} of them added later"
    print(f"{arguments.data}: {counts}; seeds: {arguments.seeds}\n")
    print("| test accuracy, % | old classes | new classes | all |\n|---|---|---|---|")
    for row, runs in scores.items():
        cells = (spread(values) for values in zip(*runs, strict=True))
        print(f"| {row} | {' | '.join(cells)} |")


def measure(
    images: ImageDataset, folder: Path, held_out: int, seed: int, options: dict[str, Any]
) -> dict[str, tuple[float, ...]]:
    """Return the accuracy on old, new and all classes for each way to get a classifier."""
    rng = np.random.default_rng(seed)
    splits = assign_splits(images, 0.1, 0.2, seed)
    new = sorted(rng.choice(len(images.classes), held_out, replace=False).tolist())
    old_model = fit(images, splits, ~np.isin(images.labels, new), folder / "old", seed, options)
    retrained = fit(images, splits, np.ones(len(images), dtype=bool), folder / "all", seed, options)
    test = np.flatnonzero(splits == "test")
    is_new = np.isin(images.labels[test], new)
    views = [images.open(int(index)) for index in test]
    features = old_model.features(views)
    labels = [images.classes[label] for label in images.labels[test]]
    scores = {"before": accuracies(old_model, features, labels, is_new)}
    order = rng.permutation(len(images))
    for count in COUNTS:
        model = load_model(folder / "old")
        for label in new:
            members = order[(images.labels[order] == label) & (splits[order] == "train")][:count]
            model.add_class(images.classes[label], [images.open(int(k)) for k in members])
        scores[f"added, {count} image{'s' * (count > 1)} each"] = accuracies(
            model, features, labels, is_new
        )
    if not retrained.info.recipe.encoder.frozen:
        features = retrained.features(views)
    scores["trained again on all images"] = accuracies(retrained, features, labels, is_new)
    return scores


def fit(
    images: ImageDataset, splits: Any, used: Any, out: Path, seed: int, options: dict[str, Any]
) -> Model:
    """Train on some images, with their splits, and return the model."""
    out.mkdir(parents=True)
    table = out / "images.csv"
    with table.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["image_path", "label", "split"])
        for index in np.flatnonzero(used & np.isin(splits, ("train", "val", "test"))).tolist():
            path = save_image(images, index, out.parent)
            label = images.classes[images.labels[index]]
            writer.writerow([path, label, splits[index]])
    quick = {"report": False, "quiet": True, "workers": 0}
    return train(table, out=out / "run", seed=seed, **quick, **options).model


def save_image(images: ImageDataset, index: int, folder: Path) -> Path:
    """Return the file of an image; images without files are written to `folder`."""
    if images.paths is not None:
        return images.paths[index].resolve()
    path = folder / "images" / f"{index}.png"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        images.open(index).save(path)
    return path.resolve()


def load_model(folder: Path) -> Model:
    from scs_supcon import load

    return load(folder / "run")


def accuracies(
    model: Model, features: Tensor, labels: list[str], is_new: Any
) -> tuple[float, float, float]:
    """Return the accuracy on the old, new and all classes, in percent."""
    predicted = [model.classes[k] for k in model.decide(features).probabilities.argmax(1).tolist()]
    correct = torch.tensor([a == b for a, b in zip(predicted, labels, strict=True)]).double()
    old, new, all_images = (
        100 * float(part.mean()) for part in (correct[~is_new], correct[is_new], correct)
    )
    return old, new, all_images


def spread(values: tuple[float, ...]) -> str:
    if len(values) == 1:
        return f"{values[0]:.1f}"
    return f"{statistics.mean(values):.1f} ± {statistics.stdev(values):.1f}"


if __name__ == "__main__":
    main()
