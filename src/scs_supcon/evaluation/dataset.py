"""Labelled images that a model is asked about: which of a set, and what it can know of them."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from scs_supcon.data.dataset import ImageDataset
from scs_supcon.data.folder import load_images
from scs_supcon.data.image_io import ImageError
from scs_supcon.errors import UserError, did_you_mean
from scs_supcon.progress import Display


@dataclass(frozen=True)
class Asked:
    """Images to judge a model on.

    Attributes:
        source: the data as it was named.
        images: all of it.
        split: "test", or "all" of data without parts.
        indices: the readable ones of that part.
        labels: the model's number of each one's class; −1 for a class that it does not know.
        strange: the classes that it does not know.
        unreadable: name and detail of those that could not be read.
    """

    source: str
    images: ImageDataset
    split: str
    indices: NDArray[np.int64]
    labels: Tensor
    strange: list[str]
    unreadable: list[dict[str, str]]

    @property
    def names(self) -> list[str]:
        """Of the images to judge."""
        return [self.images.names[index] for index in self.indices]

    @property
    def label_names(self) -> list[str]:
        """The class of each, as the data names it."""
        return [self.images.classes[label] for label in self.images.labels[self.indices]]


def read_asked(source: str, classes: Sequence[str], workers: int, display: Display) -> Asked:
    """Read data; images that cannot be opened are named and left out.

    Args:
        source: as for `train`; if it has parts, the test part is taken.
        classes: that the model knows.
        workers: threads that decode.
        display: shows how far it is.

    Raises:
        UserError: there is no test part, no class that the model knows, or no readable image.
    """
    images = load_images(source)
    split, indices = _part(source, images)
    there = [images.classes[label] for label in np.unique(images.labels[indices])]
    if not set(there) & set(classes):
        raise UserError(
            f"the model knows none of the classes of {source}, which are {_listed(there)}; "
            f"it knows {_listed(classes)}{did_you_mean(there[0], classes)}"
        )
    reasons = _reasons(images, indices, workers, display)
    bad = {int(index): why for index, why in zip(indices, reasons, strict=True) if why}
    indices = np.array([index for index in indices if index not in bad], dtype=np.int64)
    number = {name: place for place, name in enumerate(classes)}
    of_class = torch.tensor([number.get(name, -1) for name in images.classes])
    labels = of_class[torch.from_numpy(images.labels[indices])]
    if not (labels >= 0).any():
        why = f": {next(iter(bad.values()))}" if bad else ""
        raise UserError(f"{source} has no readable image of a class that the model knows{why}")
    unreadable = [{"name": images.names[index], "detail": why} for index, why in bad.items()]
    strange = sorted(set(there) - set(classes))
    return Asked(source, images, split, indices, labels, strange, unreadable)


def _part(source: str, images: ImageDataset) -> tuple[str, NDArray[np.int64]]:
    if images.splits is None:
        return "all", np.arange(len(images))
    indices = np.flatnonzero(images.splits == "test")
    if not len(indices):
        raise UserError(
            f"{source} is divided into parts, but has no test part: name the folder or table that "
            "holds just the images to judge"
        )
    return "test", indices


def _reasons(
    images: ImageDataset, indices: NDArray[np.int64], workers: int, display: Display
) -> list[str | None]:
    """Why each image cannot be read, or None."""

    def look(index: int) -> str | None:
        try:
            images.open(index)
        except ImageError as error:
            return str(error)
        return None

    found = []
    with (
        display.progress("checking images") as tell,
        ThreadPoolExecutor(max(1, workers)) as pool,
    ):
        for reason in pool.map(look, indices.tolist()):
            found.append(reason)
            tell(len(found), len(indices))
    return found


def _listed(names: Sequence[str], most: int = 5) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
