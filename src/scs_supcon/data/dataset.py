"""A labelled set of images from any source, and the problems found in it."""

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from scs_supcon.errors import UserError
from scs_supcon.io.values import Value

SPLITS = ("train", "val", "test")


class ProblemKind(NamedTuple):
    """Display text of one kind of problem.

    Attributes:
        title: Short name.
        advice: Its consequence and what to do about it.
        harmful: Whether it harms training or makes its results wrong.
    """

    title: str
    advice: str
    harmful: bool = True


_LEAK = "leaks training images into the test set"
_LEFT_OUT = "not used in training"

# Worst first: reports list problems in this order.
PROBLEM_KINDS: Mapping[str, ProblemKind] = {
    "unreadable": ProblemKind(
        "unreadable", f"{_LEFT_OUT}: replace them with intact copies, or remove them"
    ),
    "truncated": ProblemKind("truncated", f"{_LEFT_OUT}: replace them with complete copies"),
    "too_large": ProblemKind("too large", f"{_LEFT_OUT}: resize or crop them"),
    "duplicate_with_other_label": ProblemKind(
        "duplicate with another label", "one of the labels is wrong: correct it"
    ),
    "near_duplicate_with_other_label": ProblemKind(
        "near duplicate with another label", "one of the labels may be wrong: check both"
    ),
    "duplicate_across_splits": ProblemKind("duplicate across splits", f"{_LEAK}: keep one copy"),
    "near_duplicate_across_splits": ProblemKind(
        "near duplicate across splits", f"{_LEAK}: keep them in one split"
    ),
    "group_across_splits": ProblemKind(
        "group across splits", "results will be too optimistic: keep each group in one split"
    ),
    "duplicate_across_folds": ProblemKind("duplicate across folds", f"{_LEAK}: keep one copy"),
    "near_duplicate_across_folds": ProblemKind(
        "near duplicate across folds", f"{_LEAK}: keep them in one fold"
    ),
    "group_across_folds": ProblemKind(
        "group across folds", "results will be too optimistic: keep each group in one fold"
    ),
    "class_without_training_images": ProblemKind(
        "class without training images",
        "training stops with an error: add training images, or remove the class",
    ),
    "empty_folder": ProblemKind(
        "empty folder", "left out as a class: add images, or remove the folder"
    ),
    "similar_labels": ProblemKind(
        "similar labels", "they count as different classes: rename them if they are the same"
    ),
    "single_image_class": ProblemKind(
        "class with a single image", "add images: one is not enough for validation or testing"
    ),
    "small_class": ProblemKind(
        "small class", "add images: the accuracy of a class with few images is unreliable"
    ),
    "duplicate": ProblemKind("duplicate", "they count twice in training: keep one copy"),
    "near_duplicate": ProblemKind(
        "near duplicate", "they count twice, and a random split may separate them"
    ),
    "imbalance": ProblemKind(
        "imbalance",
        "compare results per class; try --set pretrain.batches=long_tail",
        harmful=False,
    ),
    "wrong_extension": ProblemKind(
        "wrong extension",
        "the content determines the format here, but other programs may fail",
        harmful=False,
    ),
    "known_issue": ProblemKind("known issue", "see docs/guide/datasets.md", harmful=False),
    "skipped_file": ProblemKind("skipped file", "not read", harmful=False),
    "hidden": ProblemKind("hidden", "not read", harmful=False),
    "unread_column": ProblemKind("unread column", "not read", harmful=False),
}


def problem_title(kind: str) -> str:
    """Return the display text for a kind of problem."""
    return PROBLEM_KINDS[kind].title if kind in PROBLEM_KINDS else kind


@dataclass(frozen=True)
class Problem:
    """A problem with one file, class, group or column.

    Attributes:
        kind: A key of `PROBLEM_KINDS`.
        name: The image, class, group, file or column.
        detail: A sentence that describes it.
        same_as: For duplicates: the first image with this content, or the similar one.
    """

    kind: str
    name: str
    detail: str
    same_as: str = ""


