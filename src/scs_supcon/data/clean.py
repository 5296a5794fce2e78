"""Create a clean table of images from a diagnosis (`scs doctor --fix`).

Images are not changed or deleted: the table lists the paths of the images to use. It leaves out
unusable images, redundant copies, images that occur with two labels, and classes without training
images. Among several copies, the one in the test split is kept, so that results remain comparable.
Near duplicates and groups are moved to the split that contains most of them.
"""

import os
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from scs_supcon.data.audit import UNUSABLE, Diagnosis, keep_duplicates_together
from scs_supcon.data.dataset import ImageDataset, Problem, without
from scs_supcon.data.splits import assign_splits
from scs_supcon.errors import UserError
from scs_supcon.io.csv import csv_text, quoted_cell
from scs_supcon.recipe import DataRecipe

# Display text of the keys of `CleanDataset.left_out`.
LEFT_OUT_REASONS = {
    "unusable": "unusable",
    "copy": "copies",
    "two_labels": "with two labels",
    "untrained_class": "in classes without training images",
}
_KEEP_ORDER = ("test", "val", "train", "")  # the preferred split of the copy to keep comes first


@dataclass(frozen=True)
class CleanDataset:
    """The result of `clean`.

    Attributes:
        images: The remaining images; each has a split.
        left_out: Number of images left out, for each key of `LEFT_OUT_REASONS`.
        moved: Number of images that changed their split.
    """

    images: ImageDataset
    left_out: dict[str, int]
    moved: int


def clean(diagnosis: Diagnosis, seed: int = 0) -> CleanDataset:
    """Return the images to use, with their splits.

    Args:
        diagnosis: The diagnosis of the dataset.
        seed: Seed for assigning splits if the data has none; the shares are the defaults of
            training.

    Raises:
        UserError: The images are not files, or fewer than two classes would remain.
    """
    images = diagnosis.images
    if images.paths is None:
        raise UserError("--fix needs image files; built-in datasets have none")
    reasons, kept_copy = _reasons_and_kept_copies(diagnosis)
    usable = _without_images_and_empty_classes(images, reasons.keys())
    grouped = keep_duplicates_together(usable, list(_near_duplicates(diagnosis, kept_copy)))
    if grouped.splits is None:
        splits = assign_splits(grouped, _default("val_share"), _default("test_share"), seed)
        moved = 0
    else:
        splits = _one_split_per_group(grouped, grouped.splits)
        moved = int((splits != grouped.splits).sum())
    chosen = replace(grouped, splits=splits, folds=_one_fold_per_group(grouped))
    untrained = _without_training_images(chosen)
    counts = Counter(reasons.values())
    if untrained:
        counts["untrained_class"] = len(untrained)
        chosen = _without_images_and_empty_classes(chosen, untrained)
    return CleanDataset(chosen, dict(counts), moved)


def table_csv(dataset: CleanDataset, folder: Path) -> str:
    """Return the CSV `image_path,label,split[,group][,fold]`, with paths relative to `folder`."""
    images = dataset.images
    assert images.paths is not None
    assert images.splits is not None
    columns = {
        "image_path": [_relative(path, folder) for path in images.paths],
        "label": [images.classes[label] for label in images.labels],
        "split": images.splits.tolist(),
    }
    if images.groups is not None:
        columns["group"] = images.groups.tolist()
    if images.folds is not None:
        columns["fold"] = [str(fold) for fold in images.folds]
    rows = zip(*columns.values(), strict=True)
    return csv_text([columns, *(map(quoted_cell, row) for row in rows)])


def _reasons_and_kept_copies(diagnosis: Diagnosis) -> tuple[dict[int, str], dict[str, str]]:
    """Return the reason for each index to leave out, and the name to keep for each copy."""
    images = diagnosis.images
    index_of = {name: index for index, name in enumerate(images.names)}
    reasons: dict[int, str] = {}
    copies: dict[str, list[int]] = defaultdict(list)
    for problem in diagnosis.problems:
        if problem.kind in UNUSABLE:
            reasons[index_of[problem.name]] = "unusable"
        elif problem.kind.startswith("duplicate"):
            copies[problem.same_as].append(index_of[problem.name])
    training_counts = Counter(images.labels[_splits(images) == "train"].tolist())
    kept_copy: dict[str, str] = {}
    for first, others in copies.items():
        duplicates = [index_of[first], *others]
        if len({int(images.labels[index]) for index in duplicates}) > 1:
            reasons |= dict.fromkeys(duplicates, "two_labels")
            continue
        copy = _copy_to_keep(images, duplicates, training_counts)
        reasons |= {index: "copy" for index in duplicates if index != copy}
        kept_copy |= {images.names[index]: images.names[copy] for index in duplicates}
    return reasons, kept_copy


