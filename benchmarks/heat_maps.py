"""Which heat map finds the regions that matter? Hide them and measure how much the score falls.

For each test image and each kind of heat map, the fifth of the cells with the largest values is
replaced by the mean colour, and the log-odds of the predicted class are measured again. The same is
done with random regions of the same size and shape: the region, shifted by a random number of rows
and columns (with wrap-around), and mirrored at random. The difference is paired by image.

    python benchmarks/heat_maps.py RUN --images 200

prints a table in Markdown: the mean fall of the score by hiding the region and by hiding random
ones, the difference with its 95% interval, the share of images in which hiding the region lowers
the score more than the mean of the random ones, and the time per map.
"""

import argparse
import csv
import time
from pathlib import Path

import numpy as np
import torch

from scs_supcon.data.load import load_images
from scs_supcon.data.transforms import eval_view
from scs_supcon.inference import load
from scs_supcon.inference.heat_map import KINDS, heat_map, log_odds, resize_map
from scs_supcon.nn.encode import encode

SHARE = 0.2  # of the cells that are hidden
CELLS = 14  # rows and columns of cells
RANDOM = 3  # random regions per image; with the region, one pass of four images


def top_region(values, size):
    """Return the mask (size, size) of the cells with the largest values."""
    cells = resize_map(values, CELLS)
    count = round(SHARE * CELLS * CELLS)
    # Equal values in a random but fixed order, so that ties do not favour the top left.
    ties = np.random.default_rng(0).random(cells.size)
    order = np.lexsort((ties, -cells.ravel()))
    mask = np.zeros(cells.size, bool)
    mask[order[:count]] = True
    return enlarge(mask.reshape(CELLS, CELLS), size)


def enlarge(mask, size):
    index = np.arange(size) * CELLS // size
    return mask[np.ix_(index, index)]


def random_copy(mask, rng):
    """Return the mask shifted with wrap-around, and mirrored at random."""
    shifted = np.roll(mask, tuple(rng.integers(0, mask.shape[0], 2)), (0, 1))
    return shifted[:, ::-1] if rng.random() < 0.5 else shifted


def hidden(view, mask):
    covered = view.clone()
    covered[:, torch.from_numpy(np.ascontiguousarray(mask))] = 0.0  # the mean colour
    return covered


def test_images(run, source, count):
    """Return evenly spaced test images of a run."""
    with (run / "splits.csv").open(newline="", encoding="utf-8") as file:
        names = {row["name"] for row in csv.DictReader(file) if row["split"] == "test"}
    images = load_images(source)
    indices = [index for index, name in enumerate(images.names) if name in names]
    chosen = np.linspace(0, len(indices) - 1, min(count, len(indices))).round().astype(int)
    return [images.open(indices[position]) for position in chosen]


def measure(model, views, kinds):
    """Return for each kind: falls by the region, mean falls by random regions, seconds."""
    results = {kind: ([], [], []) for kind in kinds}
    rng = np.random.default_rng(0)
    for number, view in enumerate(views):
        features = torch.from_numpy(encode(model.encoder, view[None]))
        label = int(model.decide(features).probabilities.argmax())
        with torch.no_grad():
            before = float(log_odds(model, features, label))
        for kind in kinds:
            start = time.perf_counter()
            values = heat_map(model, view, label, kind)
            seconds = time.perf_counter() - start
            if values is None:
                continue
            mask = top_region(values, view.shape[-1])
            masks = [mask, *(random_copy(mask, rng) for _ in range(RANDOM))]
            covered = torch.stack([hidden(view, region) for region in masks])
            rows = torch.from_numpy(encode(model.encoder, covered))
            with torch.no_grad():
                scores = log_odds(model, rows, label).numpy()
            falls = before - scores
            for column, value in zip(
                results[kind], (falls[0], falls[1:].mean(), seconds), strict=True
            ):
                column.append(float(value))
        if (number + 1) % 50 == 0:
            print(f"{number + 1} of {len(views)}", flush=True)
    return results


def table(results):
    columns = ("heat map", "images", "fall by the region", "by random regions")
    columns += ("difference (95% interval)", "larger in", "time")
    lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    for kind, columns in results.items():
        region, others, seconds = map(np.array, columns)
        if not len(region):
            lines.append(f"| {kind} | 0 | – | – | – | – | – |")
            continue
        difference = region - others
        half = 1.96 * difference.std(ddof=1) / np.sqrt(len(difference))
        lines.append(
            f"| {kind} | {len(region)} | {region.mean():.2f} | {others.mean():.2f} "
            f"| {difference.mean():.2f} ± {half:.2f} | {(difference > 0).mean():.0%} "
            f"| {1000 * np.median(seconds):.0f} ms |"
        )
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("--images", type=int, default=200)
    parser.add_argument("--kinds", nargs="*", default=KINDS)
    options = parser.parse_args()
    model = load(options.run)
    opened = test_images(options.run, model.info.recipe.data.source, options.images)
    view = eval_view(model.info.recipe.data)
    print(f"{len(opened)} test images, {model.info.recipe.encoder.name}, {options.run.name}")
    print(table(measure(model, [view(image) for image in opened], options.kinds)))


if __name__ == "__main__":
    main()
