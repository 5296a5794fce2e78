"""Look at every picture before training: what cannot be read, what occurs twice, what is alone.

Kinds of `Problem`: "unreadable", "truncated", "too large" (these pictures cannot be used:
`unusable` gives their indices for `without`); "duplicate", "duplicate across splits", "duplicate
across folds", "duplicate with another label"; "one picture" (a class with a single training
picture); "group across splits", "group across folds"; and what reading left aside: "skipped file",
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

from scs_supcon.data.opening import PictureError
from scs_supcon.data.pictures import Pictures, Problem

UNUSABLE = ("unreadable", "truncated", "too large")


def check_pictures(
    pictures: Pictures, workers: int, progress: Callable[[int], None] | None = None
) -> list[Problem]:
    """Decode every picture once, to its last byte, and say what is wrong.

    Args:
        pictures: The set; duplicates across splits or folds are seen only if it has them.
        workers: Threads (decoding frees the interpreter); 0 means one.
        progress: Called with the number of pictures done.
    """
    hashes: list[str | None] = []
    problems = list(pictures.notes)
    with warnings.catch_warnings(), ThreadPoolExecutor(max(1, workers)) as pool:
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # a Problem names it
        for done, (content, problem) in enumerate(
            pool.map(partial(_look_at, pictures), range(len(pictures))), start=1
        ):
            hashes.append(content)
            if problem is not None:
                problems.append(problem)
            if progress is not None:
                progress(done)
    problems += duplicates(pictures, hashes)
    problems += lonely_classes(training_labels(pictures, hashes), pictures.classes)
    problems += torn_groups(pictures)
    return problems


def unusable(pictures: Pictures, problems: Iterable[Problem]) -> list[int]:
    """Indices of the pictures that cannot be decoded, ready for `without`."""
    bad = {problem.name for problem in problems if problem.kind in UNUSABLE}
    return [index for index, name in enumerate(pictures.names) if name in bad]


def lonely_classes(training_labels: NDArray[np.int64], classes: tuple[str, ...]) -> list[Problem]:
    """Name the classes with a single training picture; worth asking again after a split."""
    counts = np.bincount(training_labels, minlength=len(classes))
    return [
        Problem(
            "one picture",
            classes[label],
            f"class {classes[label]!r} has one training picture: its only positives are its views",
        )
        for label in np.flatnonzero(counts == 1)
    ]


def keep_duplicates_together(pictures: Pictures, problems: Iterable[Problem]) -> Pictures:
    """Give equal pictures one group, so that a split drawn later cannot tear them apart."""
    pairs = [(problem.same_as, problem.name) for problem in problems if problem.same_as]
    index = {name: position for position, name in enumerate(pictures.names)}
    groups = (
        np.full(len(pictures), "", dtype=object)
        if pictures.groups is None
        else pictures.groups.astype(object)
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
    return replace(pictures, groups=groups.astype(np.str_)) if pairs else pictures


def _look_at(pictures: Pictures, index: int) -> tuple[str | None, Problem | None]:
    try:
        pictures.open(index, 1)  # a JPEG at an eighth of its size: faster, and as thorough
    except PictureError as error:
        return None, Problem(error.kind, pictures.names[index], str(error))
    return pictures.file_hash(index), None


def duplicates(pictures: Pictures, hashes: Sequence[str | None]) -> Iterator[Problem]:
    """Name the pictures whose content an earlier one has; None stands for an unusable picture."""
    first_with: dict[str, int] = {}
    for index, content in enumerate(hashes):
        if content is None:
            continue
        first = first_with.setdefault(content, index)
        if first == index:
            continue
        kind, where = kind_of_duplicate(pictures, first, index)
        name, same_as = pictures.names[index], pictures.names[first]
        yield Problem(kind, name, f"{name} has the same content as {same_as}{where}", same_as)


def kind_of_duplicate(pictures: Pictures, first: int, again: int) -> tuple[str, str]:
    """Say what kind of duplicate a picture is of an earlier one, and what makes it worse."""
    a, b = (pictures.classes[pictures.labels[index]] for index in (first, again))
    if a != b:
        return "duplicate with another label", f", but is labelled {b!r} instead of {a!r}"
    if pictures.splits is not None and pictures.splits[first] != pictures.splits[again]:
        return "duplicate across splits", f" ({pictures.splits[first]})"
    if pictures.folds is not None and pictures.folds[first] != pictures.folds[again]:
        return "duplicate across folds", f" (fold {pictures.folds[first]})"
    return "duplicate", ""


def training_labels(pictures: Pictures, hashes: Sequence[str | None]) -> NDArray[np.int64]:
    """Labels of the usable pictures to train on: all of them where there are no splits."""
    readable = np.array([content is not None for content in hashes])
    train = True if pictures.splits is None else pictures.splits == "train"
    labels: NDArray[np.int64] = pictures.labels[readable & train]
    return labels


def torn_groups(pictures: Pictures) -> Iterator[Problem]:
    """Name the groups that lie in more than one split, or in more than one fold."""
    for parts, given in (("splits", pictures.splits), ("folds", pictures.folds)):
        if pictures.groups is None or given is None:
            continue
        found: dict[str, set[str]] = defaultdict(set)
        for group, part in zip(pictures.groups.tolist(), given.tolist(), strict=True):
            found[group].add(str(part))
        for group, where in sorted(found.items()):
            if group and len(where) > 1:
                listed = " and ".join(sorted(where))
                detail = f"group {group!r} lies in the {parts} {listed}: results will flatter"
                yield Problem(f"group across {parts}", group, detail)
