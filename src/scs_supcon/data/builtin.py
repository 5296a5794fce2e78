"""Handwritten digits: 1,797 real scans of 8 × 8 pixels that come with scikit-learn."""

import hashlib
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from scs_supcon.data.dataset import ImageDataset

# The digits fill their frame; mirrored they are other signs; and ink has no colour to jitter.
DIGIT_VIEWS: dict[str, object] = {
    "image_size": 16,
    "crop_pct": 1.0,
    "crop_scale": (0.7, 1.0),
    "flip": False,
    "jitter": 0.0,
    "grayscale": 0.0,
    "rotate": 10.0,
}


@dataclass(frozen=True, eq=False)
class InMemory:
    """Opens images that are arrays (n, height, width, 3) of bytes."""

    pixels: NDArray[np.uint8]

    def open(self, index: int, at_least: int = 0) -> Image.Image:
        return Image.fromarray(self.pixels[index])

    def file_hash(self, index: int) -> str:
        shape = ",".join(map(str, self.pixels[index].shape))
        return hashlib.sha256(shape.encode() + self.pixels[index].tobytes()).hexdigest()


def in_memory(
    name: str,
    pixels: NDArray[np.uint8],
    labels: NDArray[np.int64],
    classes: tuple[str, ...],
    view_defaults: dict[str, object],
) -> ImageDataset:
    """Arrays as `Images`, named "name/0001" and on."""
    reader = InMemory(pixels)
    return ImageDataset(
        names=tuple(f"{name}/{number:04d}" for number in range(1, len(pixels) + 1)),
        labels=labels,
        classes=classes,
        splits=None,
        groups=None,
        folds=None,
        open=reader.open,
        file_hash=reader.file_hash,
        native_size=min(pixels.shape[1:3]),
        view_defaults=view_defaults,
    )


def digits() -> ImageDataset:
    """The digits as images, white ink on black."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    grey = np.round(bunch.images * (255 / 16)).astype(np.uint8)
    pixels = np.repeat(grey[..., None], 3, axis=-1)
    classes = tuple(str(name) for name in bunch.target_names)
    return in_memory("digits", pixels, bunch.target.astype(np.int64), classes, DIGIT_VIEWS)
