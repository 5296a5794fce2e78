"""Assign images to train, val and test: stratified and seeded, without separating groups.

scikit-learn's `StratifiedGroupKFold` is not used, because it does not guarantee that every class
has training images, and because another assignment would prevent old runs from being resumed.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from scs_supcon.data.dataset import SPLITS, ImageDataset
from scs_supcon.errors import UserError, did_you_mean
from scs_supcon.io.csv import csv_text
from scs_supcon.io.records import csv_rows

Splits = NDArray[np.str_]
Counts = NDArray[np.int64]
Distance = Callable[[Counts, Counts], NDArray[np.float64]]


class SplitColumns(Protocol):
    """The columns of a dataset that decide its splits; `ImageDataset` has them."""

    @property
    def labels(self) -> NDArray[np.int64]: ...
    @property
    def classes(self) -> tuple[str, ...]: ...
    @property
    def splits(self) -> NDArray[np.str_] | None: ...
    @property
    def groups(self) -> NDArray[np.str_] | None: ...
    @property
    def folds(self) -> NDArray[np.int64] | None: ...
    def __len__(self) -> int: ...


SPLIT_TITLES = {"train": "training", "val": "validation", "test": "test"}
NO_TEST_SPLIT = (
    "There is no test split: the validation images were also used to choose the classifier and the "
    "temperature, so these numbers are optimistic."
)
UNUSED = "unused"  # split of images that `keep_per_class` leaves out
ATTEMPTS = 5  # random orders of the groups
ROUNDS = 4  # maximum number of times that each group is assigned


def assign_splits(images: SplitColumns, val_share: float, test_share: float, seed: int) -> Splits:
    """Return the splits of the data, with missing ones assigned.

    Without splits, each class is divided into train, val and test by the shares. With a training
    split but no validation split, `val_share` of each class's training images become validation
    images. A class with two or more training images has at least one validation image; a class
    with one image keeps it in train. Groups are never separated, so the shares may not be met
    exactly, but every class has training images.

    Returns:
        "train", "val" or "test" for each image.

    Raises:
        UserError: There are too few classes, or a class has no training images.
    """
    if not (val_share >= 0 and test_share >= 0 and val_share + test_share < 1):
        raise UserError(
            f"val_share and test_share must not be negative and their sum must be below 1, "
            f"got {val_share} and {test_share}"
        )
    if len(images.classes) < 2:
        raise UserError(
            f"there is only one class ({images.classes[0]!r}): a classifier needs at least two"
        )
    given = images.splits
    if given is None or set(given.tolist()) == {"train"}:
        splits = _divide(images, np.arange(len(images)), (val_share, test_share), seed)
    else:
        splits = given.astype("<U5")
        if "train" not in splits:
            counts = ", ".join(f"{np.sum(splits == name)} {name}" for name in np.unique(splits))
            raise UserError(f"the data has no training images ({counts}): add images to train")
        if "val" not in splits:
            train = np.flatnonzero(splits == "train")
            splits[train] = _divide(images, train, (val_share, 0.0), seed)
    _check_training_images(images, splits)
    return splits


def assign_folds(images: SplitColumns, folds: int, seed: int) -> NDArray[np.int64]:
    """Return the fold in which each image is tested: 0 to `folds` − 1.

    A fold column of the data takes precedence; its values are renumbered from 0 in sorted order.
    Otherwise every class is divided evenly, groups stay together, and the folds have about the same
    size. Splits of the data are not used: every image is tested once.

    Raises:
        UserError: The number of folds does not fit the data, or all images of a class are in one
            fold, so that it would be tested without training images.
    """
    if folds < 2 or folds > len(images):
        raise UserError(
            f"--folds must be between 2 and the number of images ({len(images)}), got {folds}"
        )
    if images.folds is not None:
        given, numbers = np.unique(images.folds, return_inverse=True)
        if len(given) != folds:
            raise UserError(
                f"the fold column of the data has {len(given)} folds, but --folds is {folds}: "
                f"use --folds {len(given)}, or remove the column"
            )
    else:
        totals = np.bincount(images.labels, minlength=len(images.classes))
        members = np.arange(len(images))
        numbers = _closest_assignment(images, members, _even_sizes(totals, folds), seed, _distance)
    for label, name in enumerate(images.classes):
        if len(set(numbers[images.labels == label].tolist())) < 2:
            raise UserError(
                f"all images of class {name!r} are in one fold, so it has no training images when "
                "that fold is tested: add images that are no duplicates and belong to another group"
            )
    return numbers.astype(np.int64)


def divide_into_folds(
    images: SplitColumns, members: NDArray[np.int64], folds: int, seed: int
) -> NDArray[np.int64]:
    """Return the fold of each of some images: 0 to `folds` − 1.

    Every class is divided evenly and groups stay together. A class with a single image is in one
    fold.
    """
    totals = np.bincount(images.labels[members], minlength=len(images.classes))
    numbers = _closest_assignment(images, members, _even_sizes(totals, folds), seed, _distance)
    return numbers.astype(np.int64)


def fold_splits(images: SplitColumns, fold: int, folds: int, val_share: float, seed: int) -> Splits:
    """Return splits with one fold for testing, and `val_share` of the other images in val."""
    if len(images.classes) < 2:
        return assign_splits(images, val_share, 0.0, seed)  # raises the error
    splits = np.full(len(images), "test", dtype="<U5")
    others = np.flatnonzero(assign_folds(images, folds, seed) != fold)
    splits[others] = _divide(images, others, (val_share, 0.0), seed)
    _check_training_images(images, splits)
    return splits


def fold_training_images(
    images: SplitColumns, fold: int, folds: int, val_share: float, seed: int
) -> Splits:
    """Return `fold_splits` of the images outside of the test split, which is "unused".

    Without a test split this is `fold_splits` of all images.
    """
    given = images.splits
    used = np.arange(len(images)) if given is None else np.flatnonzero(given != "test")
    splits = np.full(len(images), UNUSED)
    splits[used] = fold_splits(_Members.of(images, used), fold, folds, val_share, seed)
    return splits


def keep_per_class(
    labels: NDArray[np.int64], splits: Splits, count: int, val_share: float, seed: int
) -> Splits:
    """Return the splits with `count` images of each class in train and val together.

    The others get the split "unused"; test images do not change. `val_share` of the count, but at
    least one image, are validation images. The images are chosen at random, such that a smaller
    count keeps a part of the images of a larger one. A class with fewer images keeps them all.
    """
    order = np.random.default_rng((seed, 1)).permutation(len(labels))
    kept = splits.astype("<U6")
    train, val, _ = _split_sizes(count, val_share, 0.0)
    for label in np.unique(labels):
        members = order[labels[order] == label]
        for split, size in (("train", int(train)), ("val", int(val))):
            kept[members[splits[members] == split][size:]] = UNUSED
    return kept


def keep_long_tail(
    labels: NDArray[np.int64], splits: Splits, imbalance: float, seed: int
) -> Splits:
    """Return the splits with a long-tailed training set; images left out are "unused".

    Class k of C keeps n · imbalance^(−k / (C − 1)) training images, where n is the size of the
    largest class, but at least one, and never more than it has. The classes are in the order of
    their labels, as in CIFAR-LT; the images are chosen at random. Other splits do not change.
    """
    order = np.random.default_rng((seed, 2)).permutation(len(labels))
    kept = splits.astype("<U6")
    classes = int(labels.max()) + 1
    largest = int(np.bincount(labels[splits == "train"], minlength=classes).max())
    for label in range(classes):
        size = largest * imbalance ** (-label / max(1, classes - 1))
        members = order[(labels[order] == label) & (splits[order] == "train")]
        kept[members[max(1, int(size + 1e-9)) :]] = UNUSED
    return kept


def write_splits_csv(path: Path, images: ImageDataset, splits: Splits) -> None:
    """Write the CSV `name,label,split[,group,fold],sha256`; equal splits result in equal bytes."""
    columns: dict[str, list[str]] = {
        "name": list(images.names),
        "label": [images.classes[label] for label in images.labels],
        "split": splits.tolist(),
    }
    if images.groups is not None:
        columns["group"] = images.groups.tolist()
    if images.folds is not None:
        columns["fold"] = [str(fold) for fold in images.folds]
    columns["sha256"] = [images.file_hash(index) for index in range(len(images))]
    text = csv_text([columns, *zip(*columns.values(), strict=True)])
    path.write_text(text, encoding="utf-8", newline="")


def read_splits_csv(path: Path, images: ImageDataset, splits: Splits | None = None) -> Splits:
    """Return the splits of these images from a CSV file.

    Raises:
        UserError: Names, labels or contents differ from the file, or the splits if they are given.
    """
    rows = csv_rows(path, ("name", "label", "split", "sha256"))
    row_of = {row["name"]: row for row in rows}
    both = [(index, row_of[name]) for index, name in enumerate(images.names) if name in row_of]
    labels = [images.classes[label] for label in images.labels]
    differences = {
        "added": sorted(set(images.names) - row_of.keys()),
        "removed": sorted(row_of.keys() - set(images.names)),
        "with another label": [row["name"] for i, row in both if row["label"] != labels[i]],
        "changed": [row["name"] for i, row in both if row["sha256"] != images.file_hash(i)],
    }
    if splits is not None and not any(differences.values()):
        moved = [row["name"] for i, row in both if row["split"] != splits[i]]
        differences["in another split"] = moved
    if any(differences.values()):
        listed = ", ".join(
            f"{len(names)} {kind} ({names[0]!r}{', …' if len(names) > 1 else ''})"
            for kind, names in differences.items()
            if names
        )
        raise UserError(
            f"the images are not those that {path.parent} started with: {listed}. Restore them, or "
            "start another run with another --out"
        )
    return np.array([row_of[name]["split"] for name in images.names])


def _check_training_images(images: SplitColumns, splits: Splits) -> None:
    counts = np.bincount(images.labels[splits == "train"], minlength=len(images.classes))
    trained_names = [images.classes[label] for label in np.flatnonzero(counts)]
    for label in np.flatnonzero(counts == 0):
        name = images.classes[label]
        split = str(splits[images.labels == label][0])
        raise UserError(
            f"class {name!r} is in {split} but has no training image: add images to train, or "
            f"remove it from {split}{did_you_mean(name, trained_names)}"
        )


@dataclass(frozen=True, eq=False)
class _Members:
    """Some images of a dataset, without their splits."""

    labels: NDArray[np.int64]
    classes: tuple[str, ...]
    groups: NDArray[np.str_] | None
    folds: NDArray[np.int64] | None
    splits: NDArray[np.str_] | None = None

    @classmethod
    def of(cls, images: SplitColumns, indices: NDArray[np.int64]) -> "_Members":
        groups = None if images.groups is None else images.groups[indices]
        folds = None if images.folds is None else images.folds[indices]
        return cls(images.labels[indices], images.classes, groups, folds)

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True)
class _ImageGroup:
    """Images that stay together: their classes, and the number of images of each class."""

    labels: Counts
    counts: Counts


def _divide(
    images: SplitColumns, members: NDArray[np.int64], shares: tuple[float, float], seed: int
) -> Splits:
    """Return a split for each member, according to the shares."""
    totals = np.bincount(images.labels[members], minlength=len(images.classes))
    targets = np.stack([_split_sizes(int(total), *shares) for total in totals], axis=1)
    return np.array(SPLITS)[_closest_assignment(images, members, targets, seed, _split_distance)]


def _closest_assignment(
    images: SplitColumns, members: NDArray[np.int64], targets: Counts, seed: int, distance: Distance
) -> Counts:
    """Assign whole groups in several random orders and return the best assignment.

    Returns:
        The part of each member, as a row index of `targets` (parts, classes).
    """
    numbers = _group_numbers(images, members)
    groups = _image_groups(numbers, images.labels[members])
    rng = np.random.default_rng(seed)
    best, smallest = _assign(groups, rng.permutation(len(groups)), targets, distance)
    for _ in range(ATTEMPTS - 1):
        if smallest == 0:  # always the case without groups
            break
        parts, value = _assign(groups, rng.permutation(len(groups)), targets, distance)
        if value < smallest:
            best, smallest = parts, value
    return best[numbers]


def _assign(
    groups: list[_ImageGroup], order: Counts, targets: Counts, distance: Distance
) -> tuple[Counts, float]:
    """Assign each group to the best part, repeat until no group moves, and return the distance."""
    sizes = np.zeros_like(targets)  # images (part, class)
    parts = np.full(len(groups), -1)
    usable = np.flatnonzero(targets.sum(axis=1))
    one_hot = np.eye(len(targets), dtype=np.int64)[usable, :, None]
    for _ in range(ROUNDS):
        before = parts.copy()
        for group in order:
            labels, counts = groups[group].labels, groups[group].counts
            if parts[group] >= 0:
                sizes[parts[group], labels] -= counts
            choices = sizes[:, labels] + one_hot * counts  # (choice, part, class)
            parts[group] = usable[np.argmin(distance(choices, targets[:, labels]))]
            sizes[parts[group], labels] += counts
        value = float(distance(sizes, targets))
        if value == 0 or np.array_equal(parts, before):
            break
    return parts, value


def _split_distance(sizes: Counts, targets: Counts) -> NDArray[np.float64]:
    """Return `_distance` with penalties for classes without training or validation images."""
    untrained = (sizes[..., 0, :] == 0) & (targets[0] > 0)
    unvalidated = (sizes[..., 1, :] == 0) & (targets[1] > 0)
    distance: NDArray[np.float64] = (
        _distance(sizes, targets) + 1e9 * untrained.sum(axis=-1) + 10 * unvalidated.sum(axis=-1)
    )
    return distance


def _distance(sizes: Counts, targets: Counts) -> NDArray[np.float64]:
    """Return the chi-squared distance of sizes (…, part, class) from the targets."""
    terms = (sizes - targets) ** 2 / np.maximum(targets, 1)
    distance: NDArray[np.float64] = terms.sum(axis=(-2, -1))
    return distance


def _group_numbers(images: SplitColumns, members: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the number of each image's group; an image without a group forms a group alone."""
    if images.groups is None:
        return np.arange(len(members))
    groups = images.groups[members]
    single = np.array([f"\0{position}" for position in range(len(members))])
    return np.unique(np.where(groups == "", single, groups), return_inverse=True)[1]


def _image_groups(numbers: NDArray[np.int64], labels: NDArray[np.int64]) -> list[_ImageGroup]:
    pairs, counts = np.unique(np.stack([numbers, labels], axis=1), axis=0, return_counts=True)
    ends = np.cumsum(np.bincount(pairs[:, 0]))[:-1]
    contents = zip(np.split(pairs[:, 1], ends), np.split(counts, ends), strict=True)
    return [_ImageGroup(*content) for content in contents]


def _split_sizes(total: int, val_share: float, test_share: float) -> Counts:
    """Return the number of train, val and test images of a class; train has at least one."""
    test = min(round(total * test_share), max(0, total - 1))
    spare = max(0, total - test - 1)
    val = min(max(1, round(total * val_share)), spare) if val_share > 0 else 0
    return np.array([total - test - val, val, test])


def _even_sizes(totals: Counts, folds: int) -> Counts:
    """Return images (fold, class) divided evenly; remainders go to the folds in turn."""
    before = np.cumsum(totals) - totals
    order = (np.arange(folds)[:, None] - before) % folds
    return totals // folds + (order < totals % folds)