def _near_duplicates(diagnosis: Diagnosis, kept_copy: dict[str, str]) -> Iterator[Problem]:
    """Yield the near duplicates, with the names of the copies to keep."""
    for problem in diagnosis.problems:
        if problem.kind.startswith("near"):
            name, other = (kept_copy.get(name, name) for name in (problem.name, problem.same_as))
            yield replace(problem, name=name, same_as=other)


def _copy_to_keep(
    images: ImageDataset, duplicates: list[int], training_counts: Counter[int]
) -> int:
    """Return the index of the copy to keep, such that its class keeps a training image."""
    splits = _splits(images)
    label = int(images.labels[duplicates[0]])
    in_train = [index for index in duplicates if splits[index] == "train"]
    if in_train and len(in_train) == training_counts[label]:
        copy = in_train[0]
    else:
        copy = min(duplicates, key=lambda index: (_KEEP_ORDER.index(str(splits[index])), index))
    training_counts[label] -= len(in_train) - (copy in in_train)
    return copy


def _without_images_and_empty_classes(
    images: ImageDataset, left_out: Collection[int]
) -> ImageDataset:
    remaining = np.ones(len(images), dtype=bool)
    remaining[list(left_out)] = False
    labels = np.unique(images.labels[remaining])
    if len(labels) < 2:
        raise UserError("fewer than two classes have usable images: a classifier needs two")
    # All images of a removed class are left out below, so their label does not matter.
    new_labels = np.zeros(len(images.classes), dtype=np.int64)
    new_labels[labels] = np.arange(len(labels))
    renumbered = replace(
        images,
        labels=new_labels[images.labels],
        classes=tuple(images.classes[label] for label in labels),
    )
    return without(renumbered, left_out)


def _one_split_per_group(images: ImageDataset, given: NDArray[np.str_]) -> NDArray[np.str_]:
    """Return splits with each group in the split of most of it; classes keep training images."""
    splits = given.copy()
    for members in _groups(images):
        counts = Counter(sorted(given[members], key=_KEEP_ORDER.index))
        splits[members] = counts.most_common(1)[0][0]
    for label in range(len(images.classes)):
        in_class = images.labels == label
        trained_before = in_class & (given == "train")
        if trained_before.any() and not (splits[in_class] == "train").any():
            splits[trained_before] = "train"
            for members in _groups(images):
                if trained_before[members].any():
                    splits[members] = "train"
    return splits


def _one_fold_per_group(images: ImageDataset) -> NDArray[np.int64] | None:
    if images.folds is None:
        return None
    folds = images.folds.copy()
    for members in _groups(images):
        folds[members] = folds[members[0]]
    return folds


def _groups(images: ImageDataset) -> Iterator[NDArray[np.int64]]:
    """Yield the indices of each group with several images."""
    if images.groups is None:
        return
    members: dict[str, list[int]] = defaultdict(list)
    for index, group in enumerate(images.groups.tolist()):
        if group:
            members[group].append(index)
    yield from (np.array(indices) for indices in members.values() if len(indices) > 1)


def _without_training_images(images: ImageDataset) -> list[int]:
    """Return the indices of the images whose class has no training images."""
    trained = np.unique(images.labels[_splits(images) == "train"])
    return np.flatnonzero(~np.isin(images.labels, trained)).tolist()


def _splits(images: ImageDataset) -> NDArray[np.str_]:
    return np.full(len(images), "") if images.splits is None else images.splits


def _default(field: str) -> float:
    return float(DataRecipe.model_fields[field].default)


def _relative(path: Path, folder: Path) -> str:
    """Return a path relative to a folder, with forward slashes."""
    path = path.parent.resolve() / path.name  # ".." after a symbolic link leads elsewhere
    try:
        return Path(os.path.relpath(path, folder.resolve())).as_posix()
    except ValueError:  # another drive
        return path.as_posix()
