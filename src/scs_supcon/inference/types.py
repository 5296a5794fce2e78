"""Results of a model."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Failure(NamedTuple):
    """An image that could not be read."""

    name: str
    reason: str


@dataclass(frozen=True)
class Prediction:
    """The prediction for one image.

    Attributes:
        name: path of the image as given.
        label: most probable class.
        probability: of that class.
        top: (class, probability) of the most probable classes, best first.
        unknown: whether the image is rejected: its similarity to every class is below the
            threshold.
        nearest: class with the largest margin over its threshold.
        similarity: mean similarity to the images of `nearest`.
        threshold: similarity that `nearest` requires; below it the image is unknown.
    """

    name: str
    label: str
    probability: float
    top: tuple[tuple[str, float], ...]
    unknown: bool
    nearest: str
    similarity: float
    threshold: float


class Predictions(NamedTuple):
    """Predictions in the order of the images, and the images that could not be read."""

    records: tuple[Prediction, ...]
    failures: tuple[Failure, ...]


class Embeddings(NamedTuple):
    """Unit vectors (float32) in the order of the images; `style` may have no columns."""

    names: tuple[str, ...]
    common: NDArray[np.float32] | NDArray[np.float16]
    style: NDArray[np.float32] | NDArray[np.float16]
    failures: tuple[Failure, ...]

    def half(self) -> "Embeddings":
        """The same vectors in float16, which takes half the space."""
        return self._replace(
            common=self.common.astype(np.float16),
            style=self.style.astype(np.float16),
        )


class Neighbour(NamedTuple):
    """A training image, its class, and its similarity to the given image."""

    name: str
    label: str
    similarity: float


class StoredNeighbour(NamedTuple):
    """An image of a file of embeddings, and its similarity to the given image."""

    name: str
    similarity: float


class StoredNeighbours(NamedTuple):
    """The most similar images of a file; `note` tells the recall of an approximate search."""

    images: tuple[StoredNeighbour, ...]
    note: str
