"""A labelled set of images, wherever it came from, and what was found wrong with it."""

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from scs_supcon.errors import UserError

SPLITS = ("train", "val", "test")


class Opener(Protocol):
    """Opens one image as RGB, upright."""

    def __call__(self, index: int, at_least: int = 0) -> Image.Image:
        """Open image `index`; if `at_least` > 0, a JPEG may come smaller than it is stored,
        but never with a short side below `at_least` pixels."""


@dataclass(frozen=True)
class Problem:
    """Something a person should know about one file, class, group or column.

    Attributes:
        kind: Short and fixed, to group by; the kinds stand in `check.py`.
        name: The image, class, group, file or column.
        detail: One sentence.
        same_as: For duplicates: the first image with this content, or the one it looks like.
    """

    kind: str
    name: str
    detail: str
    same_as: str = ""


def printable(name: str | Path) -> str:
    """A file's name as text that can be printed and written: bytes that are no UTF-8 as `\\xff`."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


@dataclass(frozen=True, eq=False)
class ImageDataset:
    """Images in the order of their names.

    Attributes:
        names: Unique and stable: the path relative to the root, or such as "digits/0001".
        labels: Index into `classes` for each image, int64.
        classes: Sorted names.
        splits: "train", "val" or "test" for each image; None when the data does not say.
        groups: Images of one group stay in one split; "" belongs to no group.
        folds: The fold each image is tested in, when the data says so.
        open: Opens one image.
        file_hash: SHA-256 of one image's content.
        view_defaults: What this set prefers to the usual `DataRecipe` fields.
        native_size: The usual short side in pixels.
        notes: What was left aside while reading.
        paths: The files; None where the images are not in files.
    """

    names: tuple[str, ...]
    labels: NDArray[np.int64]
    classes: tuple[str, ...]
    splits: NDArray[np.str_] | None
    groups: NDArray[np.str_] | None
    folds: NDArray[np.int64] | None
    open: Opener
    file_hash: Callable[[int], str]
    native_size: int
    view_defaults: Mapping[str, object] = field(default_factory=dict)
    notes: tuple[Problem, ...] = ()
    paths: tuple[Path, ...] | None = None

    def __len__(self) -> int:
        return len(self.names)


@dataclass(frozen=True)
class _Kept:
    """Opens the images that were kept, under their new indices."""

    images: ImageDataset
    kept: NDArray[np.int64]

    def open(self, index: int, at_least: int = 0) -> Image.Image:
        return self.images.open(int(self.kept[index]), at_least)

    def file_hash(self, index: int) -> str:
        return self.images.file_hash(int(self.kept[index]))


def without(images: ImageDataset, indices: Iterable[int]) -> ImageDataset:
    """The same set without these images; every class must keep one."""
    kept = np.setdiff1d(np.arange(len(images)), np.fromiter(indices, dtype=np.int64))
    reader = _Kept(images, kept)
    labels = images.labels[kept]
    left = np.bincount(labels, minlength=len(images.classes))
    if len(emptied := np.flatnonzero(left == 0)):
        raise UserError(
            f"class {images.classes[emptied[0]]!r} has no usable image left: "
            "repair its images or remove the class"
        )

    def pick(column: NDArray[Any] | None) -> NDArray[Any] | None:
        return None if column is None else column[kept]

    return replace(
        images,
        names=tuple(images.names[index] for index in kept),
        labels=labels,
        splits=pick(images.splits),
        groups=pick(images.groups),
        folds=pick(images.folds),
        open=reader.open,
        file_hash=reader.file_hash,
        paths=None if images.paths is None else tuple(images.paths[index] for index in kept),
    )
