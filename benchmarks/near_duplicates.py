"""Measure precision and recall of the near-duplicate search on copies of real images.

    python benchmarks/near_duplicates.py FOLDER --images 500

FOLDER holds images in any structure. For each kind of change, copies of half of the sampled images
are written, and the search runs on the images and the copies, decoded as `scs doctor` does. Recall
is the share of copies that are paired with their original. Precision is the share of correct pairs
among all pairs; pairs of two originals are counted separately, because they may be real duplicates.
The second table repeats the search with other thresholds, over all changes that it should find.
"""

import argparse
import random
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageEnhance

from scs_supcon.data import near_duplicates
from scs_supcon.data.audit import THUMBNAIL_SOURCE
from scs_supcon.data.image_io import ImageError, inspect_image, open_image
from scs_supcon.data.load import find_images

Change = Callable[[Image.Image], Image.Image]
Thumbnails = NDArray[np.uint8]
Pairs = set[tuple[int, int]]

THRESHOLDS = (
    # coarse, fine, factor
    (0.8, 0.9, 1.4),
    (0.7, 0.9, 1.4),
    (0.9, 0.9, 1.4),
    (0.8, 0.8, 1.4),
    (0.8, 0.85, 1.4),
    (0.8, 0.95, 1.4),
    (0.8, 0.9, 0.7),
    (0.8, 0.9, 2.8),
)


def crop(image: Image.Image, left: float, top: float, right: float, bottom: float) -> Image.Image:
    """Cut off shares of the width and height."""
    width, height = image.size
    return image.crop(
        (
            round(left * width),
            round(top * height),
            round((1 - right) * width),
            round((1 - bottom) * height),
        )
    )


def resize(image: Image.Image, scale: float) -> Image.Image:
    """Resize by a factor."""
    return image.resize([max(8, round(side * scale)) for side in image.size])


CHANGES: dict[str, tuple[Change, int, bool]] = {  # change, JPEG quality, should be found
    "resaved, JPEG quality 90": (lambda image: image, 90, True),
    "resaved, JPEG quality 30": (lambda image: image, 30, True),
    "half the size": (lambda image: resize(image, 0.5), 90, True),
    "5% cut off, one corner": (lambda image: crop(image, 0.05, 0.05, 0, 0), 90, True),
    "5% cut off, centred": (lambda image: crop(image, 0.025, 0.025, 0.025, 0.025), 90, True),
    "10% cut off, centred": (lambda image: crop(image, 0.05, 0.05, 0.05, 0.05), 90, True),
    "brightness × 0.7": (lambda image: ImageEnhance.Brightness(image).enhance(0.7), 90, True),
    "brightness × 1.3": (lambda image: ImageEnhance.Brightness(image).enhance(1.3), 90, True),
    "contrast × 1.3": (lambda image: ImageEnhance.Contrast(image).enhance(1.3), 90, True),
    "grey": (lambda image: image.convert("L"), 90, True),
    "20% cut off, centred": (lambda image: crop(image, 0.1, 0.1, 0.1, 0.1), 90, False),
    "rotated by 3°": (lambda image: image.rotate(3, Image.Resampling.BILINEAR), 90, False),
    "mirrored": (lambda image: image.transpose(Image.Transpose.FLIP_LEFT_RIGHT), 90, False),
}


def sample(folder: Path, count: int, seed: int) -> list[Path]:
    """Return readable images of the folder, at random."""
    paths = find_images([str(folder)])
    random.Random(seed).shuffle(paths)
    readable: list[Path] = []
    for path in paths:
        if len(readable) == count:
            break
        try:
            open_image(path, 1)
            readable.append(path)
        except ImageError:
            continue
    return readable


def thumbnails_of(paths: list[Path]) -> Thumbnails:
    """Return thumbnails as `scs doctor` makes them."""
    return np.stack(
        [near_duplicates.thumbnail(inspect_image(path, THUMBNAIL_SOURCE).image) for path in paths]
    )


def copies(paths: list[Path], change: Change, quality: int) -> Thumbnails:
    """Write changed copies and return their thumbnails."""
    with TemporaryDirectory() as folder:
        files = []
        for number, path in enumerate(paths):
            files.append(Path(folder) / f"{number}.jpg")
            change(open_image(path)).save(files[-1], quality=quality)
        return thumbnails_of(files)


def search(images: Thumbnails) -> Pairs:
    """Return the pairs that the search finds."""
    return {(pair.first, pair.second) for pair in near_duplicates.near_duplicates(images)}


def score(originals: Thumbnails, copied: Thumbnails) -> tuple[int, int, int]:
    """Return the numbers of correct, wrong and original pairs."""
    n = len(originals)
    pairs = search(np.concatenate([originals, copied]))
    between_originals = {pair for pair in pairs if pair[1] < n}
    correct = {(index, n + index) for index in range(len(copied))} & pairs
    # A copy of one real duplicate is also a copy of the other.
    explained = {
        pair for a, b in between_originals for pair in ((a, n + b), (b, n + a), (n + a, n + b))
    }
    wrong = pairs - between_originals - correct - explained
    return len(correct), len(wrong), len(between_originals)


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--images", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    paths = sample(options.folder, options.images, options.seed)
    half = paths[: len(paths) // 2]
    originals = thumbnails_of(paths)
    start = time.perf_counter()
    real = len(search(originals))
    seconds = time.perf_counter() - start
    print(f"{len(paths)} images, copies of {len(half)}; {real} pairs among the images themselves")
    print(f"search without copies: {seconds:.2f} s\n")
    print("| change | should be found | recall, % | precision, % | wrong pairs |")
    print("| --- | --- | ---: | ---: | ---: |")
    copied: dict[str, Thumbnails] = {}
    for name, (change, quality, expected) in CHANGES.items():
        copied[name] = copies(half, change, quality)
        correct, wrong, _ = score(originals, copied[name])
        print(f"| {name} | {'yes' if expected else 'no'} | {row(correct, wrong, len(half))} |")
    print("\n| coarse | fine | factor | recall, % | precision, % | wrong pairs | original pairs |")
    print("| ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    expected_changes = [name for name, (*_, expected) in CHANGES.items() if expected]
    for coarse, fine, factor in THRESHOLDS:
        near_duplicates.COARSE_THRESHOLD = coarse
        near_duplicates.FINE_THRESHOLD = fine
        near_duplicates.ALIKE_FACTOR = factor
        scores = [score(originals, copied[name]) for name in expected_changes]
        correct, wrong = sum(s[0] for s in scores), sum(s[1] for s in scores)
        line = row(correct, wrong, len(half) * len(expected_changes))
        print(f"| {coarse} | {fine} | {factor} | {line} | {scores[0][2]} |")


def row(correct: int, wrong: int, copies_made: int) -> str:
    """Return the cells recall, precision and wrong pairs."""
    precision = 100 * correct / (correct + wrong) if correct + wrong else 100.0
    return f"{100 * correct / copies_made:.1f} | {precision:.1f} | {wrong}"


if __name__ == "__main__":
    main()
