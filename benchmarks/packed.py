"""Measure packed datasets: time and memory to pack, index and read many small images.

    python benchmarks/packed.py                  1,000,000 images
    python benchmarks/packed.py --images 20000

The images are 1,000 distinct JPEGs of 32 × 32 pixels, each used under many names, so the disk is
not filled with a million files. Reading is compared with reading the same files from a folder.
"""

import argparse
import resource
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from PIL import Image

from scs_supcon.data.dataset import ImageDataset
from scs_supcon.data.image_io import ImageFiles
from scs_supcon.data.packed import pack, read_packed

DISTINCT, CLASSES, READS = 1000, 1000, 5000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=1_000_000)
    count = parser.parse_args().images
    with tempfile.TemporaryDirectory() as folder:
        before = peak_memory()
        images = make_images(Path(folder) / "files", count)
        start = time.perf_counter()
        shards = pack(images, Path(folder) / "packed")
        seconds = time.perf_counter() - start
        print(f"packed {count:,} images into {shards} shards: {seconds:.1f} s")
        start = time.perf_counter()
        packed = read_packed(Path(folder) / "packed")
        seconds = time.perf_counter() - start
        print(f"index of {len(packed):,} images read: {seconds:.1f} s")
        memory = peak_memory() - before
        print(f"peak memory of both datasets above that of the imports: {memory:,.0f} MB")
        order = np.random.default_rng(0).integers(0, count, READS)
        times = {"folder": read(images, order), "packed": read(packed, order)}
        ratio = times["packed"] / times["folder"]
        print(f"opening an image in random order: packed ÷ folder = {ratio:.2f}")


def make_images(folder: Path, count: int) -> ImageDataset:
    folder.mkdir()
    rng = np.random.default_rng(0)
    for number in range(DISTINCT):
        pixels = rng.integers(0, 255, (8, 8, 3), dtype=np.uint8)
        image = Image.fromarray(pixels).resize((32, 32))
        image.save(folder / f"{number}.jpg")
    paths = tuple(folder / f"{number}.jpg" for number in range(DISTINCT))
    reader = ImageFiles(tuple(paths[i % DISTINCT] for i in range(count)))
    return ImageDataset(
        names=tuple(f"image-{i:08d}.jpg" for i in range(count)),
        labels=np.arange(count, dtype=np.int64) % CLASSES,
        classes=tuple(f"class {label:04d}" for label in range(CLASSES)),
        splits=None,
        groups=None,
        folds=None,
        open=reader.open,
        file_hash=reader.file_hash,
        native_size=32,
        paths=reader.paths,
    )


def read(images: ImageDataset, order: np.ndarray) -> float:
    best = float("inf")
    for _ in range(3):
        start = time.perf_counter()
        for index in order:
            images.open(int(index))
        best = min(best, time.perf_counter() - start)
    return best


def peak_memory() -> float:
    """Return the peak memory of this process so far, in MB."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1e6 if sys.platform == "darwin" else 1e3)


if __name__ == "__main__":
    main()
