"""Name directions of the style field by what can be measured in the thumbnails.

The principal directions of a style field have no names. An axis is instead the direction along
which an image property changes most: a ridge regression from style to the property. Its correlation
r is measured on images that it was not fitted to.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from scs_supcon.data.image_io import open_image
from scs_supcon.report.gallery import ImageGallery, IntArray

AXES = 5
EXAMPLES = 4  # images at each end of an axis
FEWEST_IMAGES = 20  # below this number a correlation is mostly chance
FOLDS = 5
RIDGE = 0.1  # penalty, relative to the mean variance of a column of style
NAMED = 0.3  # correlation from which an axis is shown
ALIKE = 0.7  # absolute correlation from which two axes are the same

Pixels = NDArray[np.float64]


@dataclass(frozen=True)
class StyleAxis:
    """A direction of the style field.

    Attributes:
        name: the image property that rises along the direction.
        correlation: of property and position, on images that the axis was not fitted to.
        low: images at the end where the property is low, the most extreme first.
        high: images at the other end.
    """

    name: str
    correlation: float
    low: IntArray
    high: IntArray


def style_axes(gallery: ImageGallery, count: int = AXES) -> list[StyleAxis]:
    """Return the directions that are most correlated with an image property, best first."""
    shown = np.flatnonzero([bool(jpeg) for jpeg in gallery.jpegs])
    if len(shown) < FEWEST_IMAGES or not gallery.style.shape[1]:
        return []
    measured = [image_properties(gallery.jpegs[index]) for index in shown]
    values = np.array([list(properties.values()) for properties in measured])
    positions = _positions(gallery.style[shown].astype(np.float64), values)
    names = list(measured[0])
    correlations = np.array(
        [_correlation(positions[:, k], values[:, k]) for k in range(len(names))]
    )
    axes: list[StyleAxis] = []
    chosen: list[int] = []
    for k in np.argsort(-correlations, kind="stable").tolist():
        if correlations[k] < NAMED or len(axes) == count:
            break
        if any(abs(_correlation(positions[:, k], positions[:, c])) >= ALIKE for c in chosen):
            continue
        chosen.append(k)
        order = shown[np.argsort(positions[:, k], kind="stable")]
        axes.append(
            StyleAxis(
                names[k], float(correlations[k]), order[:EXAMPLES], order[: -EXAMPLES - 1 : -1]
            )
        )
    return axes


def _positions(style: Pixels, values: Pixels) -> Pixels:
    """Return the predictions of each property by regressions fitted to the other folds."""
    fold = np.arange(len(style)) % FOLDS
    positions = np.zeros_like(values)
    for number in range(FOLDS):
        fitted, left_out = fold != number, fold == number
        mean, level = style[fitted].mean(0), values[fitted].mean(0)
        x = style[fitted] - mean
        gram = x.T @ x
        penalty = RIDGE * max(float(gram.diagonal().mean()), 1e-12)
        weights = np.linalg.solve(
            gram + penalty * np.eye(len(gram)), x.T @ (values[fitted] - level)
        )
        positions[left_out] = (style[left_out] - mean) @ weights + level
    return positions


def image_properties(jpeg: bytes) -> dict[str, float]:
    """Return properties that a person can see, measured in a thumbnail."""
    image = open_image("a thumbnail of the run", content=jpeg)
    (width, height), pixels = image.size, np.asarray(image, np.float64) / 255
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


def _correlation(x: Pixels, y: Pixels) -> float:
    """Return Pearson's r; 0 if one of them is constant."""
    x, y = x - x.mean(), y - y.mean()
    lengths = float(np.linalg.norm(x) * np.linalg.norm(y))
    return float(x @ y) / lengths if lengths > 1e-9 else 0.0
