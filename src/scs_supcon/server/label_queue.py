"""Which unlabelled images to label next, and what the new labels are worth.

The uncertainty of an image is 1 − (p₁ − p₂), with the probabilities of its two most probable
classes: it is 1 at the boundary of two classes. Of the most uncertain images, those are taken that
differ from the ones already taken: each step takes the image with the largest u (1 − s), where s is
the similarity to the most similar image that was taken or labelled before.

The learning curve is the validation accuracy of the nearest class mean in the common field, with
the means of the training images and of the first n new labels. It is cheap and needs no training;
retraining gains more.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, TypedDict

import numpy as np
from numpy.typing import NDArray

from scs_supcon.data.image_io import ImageError
from scs_supcon.runs.corrections import NOT_USED
from scs_supcon.server.scores import RunVectors
from scs_supcon.server.torch_predictor import TorchPredictor
from scs_supcon.server.workspace import Workspace

SHOWN = 24
CANDIDATES = 10  # times as many as are shown
BATCH = 64
POINTS = 40  # of the learning curve

Floats = NDArray[np.floating[Any]]


class QueuedImage(NamedTuple):
    """The model's view of an unlabelled image."""

    common: Floats
    probabilities: Floats
    unknown: bool


class ImageToLabel(TypedDict):
    """An unlabelled image in JSON; `top` lists the most probable classes with probabilities."""

    id: int
    image: str
    unknown: bool
    top: list[tuple[str, float]]


class QueueState(TypedDict):
    """The images to label next in JSON; `curve` lists numbers of new labels and accuracies."""

    total: int
    waiting: int
    unreadable: int
    images: list[ImageToLabel]
    curve: list[list[float]]


class LabelQueue:
    """Orders the unlabelled images of a workspace."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
        self._decided: dict[int, QueuedImage] = {}
        self._unreadable: set[int] = set()

    def forget(self) -> None:
        """Forget the decisions of the model, because there is another one."""
        self._decided.clear()

    def next(self, predictor: TorchPredictor, vectors: RunVectors) -> QueueState:
        """Return the images to label next, the counts and the learning curve, for JSON."""
        workspace = self._workspace
        numbers = range(workspace.labelled, len(workspace.images))
        self._decide(predictor, [n for n in numbers if n not in self._decided])
        waiting = [
            n
            for n in numbers
            if n in self._decided and workspace.corrections.label(workspace.names[n]) == NOT_USED
        ]
        labelled = self._new_labels()
        taken = np.array([self._decided[n].common for n, _ in labelled if n in self._decided])
        chosen = self._choose(waiting, taken)
        return {
            "total": len(numbers),
            "waiting": len(waiting),
            "unreadable": len(self._unreadable),
            "images": [self._describe(number, predictor) for number in chosen],
            "curve": self._curve(vectors, labelled),
        }

    def _decide(self, predictor: TorchPredictor, numbers: Sequence[int]) -> None:
        for start in range(0, len(numbers), BATCH):
            pixels, kept = [], []
            for number in numbers[start : start + BATCH]:
                try:
                    pixels.append(predictor.prepare(self._workspace.open(number)))
                    kept.append(number)
                except ImageError:
                    self._unreadable.add(number)
            if kept:
                decisions = predictor.decide(pixels)
                for number, decision in zip(kept, decisions, strict=True):
                    self._decided[number] = QueuedImage(
                        decision.common, decision.probabilities, decision.unknown
                    )

    def _choose(self, waiting: Sequence[int], taken: Floats) -> list[int]:
        if not waiting:
            return []
        probabilities = np.stack([self._decided[n].probabilities for n in waiting])
        common = np.stack([self._decided[n].common for n in waiting])
        order = choose_uncertain(probabilities, common, taken, SHOWN)
        return [waiting[i] for i in order]

    def _describe(self, number: int, predictor: TorchPredictor) -> ImageToLabel:
        image = self._decided[number]
        best = np.argsort(-image.probabilities, kind="stable")[:3]
        return {
            "id": number,
            "image": self._workspace.names[number],
            "unknown": image.unknown,
            "top": [(predictor.classes[i], float(image.probabilities[i])) for i in best],
        }

    def _new_labels(self) -> list[tuple[int, int]]:
        """Return (image, class) of the labelled images of the queue, in the order of labelling."""
        workspace = self._workspace
        index = {name: number for number, name in enumerate(workspace.classes)}
        order = dict.fromkeys(row.image for row in workspace.corrections.rows)
        pairs = ((workspace.number(name), workspace.corrections.label(name)) for name in order)
        return [
            (number, index[label])
            for number, label in pairs
            if number is not None and number >= workspace.labelled and label in index
        ]

    def _curve(self, vectors: RunVectors, labelled: Sequence[tuple[int, int]]) -> list[list[float]]:
        workspace = self._workspace
        splits = np.array([image.split for image in workspace.images[: workspace.labelled]])
        labels = workspace.labels()[: workspace.labelled]
        usable = vectors.known & (labels >= 0)
        train, val = (usable & (splits == name) for name in ("train", "val"))
        new = [(self._decided[n].common, label) for n, label in labelled if n in self._decided]
        if not val.any():
            return []
        return learning_curve(
            (vectors.common[train].astype(np.float64), labels[train]),
            (vectors.common[val].astype(np.float64), labels[val]),
            new,
            len(workspace.classes),
        )


def choose_uncertain(probabilities: Floats, common: Floats, taken: Floats, count: int) -> list[int]:
    """Return the rows to label next, in order; see the top of this file.

    Args:
        probabilities: (n, classes).
        common: (n, D) unit vectors.
        taken: (m, D) unit vectors of images that were labelled before; may be empty.
        count: number of rows to return.
    """
    best_two = -np.partition(-probabilities, 1, axis=1)[:, :2]
    uncertainty = 1 - (best_two[:, 0] - best_two[:, 1])
    candidates = np.argsort(-uncertainty, kind="stable")[: CANDIDATES * count]
    rows, u = common[candidates], uncertainty[candidates]
    nearest = (rows @ taken.T).max(1) if len(taken) else np.zeros(len(rows))
    chosen: list[int] = []
    free = np.ones(len(rows), bool)
    while free.any() and len(chosen) < count:
        value = np.where(free, u * (1 - np.clip(nearest, 0, 1)), -1.0)
        best = int(value.argmax())
        chosen.append(int(candidates[best]))
        free[best] = False
        nearest = np.maximum(nearest, rows @ rows[best])
    return chosen


def learning_curve(
    train: tuple[Floats, NDArray[np.int64]],
    val: tuple[Floats, NDArray[np.int64]],
    new: Sequence[tuple[Floats, int]],
    classes: int,
) -> list[list[float]]:
    """Return (number of new labels, validation accuracy of the nearest class mean) points."""
    sums = np.zeros((classes, train[0].shape[1]))
    np.add.at(sums, train[1], train[0])
    curve = []
    step = max(1, len(new) // POINTS)
    for count in range(len(new) + 1):
        if count:
            vector, label = new[count - 1]
            sums[label] += vector
        if count % step == 0 or count == len(new):
            means = sums / np.maximum(np.linalg.norm(sums, axis=1, keepdims=True), 1e-12)
            correct = (val[0] @ means.T).argmax(1) == val[1]
            curve.append([count, float(correct.mean())])
    return curve
