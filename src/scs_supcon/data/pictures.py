"""A labelled set of pictures, wherever it came from, and what was found wrong with it."""

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
    """Opens one picture as RGB, upright."""

    def __call__(self, index: int, at_least: int = 0) -> Image.Image:
        """Open picture `index`; if `at_least` > 0, a JPEG may come smaller than it is stored,
        but never with a short side below `at_least` pixels."""


@dataclass(frozen=True)
class Problem:
    """Something a person should know about one file, class, group or column.

    Attributes:
        kind: Short and fixed, to group by; the kinds stand in `check.py`.
        name: The picture, class, group, file or column.
        detail: One sentence.
        same_as: For duplicates: the first picture with this content, or the one it looks like.
    """

    kind: str
    name: str
    detail: str
    same_as: str = ""


def printable(name: str | Path) -> str:
    """A file's name as text that can be printed and written: bytes that are no UTF-8 as `\\xff`."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


@dataclass(frozen=True, eq=False)
class Pictures:
    """Pictures in the order of their names.

    Attributes:
        names: Unique and stable: the path relative to the root, or such as "digits/0001".
        labels: Index into `classes` for each picture, int64.
        classes: Sorted names.
        splits: "train", "val" or "test" for each picture; None when the data does not say.
        groups: Pictures of one group stay in one split; "" belongs to no group.
        folds: The fold each picture is tested in, when the data says so.
        open: Opens one picture.
        file_hash: SHA-256 of one picture's content.
        view_defaults: What this set prefers to the usual `DataRecipe` fields.
        native_size: The usual short side in pixels.
        notes: What was left aside while reading.
        paths: The files; None where the pictures are not in files.
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
    """Opens the pictures that were kept, under their new indices."""

    pictures: Pictures
    kept: NDArray[np.int64]

    def open(self, index: int, at_least: int = 0) -> Image.Image:
        return self.pictures.open(int(self.kept[index]), at_least)

    def file_hash(self, index: int) -> str:
        return self.pictures.file_hash(int(self.kept[index]))


def without(pictures: Pictures, indices: Iterable[int]) -> Pictures:
    """The same set without these pictures; every class must keep one."""
    kept = np.setdiff1d(np.arange(len(pictures)), np.fromiter(indices, dtype=np.int64))
    reader = _Kept(pictures, kept)
    labels = pictures.labels[kept]
    left = np.bincount(labels, minlength=len(pictures.classes))
    if len(emptied := np.flatnonzero(left == 0)):
        raise UserError(
            f"class {pictures.classes[emptied[0]]!r} has no usable picture left: "
            "repair its pictures or remove the class"
        )

    def pick(column: NDArray[Any] | None) -> NDArray[Any] | None:
        return None if column is None else column[kept]

    return replace(
        pictures,
        names=tuple(pictures.names[index] for index in kept),
        labels=labels,
        splits=pick(pictures.splits),
        groups=pick(pictures.groups),
        folds=pick(pictures.folds),
        open=reader.open,
        file_hash=reader.file_hash,
        paths=None if pictures.paths is None else tuple(pictures.paths[index] for index in kept),
    )