class Opener(Protocol):
    """Opens one image as RGB with its orientation applied."""

    def __call__(self, index: int, at_least: int = 0, sha256: str = "") -> Image.Image:
        """Open image `index`. If `at_least` > 0, a JPEG may be decoded at a reduced size, but
        never with a short side below `at_least` pixels. With the `sha256` that `file_hash` has
        returned, a file that has changed since then is an error."""


@dataclass(frozen=True, eq=False)
class ImageDataset:
    """Labelled images, sorted by name.

    Attributes:
        names: Unique and stable names: paths relative to the root, or for example "digits/0001".
        labels: Index into `classes` for each image, int64.
        classes: Names of the classes, sorted.
        splits: "train", "val" or "test" for each image; None if the data has no splits.
        groups: Group of each image, which stays in one split; "" means no group.
        folds: Fold in which each image is tested; None if the data has no folds.
        open: Returns an image by index.
        file_hash: Returns the SHA-256 of an image's content by index.
        native_size: Median short side in pixels.
        view_defaults: Values of `DataRecipe` fields that suit this dataset.
        notes: Files, folders and columns that were skipped.
        paths: Paths of the files; None if the images are not files.
        content: Returns the bytes of an image's file by index, if the images are files inside of
            other files; None otherwise.
        checked: Whether the images were decoded when the dataset was written, so that training
            need not decode all of them before it starts.
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
    view_defaults: Mapping[str, Value] = field(default_factory=dict)
    notes: tuple[Problem, ...] = ()
    paths: tuple[Path, ...] | None = None
    content: Callable[[int], bytes] | None = None
    checked: bool = False

    def __len__(self) -> int:
        return len(self.names)


@dataclass(frozen=True)
class _Subset:
    """Opens the images of a subset by their index in it."""

    images: ImageDataset
    indices: NDArray[np.int64]

    def open(self, index: int, at_least: int = 0, sha256: str = "") -> Image.Image:
        return self.images.open(int(self.indices[index]), at_least, sha256)

    def file_hash(self, index: int) -> str:
        return self.images.file_hash(int(self.indices[index]))

    def content(self, index: int) -> bytes:
        assert self.images.content is not None
        return self.images.content(int(self.indices[index]))


@dataclass(frozen=True)
class KnownHashes:
    """Hashes every image once: all that a command records or caches has the same hashes."""

    file_hash: Callable[[int], str]
    known: dict[int, str] = field(default_factory=dict)

    def __call__(self, index: int) -> str:
        if index not in self.known:
            self.known[index] = self.file_hash(index)
        return self.known[index]


def without(images: ImageDataset, indices: Iterable[int]) -> ImageDataset:
    """Return the dataset without these images.

    Raises:
        UserError: A class would lose its last image.
    """
    remaining = np.setdiff1d(np.arange(len(images)), np.fromiter(indices, dtype=np.int64))
    subset = _Subset(images, remaining)
    labels = images.labels[remaining]
    counts = np.bincount(labels, minlength=len(images.classes))
    if len(empty := np.flatnonzero(counts == 0)):
        raise UserError(
            f"class {images.classes[empty[0]]!r} has no usable image left: "
            "repair its images, or remove the class"
        )

    def select(column: NDArray[Any] | None) -> NDArray[Any] | None:
        return None if column is None else column[remaining]

    return replace(
        images,
        names=tuple(images.names[index] for index in remaining),
        labels=labels,
        splits=select(images.splits),
        groups=select(images.groups),
        folds=select(images.folds),
        open=subset.open,
        file_hash=subset.file_hash,
        paths=None if images.paths is None else tuple(images.paths[i] for i in remaining),
        content=None if images.content is None else subset.content,
    )


def content_digest(images: ImageDataset) -> str:
    """Return the SHA-256 over names, labels, contents, splits, groups and folds.

    Equal digests mean equal data.
    """
    digest = hashlib.sha256()
    for index, name in enumerate(images.names):
        columns = (images.splits, images.groups, images.folds)
        cells = ["" if column is None else str(column[index]) for column in columns]
        label = images.classes[images.labels[index]]
        line = [name, label, images.file_hash(index), *cells]
        digest.update("\0".join(line).encode() + b"\n")
    return digest.hexdigest()
