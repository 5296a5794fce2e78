"""Labelled images to evaluate a model on."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from scs_supcon.data.dataset import ImageDataset
from scs_supcon.data.image_io import ImageError
from scs_supcon.data.load import load_images
from scs_supcon.errors import UserError
from scs_supcon.evaluation.record import UnreadableImage
from scs_supcon.progress import Display


@dataclass(frozen=True)
class EvaluationSet:
    """Images to evaluate a model on.

    Attributes:
        data: the dataset as given by the user.
        images: the whole dataset.
        split: "test" or "val", or "all" if the dataset has no splits.
        indices: the readable images of that split.
        labels: index of the model's class of each image; −1 for an unknown class.
        unknown_classes: classes that the model does not have.
        unreadable: images that could not be opened.
    """

    data: str
    images: ImageDataset
    split: Literal["test", "val", "all"]
    indices: NDArray[np.int64]
    labels: Tensor
    unknown_classes: list[str]
    unreadable: list[UnreadableImage]

    @property
    def names(self) -> list[str]:
        """Names of the images."""
        return [self.images.names[index] for index in self.indices]

    @property
    def label_names(self) -> list[str]:
        """Class name of each image in the dataset."""
        return [self.images.classes[label] for label in self.images.labels[self.indices]]


def load_evaluation_set(
    data: str, classes: Sequence[str], workers: int, display: Display
) -> EvaluationSet:
    """Load a dataset; images that cannot be opened are left out and listed.

    Args:
        data: as for `train`; if it has splits, its test split is used.
        classes: the model's classes.
        workers: number of decoding threads.
        display: shows the progress.

    Raises:
        UserError: there is no test split, or no readable image of a known class although the data
            has known classes.
    """
    images = load_images(data)
    split, indices = _choose_split(data, images)
    return selected_images(data, images, split, indices, classes, workers, display)


def selected_images(
    data: str,
    images: ImageDataset,
    split: Literal["test", "val", "all"],
    indices: Sequence[int] | NDArray[np.int64],
    classes: Sequence[str],
    workers: int,
    display: Display,
) -> EvaluationSet:
    """Return some images of a dataset; those that cannot be opened are left out and listed.

    Args:
        data: the dataset as given by the user.
        images: the whole dataset.
        split: what the images are.
        indices: the images.
        classes: the model's classes.
        workers: number of decoding threads.
        display: shows the progress.

    Raises:
        UserError: there is no readable image of a known class although the data has known classes.
    """
    indices = np.asarray(indices, dtype=np.int64)
    present = [images.classes[label] for label in np.unique(images.labels[indices])]
    errors = _decode_errors(images, indices, workers, display)
    unreadable = [
        UnreadableImage(image=images.names[index], detail=error)
        for index, error in zip(indices, errors, strict=True)
        if error
    ]
    indices = indices[[error is None for error in errors]]
    index_of = {name: index for index, name in enumerate(classes)}
    model_labels = torch.tensor([index_of.get(name, -1) for name in images.classes])
    labels = model_labels[torch.from_numpy(images.labels[indices])]
    if not len(indices) or (set(present) & set(classes) and not (labels >= 0).any()):
        kind = "image of a class of the model" if len(indices) else "image"
        raise UserError(f"{data} has no readable {kind}: {unreadable[0].detail}")
    unknown_classes = sorted(set(present) - set(classes))
    return EvaluationSet(data, images, split, indices, labels, unknown_classes, unreadable)


def _choose_split(
    data: str, images: ImageDataset
) -> tuple[Literal["test", "all"], NDArray[np.int64]]:
    if images.splits is None:
        return "all", np.arange(len(images))
    indices = np.flatnonzero(images.splits == "test")
    if not len(indices):
        raise UserError(
            f"{data} has splits, but no test split: give the folder or table of the images to "
            "evaluate on"
        )
    return "test", indices


def _decode_errors(
    images: ImageDataset, indices: NDArray[np.int64], workers: int, display: Display
) -> list[str | None]:
    """Return why each image cannot be opened, or None."""

    def decode(index: int) -> str | None:
        try:
            images.open(index)
        except ImageError as error:
            return str(error)
        return None

    errors: list[str | None] = []
    with (
        display.progress("checking images") as progress,
        ThreadPoolExecutor(max(1, workers)) as pool,
    ):
        for error in pool.map(decode, indices.tolist()):
            errors.append(error)
            progress(len(errors), len(indices))
    return errors
