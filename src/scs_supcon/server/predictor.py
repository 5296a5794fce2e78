"""What the server needs from a model, whether torch or onnxruntime computes it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from scs_supcon.errors import UserError
from scs_supcon.inference.types import Prediction

Floats = NDArray[np.floating[Any]]
Pixels = NDArray[np.uint8]
FieldName = Literal["common", "style"]


@dataclass(frozen=True)
class ImageDecision:
    """The outputs of a model for one image.

    Attributes:
        probabilities: (classes,), calibrated.
        nearest: class with the largest margin over its threshold.
        similarity: mean similarity to the images of that class.
        unknown: whether the similarity to every class is below its threshold.
        common: common field, at unit length.
        style: style field, at unit length; may be empty.
    """

    probabilities: Floats
    nearest: int
    similarity: float
    unknown: bool
    common: Floats
    style: Floats


class NearImage(NamedTuple):
    """A training image by its position in the gallery, and its similarity."""

    position: int
    similarity: float


@dataclass(frozen=True)
class TrainingGallery:
    """The training images that can be neighbours.

    Attributes:
        names: names of the images.
        labels: (n,) their classes.
        common: (n, D) unit vectors.
        style: (n, S) unit vectors; S is 0 for methods without a style field.
    """

    names: tuple[str, ...]
    labels: NDArray[np.int64]
    common: NDArray[np.float32]
    style: NDArray[np.float32]

    def nearest(self, decision: ImageDecision, field: FieldName, k: int) -> list[NearImage]:
        """Return the k images that are most similar in a field, the most similar first."""
        rows = self.common if field == "common" else self.style
        vector = decision.common if field == "common" else decision.style
        if not len(rows) or not rows.shape[1] or not len(vector):
            return []
        similarities = rows @ vector.astype(np.float32)
        k = min(k, len(similarities))
        best = np.argpartition(-similarities, k - 1)[:k]
        order = best[np.lexsort((best, -similarities[best]))]
        return [NearImage(int(i), float(similarities[i])) for i in order]


class Predictor(Protocol):
    """A model that is ready to classify prepared images.

    Attributes:
        classes: names of the classes.
        thresholds: (classes,) similarity that an image of each class needs.
        boundary: similarity at which two images are as likely of one class as not; None if unknown.
        gallery: the training images.
        facts: encoder, method and results, for people and programs.
        threads: number of threads that may call `decide` at the same time.
    """

    classes: tuple[str, ...]
    thresholds: Floats
    boundary: float | None
    gallery: TrainingGallery
    facts: Mapping[str, Any]
    threads: int

    def prepare(self, image: Image.Image) -> Pixels:
        """Return the pixels (size, size, 3) that the model sees."""

    def decide(self, pixels: Sequence[Pixels]) -> list[ImageDecision]:
        """Return the decisions for prepared images."""

    def heat_map(self, pixels: Pixels, label: int) -> Floats | None:
        """Return how much each region (rows, columns) speaks for a class, from 0 to 1."""


def to_prediction(
    name: str, decision: ImageDecision, predictor: Predictor, topk: int
) -> Prediction:
    """Return a decision in the form of `Model.predict`."""
    if topk < 1:
        raise UserError(f"topk must be at least 1, got {topk}")
    classes = predictor.classes
    order = np.argsort(-decision.probabilities, kind="stable")[:topk]
    top = tuple((classes[int(i)], float(decision.probabilities[i])) for i in order)
    return Prediction(
        name=name,
        label=top[0][0],
        probability=top[0][1],
        top=top,
        unknown=decision.unknown,
        nearest=classes[decision.nearest],
        similarity=decision.similarity,
        threshold=float(predictor.thresholds[decision.nearest]),
    )
