"""Built-in datasets: handwritten digits, and synthetic shapes with known class and style factors.

*digits*: 1,797 scans of 8 × 8 pixels that come with scikit-learn.

*shapes*: the class is the shape. Colour, position, angle and size are style and are sampled
independently of the class, so leakage can be measured: style information in the common field, and
class information in the style field.
"""

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from scs_supcon.data.dataset import ImageDataset
from scs_supcon.io.values import Value

# Digits fill the image, change their meaning when mirrored, and have no colour.
DIGITS_VIEWS: dict[str, Value] = {
    "image_size": 16,
    "crop_pct": 1.0,
    "crop_scale": (0.7, 1.0),
    "flip": False,
    "jitter": 0.0,
    "grayscale": 0.0,
    "rotate": 10.0,
}


@dataclass(frozen=True, eq=False)
class ImageArrays:
    """Opens images from an array (n, height, width, 3) of bytes."""

    pixels: NDArray[np.uint8]

    def open(self, index: int, at_least: int = 0, sha256: str = "") -> Image.Image:
        return Image.fromarray(self.pixels[index])

    def file_hash(self, index: int) -> str:
        shape = ",".join(map(str, self.pixels[index].shape))
        return hashlib.sha256(shape.encode() + self.pixels[index].tobytes()).hexdigest()


def dataset_from_arrays(
    name: str,
    pixels: NDArray[np.uint8],
    labels: NDArray[np.int64],
    classes: tuple[str, ...],
    view_defaults: Mapping[str, Value],
) -> ImageDataset:
    """Return a dataset of arrays, whose images are named "name/0001", "name/0002" and so on."""
    reader = ImageArrays(pixels)
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
    """Return the digits as images, white on black."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    grey = np.round(bunch.images * (255 / 16)).astype(np.uint8)
    pixels = np.repeat(grey[..., None], 3, axis=-1)
    classes = tuple(str(name) for name in bunch.target_names)
    return dataset_from_arrays(
        "digits", pixels, bunch.target.astype(np.int64), classes, DIGITS_VIEWS
    )


SHAPES = ("bar", "circle", "cross", "square", "star", "triangle")
COLOURS = ("blue", "green", "orange", "purple", "red")
SIDE = 32
SHAPES_VIEWS: dict[str, Value] = {
    "image_size": SIDE,
    "crop_pct": 1.0,
    "crop_scale": (0.5, 1.0),
    "jitter": 0.2,
    "grayscale": 0.0,
}

_RGB = {
    "blue": (60, 90, 220),
    "green": (50, 160, 70),
    "orange": (240, 150, 40),
    "purple": (150, 70, 180),
    "red": (210, 50, 50),
}
_OVERSAMPLING = 4  # shapes are rendered at this multiple of the size, for smooth edges

Points = list[tuple[float, float]]


def shape_factors(per_class: int = 40, seed: int = 0) -> dict[str, NDArray[np.float64]]:
    """Return the factors behind `shapes`: one value per image for each factor.

    `shape` and `colour` are indices into SHAPES and COLOURS; `x` and `y` are shifts and `size` the
    radius, in pixels; `angle` is in degrees; `paper` is the grey level of the background.
    """
    rng = np.random.default_rng(seed)
    n = per_class * len(SHAPES)
    return {
        "shape": np.repeat(np.arange(len(SHAPES)), per_class).astype(np.float64),
        "colour": rng.integers(len(COLOURS), size=n).astype(np.float64),
        "x": rng.uniform(-4, 4, n),
        "y": rng.uniform(-4, 4, n),
        "angle": rng.uniform(0, 360, n),
        "size": rng.uniform(8, 12, n),
        "paper": rng.uniform(180, 255, n),
    }


def shapes(per_class: int = 40, seed: int = 0) -> ImageDataset:
    """Return the synthetic dataset: 6 shapes, `per_class` images of 32 × 32 pixels each."""
    factors = shape_factors(per_class, seed)
    rows = [
        dict(zip(factors, values, strict=True)) for values in zip(*factors.values(), strict=True)
    ]
    pixels = np.stack([np.asarray(_render(row)) for row in rows])
    return dataset_from_arrays(
        "shapes", pixels, factors["shape"].astype(np.int64), SHAPES, SHAPES_VIEWS
    )


def _render(factor: dict[str, float]) -> Image.Image:
    paper = (int(factor["paper"]),) * 3
    image = Image.new("RGB", (SIDE * _OVERSAMPLING, SIDE * _OVERSAMPLING), paper)
    rotation = math.radians(factor["angle"])
    points = []
    for x, y in _outline(SHAPES[int(factor["shape"])]):
        rotated_x = x * math.cos(rotation) - y * math.sin(rotation)
        rotated_y = x * math.sin(rotation) + y * math.cos(rotation)
        points.append(
            (
                _OVERSAMPLING * (SIDE / 2 + factor["x"] + factor["size"] * rotated_x),
                _OVERSAMPLING * (SIDE / 2 + factor["y"] + factor["size"] * rotated_y),
            )
        )
    ImageDraw.Draw(image).polygon(points, fill=_RGB[COLOURS[int(factor["colour"])]])
    return image.reduce(_OVERSAMPLING)


def _outline(shape: str) -> Points:
    """Return the corners of a shape within the unit circle."""
    match shape:
        case "bar":
            return [(-0.95, -0.3), (0.95, -0.3), (0.95, 0.3), (-0.95, 0.3)]
        case "circle":
            return _ring(48)
        case "cross":
            a, b = 0.3, 0.95
            right = [(a, -a), (b, -a), (b, a), (a, a)]
            return [corner for quarter in range(4) for corner in _quarter_turns(right, quarter)]
        case "square":
            return _ring(4)
        case "star":
            tips, dents = _ring(5), _ring(5, radius=0.4, phase=0.5)
            return [corner for pair in zip(tips, dents, strict=True) for corner in pair]
        case _:
            return _ring(3)


def _ring(corners: int, radius: float = 1.0, phase: float = 0.0) -> Points:
    angles = [2 * math.pi * (corner + phase) / corners for corner in range(corners)]
    return [(radius * math.cos(angle), radius * math.sin(angle)) for angle in angles]


def _quarter_turns(points: Points, quarters: int) -> Points:
    for _ in range(quarters):
        points = [(-y, x) for x, y in points]
    return points


BUILT_IN = {"digits": digits, "shapes": shapes}
