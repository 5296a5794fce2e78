"""What a model answers."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Failure(NamedTuple):
    """An image that could not be read, and why."""

    name: str
    reason: str


@dataclass(frozen=True)
class Prediction:
    """What a model thinks of one image.

    Attributes:
        name: path of the image as it was given.
        label: most probable class.
        probability: of that class.
        top: (class, probability) of the most probable classes, best first.
        none_of_these: whether the image is unlike the members of every class.
        nearest: class whose members it is most like, measured against what that class needs.
        similarity: mean similarity to the members of `nearest`.
    """

    name: str
    label: str
    probability: float
    top: tuple[tuple[str, float], ...]
    none_of_these: bool
    nearest: str
    similarity: float


class Predictions(NamedTuple):
    """Records in the order of the images, and the images that could not be read."""

    records: tuple[Prediction, ...]
    failures: tuple[Failure, ...]


class Embeddings(NamedTuple):
    """Vectors at unit length in the order of the images; `style` may have no columns."""

    names: tuple[str, ...]
    common: NDArray[np.float32]
    style: NDArray[np.float32]
    failures: tuple[Failure, ...]


class Neighbour(NamedTuple):
    """A training image, its class, and its similarity to the image in question."""

    name: str
    label: str
    similarity: float
