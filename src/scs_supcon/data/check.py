"""Look at every image before training: what cannot be read, what occurs twice, what is alone.

Kinds of `Problem`: "unreadable", "truncated", "too large" (these images cannot be used:
`unusable` gives their indices for `without`); "duplicate", "duplicate across splits", "duplicate
across folds", "duplicate with another label"; "one image" (a class with a single training
image); "group across splits", "group across folds"; and what reading left aside: "skipped file",
"unread column", "empty folder". `doctor.py` adds more.
"""

import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from scs_supcon.data.dataset import ImageDataset, Problem
from scs_supcon.data.image_io import ImageError

UNUSABLE = ("unreadable", "truncated", "too large")


def check_images(
    images: ImageDataset, workers: int, progress: Callable[[int], None] | None = None
) -> list[Problem]:
    """Decode every image once, to its last byte, and say what is wrong.

    Args:
        images: The set; duplicates across splits or folds are seen only if it has them.
        workers: Threads (decoding frees the interpreter); 0 means one.
        progress: Called with the number of images done.
    """
    hashes: list[str | None] = []
    problems = list(images.notes)
    with warnings.catch_warnings(), ThreadPoolExecutor(max(1, workers)) as pool:
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # a Problem names it
        for done, (content, problem) in enumerate(
            pool.map(partial(_look_at, images), range(len(images))), start=1
        ):
            hashes.append(content)
            if problem is not None:
                problems.append(problem)
            if progress is not None:
                progress(done)
    problems += duplicates(images, hashes)
    problems += single_image_classes(training_labels(images, hashes), images.classes)
    problems += torn_groups(images)
    return problems


def unusable(images: ImageDataset, problems: Iterable[Problem]) -> list[int]:
    """Indices of the images that cannot be decoded, ready for `without`."""
    bad = {problem.name for problem in problems if problem.kind in UNUSABLE}
    return [index for index, name in enumerate(images.names) if name in bad]


def single_image_classes(
    training_labels: NDArray[np.int64], classes: tuple[str, ...]
) -> list[Problem]:
    """Name the classes with a single training image; worth asking again after a split."""
    counts = np.bincount(training_labels, minlength=len(classes))
    return [
        Problem(
            "one image",
            classes[label],
            f"class {classes[label]!r} has one training image: its only positives are its views",
        )
        for label in np.flatnonzero(counts == 1)
    ]


def keep_duplicates_together(images: ImageDataset, problems: Iterable[Problem]) -> ImageDataset:
    """Give equal images one group, so that a split drawn later cannot tear them apart."""
    pairs = [(problem.same_as, problem.name) for problem in problems if problem.same_as]
    index = {name: position for position, name in enumerate(images.names)}
    groups = (
        np.full(len(images), "", dtype=object)
        if images.groups is None
        else images.groups.astype(object)
    )
    for first, again in pairs:
        if first not in index or again not in index:
            continue
        a, b = index[first], index[again]
        joined = groups[a] or groups[b] or f"same as {first}"
        for old in (groups[a], groups[b]):
            if old:
                groups[groups == old] = joined
        groups[[a, b]] = joined
    return replace(images, groups=groups.astype(np.str_)) if pairs else images


def _look_at(images: ImageDataset, index: int) -> tuple[str | None, Problem | None]:
    try:
        images.open(index, 1)  # a JPEG at an eighth of its size: faster, and as thorough
    except ImageError as error:
        return None, Problem(error.kind, images.names[index], str(error))
    return images.file_hash(index), None


def duplicates(images: ImageDataset, hashes: Sequence[str | None]) -> Iterator[Problem]:
    """Name the images whose content an earlier one has; None stands for an unusable image."""
    first_with: dict[str, int] = {}
    for index, content in enumerate(hashes):
        if content is None:
            continue
        first = first_with.setdefault(content, index)
        if first == index:
            continue
        kind, where = kind_of_duplicate(images, first, index)
        name, same_as = images.names[index], images.names[first]
        yield Problem(kind, name, f"{name} has the same content as {same_as}{where}", same_as)


def kind_of_duplicate(images: ImageDataset, first: int, again: int) -> tuple[str, str]:
    """Say what kind of duplicate an image is of an earlier one, and what makes it worse."""
    a, b = (images.classes[images.labels[index]] for index in (first, again))
    if a != b:
        return "duplicate with another label", f", but is labelled {b!r} instead of {a!r}"
    if images.splits is not None and images.splits[first] != images.splits[again]:
        return "duplicate across splits", f" ({images.splits[first]})"
    if images.folds is not None and images.folds[first] != images.folds[again]:
        return "duplicate across folds", f" (fold {images.folds[first]})"
    return "duplicate", ""


def training_labels(images: ImageDataset, hashes: Sequence[str | None]) -> NDArray[np.int64]:
    """Labels of the usable images to train on: all of them where there are no splits."""
    readable = np.array([content is not None for content in hashes])
    train = True if images.splits is None else images.splits == "train"
    labels: NDArray[np.int64] = images.labels[readable & train]
    return labels


def torn_groups(images: ImageDataset) -> Iterator[Problem]:
    """Name the groups that lie in more than one split, or in more than one fold."""
    for parts, given in (("splits", images.splits), ("folds", images.folds)):
        if images.groups is None or given is None:
            continue
        found: dict[str, set[str]] = defaultdict(set)
        for group, part in zip(images.groups.tolist(), given.tolist(), strict=True):
            found[group].add(str(part))
        for group, where in sorted(found.items()):
            if group and len(where) > 1:
                listed = " and ".join(sorted(where))
                detail = f"group {group!r} lies in the {parts} {listed}: results will flatter"
                yield Problem(f"group across {parts}", group, detail)
