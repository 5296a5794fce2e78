"""A small drawn set whose class and style factors are known: shapes in colours.

The class is the shape. Colour, position, angle and size are style: drawn independently of the
class, so whatever of them a common embedding keeps, or of the class a style embedding keeps, is
leakage that can be measured.
"""

import math

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from scs_supcon.data.builtin import in_memory
from scs_supcon.data.dataset import ImageDataset

SHAPES = ("bar", "circle", "cross", "square", "star", "triangle")
COLOURS = ("blue", "green", "orange", "purple", "red")
SIDE = 32
DRAWN_VIEWS: dict[str, object] = {
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
_FINER = 4  # drawn this many times larger, then averaged: smooth edges

Points = list[tuple[float, float]]


def factors(per_class: int = 40, seed: int = 0) -> dict[str, NDArray[np.float64]]:
    """What was drawn: one value per image for each factor, in the order of `drawn`.

    `shape` and `colour` are indices into SHAPES and COLOURS; `x` and `y` are shifts and `size` the
    radius, in pixels; `angle` is in degrees; `paper` is the grey of the background.
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


def drawn(per_class: int = 40, seed: int = 0) -> ImageDataset:
    """The drawn set: 6 shapes, `per_class` images of 32 × 32 pixels each."""
    known = factors(per_class, seed)
    rows = [dict(zip(known, values, strict=True)) for values in zip(*known.values(), strict=True)]
    pixels = np.stack([np.asarray(_draw(row)) for row in rows])
    return in_memory("drawn", pixels, known["shape"].astype(np.int64), SHAPES, DRAWN_VIEWS)


def _draw(factor: dict[str, float]) -> Image.Image:
    paper = (int(factor["paper"]),) * 3
    image = Image.new("RGB", (SIDE * _FINER, SIDE * _FINER), paper)
    turn = math.radians(factor["angle"])
    points = []
    for x, y in _outline(SHAPES[int(factor["shape"])]):
        turned_x = x * math.cos(turn) - y * math.sin(turn)
        turned_y = x * math.sin(turn) + y * math.cos(turn)
        points.append(
            (
                _FINER * (SIDE / 2 + factor["x"] + factor["size"] * turned_x),
                _FINER * (SIDE / 2 + factor["y"] + factor["size"] * turned_y),
            )
        )
    ImageDraw.Draw(image).polygon(points, fill=_RGB[COLOURS[int(factor["colour"])]])
    return image.reduce(_FINER)


def _outline(shape: str) -> Points:
    """Corners in the unit circle."""
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
