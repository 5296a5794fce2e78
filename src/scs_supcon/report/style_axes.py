"""Name the main directions of the style field by what can be measured in the thumbnails."""

import io
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from scs_supcon.report.gallery import FloatArray, ImageGallery, IntArray

AXES = 4
EXAMPLES = 4  # images at each end of an axis
FEWEST_IMAGES = 20  # below this number a correlation says nothing
NAMED = 0.3  # absolute correlation from which an axis has a name

Pixels = NDArray[np.float64]


@dataclass(frozen=True)
class StyleAxis:
    """A principal direction of the style field.

    Attributes:
        number: 1 for the direction of the largest variance.
        share: its share of the variance of the style field.
        name: the image property that is most correlated with it; empty if none is.
        correlation: of position and property, positive.
        low: images at the end where the property is low, the most extreme first.
        high: images at the other end.
    """

    number: int
    share: float
    name: str
    correlation: float
    low: IntArray
    high: IntArray


def style_axes(gallery: ImageGallery, count: int = AXES) -> list[StyleAxis]:
    """Return the first principal directions of the style of the images that have a thumbnail."""
    shown = np.flatnonzero([bool(jpeg) for jpeg in gallery.jpegs])
    if len(shown) < FEWEST_IMAGES or not gallery.style.shape[1]:
        return []
    style = gallery.style[shown].astype(np.float64)
    left, scale, _ = np.linalg.svd(style - style.mean(0), full_matrices=False)
    if not scale[0]:
        return []
    measured = [image_properties(gallery.jpegs[index]) for index in shown]
    names = list(measured[0])
    values = np.array([[properties[name] for name in names] for properties in measured])
    axes = []
    for number in range(min(count, len(scale))):
        correlations = _correlations(left[:, number], values)
        best = int(np.argmax(np.abs(correlations)))
        # The sign of a principal direction is arbitrary: the property rises along the axis.
        position = left[:, number] * (-1 if correlations[best] < 0 else 1)
        correlation = float(abs(correlations[best]))
        order = np.argsort(position, kind="stable")
        axes.append(
            StyleAxis(
                number=number + 1,
                share=float(scale[number] ** 2 / (scale**2).sum()),
                name=names[best] if correlation >= NAMED else "",
                correlation=correlation,
                low=shown[order[:EXAMPLES]],
                high=shown[order[: -EXAMPLES - 1 : -1]],
            )
        )
    return axes


def image_properties(jpeg: bytes) -> dict[str, float]:
    """Return properties that a person can see, measured in a thumbnail."""
    with Image.open(io.BytesIO(jpeg)) as image:
        width, height = image.size
        pixels = np.asarray(image.convert("RGB"), np.float64) / 255
    red, green, blue = np.moveaxis(pixels, 2, 0)
    light = 0.299 * red + 0.587 * green + 0.114 * blue
    middle = _centre(light)
    return {
        "brightness": float(light.mean()),
        "contrast": float(light.std()),
        "sharpness": float(np.log(np.abs(_laplacian(light)).mean() + 1e-4)),
        "saturation": float((pixels.max(2) - pixels.min(2)).mean()),
        "warm against cold colours": float((red - blue).mean()),
        "green against purple": float((green - (red + blue) / 2).mean()),
        "width of the image": float(np.log(width / height)),
        "bright centre": float(middle.mean() - light.mean()),
        "detail in the centre": float(middle.std() - light.std()),
        "bright top": _half_difference(light),
        "bright left side": _half_difference(light.T),
    }


def _laplacian(light: Pixels) -> Pixels:
    padded = np.pad(light, 1, mode="edge")
    around = padded[:-2, 1:-1] + padded[2:, 1:-1] + padded[1:-1, :-2] + padded[1:-1, 2:]
    difference: Pixels = around - 4 * light
    return difference


def _centre(light: Pixels) -> Pixels:
    """Return the middle half of both sides."""
    height, width = light.shape
    return light[height // 4 : height - height // 4, width // 4 : width - width // 4]


def _half_difference(light: Pixels) -> float:
    """Return the mean of the first half of the rows minus that of the second half."""
    half = max(1, len(light) // 2)
    return float(light[:half].mean() - light[-half:].mean())


def _correlations(position: NDArray[np.float64], values: NDArray[np.float64]) -> FloatArray:
    """Return Pearson's r of a position and each column; 0 for a constant column."""
    x = position - position.mean()
    y = values - values.mean(0)
    lengths = np.linalg.norm(x) * np.linalg.norm(y, axis=0)
    usable = lengths > 1e-9
    return np.asarray(np.where(usable, x @ y / np.where(usable, lengths, 1), 0), np.float32)
