"""Check images before training: unusable files, duplicates, separated groups, unsuitable classes.

Every training starts with `check_images`. `diagnose` (`scs doctor`) also compares all images with
each other and checks file formats and class sizes. `dataset.PROBLEM_KINDS` lists the problems.
"""

import unicodedata
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from scs_supcon.data.dataset import PROBLEM_KINDS, ImageDataset, Problem
from scs_supcon.data.image_io import HEIF_SUFFIXES, DecodedImage, ImageError, inspect_image
from scs_supcon.data.near_duplicates import near_duplicates, thumbnail
from scs_supcon.progress import ProgressCallback

Result = TypeVar("Result")

UNUSABLE = ("unreadable", "truncated", "too_large")
SMALL_CLASS = 5  # classes with fewer training images are reported
IMBALANCE = 10  # larger ratios of class sizes are reported
THUMBNAIL_SOURCE = 64  # smallest short side at which a JPEG is decoded for a thumbnail

_FORMATS = {
    **dict.fromkeys((".jpg", ".jpeg", ".jpe", ".jfif"), ("JPEG", "MPO")),
    **dict.fromkeys((".tif", ".tiff"), ("TIFF",)),
    **dict.fromkeys(HEIF_SUFFIXES, ("HEIF",)),
    **{suffix: (suffix[1:].upper(),) for suffix in (".png", ".webp", ".bmp", ".gif")},
}


def check_images(
    images: ImageDataset, workers: int, progress: Callable[[int], None] | None = None
) -> list[Problem]:
    """Decode every image completely, unless it was checked before, and return all problems.

    Args:
        images: The dataset.
        workers: Number of threads (decoding releases the interpreter lock); 0 means one.
        progress: Called with the number of images checked.
    """
    results = _for_each_image(_check_image, images, workers, progress or (lambda done: None))
    hashes = [content for content, _ in results]
    return [
        *images.notes,
        *(problem for _, problem in results if problem is not None),
        *_duplicates(images, hashes),
        *single_image_classes(_training_labels(images, hashes), images.classes),
        *_separated_groups(images),
    ]


def unusable_indices(images: ImageDataset, problems: Iterable[Problem]) -> list[int]:
    """Return the indices of the images that cannot be decoded."""
    names = {problem.name for problem in problems if problem.kind in UNUSABLE}
    return [index for index, name in enumerate(images.names) if name in names]


def single_image_classes(
    training_labels: NDArray[np.int64], classes: tuple[str, ...]
) -> list[Problem]:
    """Return a problem for each class with a single training image."""
    counts = np.bincount(training_labels, minlength=len(classes))
    return [
        Problem(
            "single_image_class",
            classes[label],
            f"class {classes[label]!r} has one training image: only its views are positive pairs",
        )
        for label in np.flatnonzero(counts == 1)
    ]


def keep_duplicates_together(images: ImageDataset, problems: Iterable[Problem]) -> ImageDataset:
    """Return the dataset with duplicates in the same group, so that no split separates them."""
    pairs = [(problem.same_as, problem.name) for problem in problems if problem.same_as]
    index = {name: position for position, name in enumerate(images.names)}
    groups = (
        np.full(len(images), "", dtype=object)
        if images.groups is None
        else images.groups.astype(object)
    )
    for first, second in pairs:
        if first not in index or second not in index:
            continue
        a, b = index[first], index[second]
        group = groups[a] or groups[b] or f"same as {first}"
        for old_group in (groups[a], groups[b]):
            if old_group:
                groups[groups == old_group] = group
        groups[[a, b]] = group
    return replace(images, groups=groups.astype(np.str_)) if pairs else images


@dataclass(frozen=True)
class Diagnosis:
    """The result of `diagnose`.

    Attributes:
        images: The dataset as it was read.
        problems: All problems, in the order of `PROBLEM_KINDS`, then by name.
        conversions: Names of the images that decoding converts, by conversion.
    """

    images: ImageDataset
    problems: tuple[Problem, ...]
    conversions: dict[str, tuple[str, ...]]

    @property
    def healthy(self) -> bool:
        """Whether no problem is harmful."""
        return not any(PROBLEM_KINDS[problem.kind].harmful for problem in self.problems)


def diagnose(
    images: ImageDataset, workers: int = 1, progress: ProgressCallback | None = None
) -> Diagnosis:
    """Decode every image, compare each with all others, and return all problems.

    Args:
        images: The dataset, usually read with `load_images(source, forgiving=True)`.
        workers: Number of threads; decoding and comparing release the interpreter lock.
        progress: Called with (done, total); each image counts twice, decoded and compared.
    """
    report = progress or (lambda done, total: None)
    n = len(images)
    inspections = _for_each_image(_inspect, images, workers, lambda done: report(done, 2 * n))
    hashes = [inspection.content for inspection in inspections]
    problems = [
        *images.notes,
        *(problem for inspection in inspections for problem in inspection.problems),
        *_duplicates(images, hashes),
        *_near_duplicate_problems(
            images, inspections, workers, lambda done, total: report(2 * n - total + done, 2 * n)
        ),
        *_separated_groups(images),
        *_similar_labels(images.classes),
        *_class_size_problems(_training_labels(images, hashes), images),
    ]
    rank = {kind: number for number, kind in enumerate(PROBLEM_KINDS)}
    problems.sort(key=lambda problem: (rank[problem.kind], problem.name))
    conversions: dict[str, list[str]] = defaultdict(list)
    for name, inspection in zip(images.names, inspections, strict=True):
        for conversion in inspection.conversions:
            conversions[conversion].append(name)
    return Diagnosis(
        images, tuple(problems), {key: tuple(conversions[key]) for key in sorted(conversions)}
    )


def _for_each_image(
    function: Callable[[ImageDataset, int], Result],
    images: ImageDataset,
    workers: int,
    progress: Callable[[int], None],
) -> list[Result]:
    """Return `function(images, index)` for every index, computed by several threads."""
    results = []
    with warnings.catch_warnings(), ThreadPoolExecutor(max(1, workers)) as pool:
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # reported as a Problem
        for result in pool.map(partial(function, images), range(len(images))):
            results.append(result)
            progress(len(results))
    return results


def _check_image(images: ImageDataset, index: int) -> tuple[str | None, Problem | None]:
    try:
        if not images.checked:
            images.open(index, 1)  # a JPEG at an eighth of its size: faster, and reads every byte
    except ImageError as error:
        return None, Problem(error.kind, images.names[index], str(error))
    return images.file_hash(index), None


def _duplicates(images: ImageDataset, hashes: Sequence[str | None]) -> Iterator[Problem]:
    """Yield a problem for each image with the same content as an earlier one.

    The hash of an unusable image is None.
    """
    first_index: dict[str, int] = {}
    for index, content in enumerate(hashes):
        if content is None:
            continue
        first = first_index.setdefault(content, index)
        if first != index:
            kind, difference = _duplicate_kind(images, first, index)
            name, same_as = images.names[index], images.names[first]
            detail = f"{name} has the same content as {same_as}{difference}"
            yield Problem(kind, name, detail, same_as)


def _duplicate_kind(images: ImageDataset, first: int, second: int) -> tuple[str, str]:
    """Return the kind of a pair of duplicates, and a phrase that describes their difference."""
    a, b = (images.classes[images.labels[index]] for index in (first, second))
    if a != b:
        return "duplicate_with_other_label", f", but is labelled {b!r} instead of {a!r}"
    if images.splits is not None and images.splits[first] != images.splits[second]:
        return "duplicate_across_splits", f" ({images.splits[first]})"
    if images.folds is not None and images.folds[first] != images.folds[second]:
        return "duplicate_across_folds", f" (fold {images.folds[first]})"
    return "duplicate", ""


def _training_labels(images: ImageDataset, hashes: Sequence[str | None]) -> NDArray[np.int64]:
    """Return the labels of the usable training images, or of all usable images without splits."""
    readable = np.array([content is not None for content in hashes])
    train = True if images.splits is None else images.splits == "train"
    labels: NDArray[np.int64] = images.labels[readable & train]
    return labels


def _separated_groups(images: ImageDataset) -> Iterator[Problem]:
    """Yield a problem for each group in more than one split, or in more than one fold."""
    for unit, column in (("splits", images.splits), ("folds", images.folds)):
        if images.groups is None or column is None:
            continue
        values_by_group: dict[str, set[str]] = defaultdict(set)
        for group, value in zip(images.groups.tolist(), column.tolist(), strict=True):
            values_by_group[group].add(str(value))
        for group, values in sorted(values_by_group.items()):
            if group and len(values) > 1:
                listed = " and ".join(sorted(values))
                detail = (
                    f"group {group!r} is in the {unit} {listed}: results will be too optimistic"
                )
                yield Problem(f"group_across_{unit}", group, detail)


class _Inspection(NamedTuple):
    """One image; `content` and `thumbnail` are None if it is unusable."""

    content: str | None = None
    thumbnail: NDArray[np.uint8] | None = None
    conversions: tuple[str, ...] = ()
    problems: tuple[Problem, ...] = ()


def _inspect(images: ImageDataset, index: int) -> _Inspection:
    name = images.names[index]
    try:
        if images.paths is None:
            decoded = DecodedImage(images.open(index), "", ())
        else:
            decoded = inspect_image(images.paths[index], THUMBNAIL_SOURCE)
        content = images.file_hash(index)
    except ImageError as error:
        return _Inspection(problems=(Problem(error.kind, name, str(error)),))
    problems = tuple(_wrong_extension(name, decoded.format)) if decoded.format else ()
    return _Inspection(content, thumbnail(decoded.image), decoded.conversions, problems)


def _wrong_extension(name: str, file_format: str) -> Iterator[Problem]:
    if file_format not in _FORMATS.get(Path(name).suffix.lower(), ()):
        yield Problem("wrong_extension", name, f"{name} is a {file_format} image")


def _near_duplicate_problems(
    images: ImageDataset,
    inspections: Sequence[_Inspection],
    workers: int,
    progress: ProgressCallback,
) -> Iterator[Problem]:
    """Yield each image's most harmful near duplicate; identical files are compared once."""
    unique: dict[str | None, tuple[int, NDArray[np.uint8]]] = {}
    for index, inspection in enumerate(inspections):
        if inspection.thumbnail is not None:
            unique.setdefault(inspection.content, (index, inspection.thumbnail))
    if not unique:
        return
    indices = [index for index, _ in unique.values()]
    thumbnails = np.stack([pixels for _, pixels in unique.values()])
    kinds = list(PROBLEM_KINDS)
    worst: dict[int, tuple[int, float, int]] = {}
    for pair in near_duplicates(thumbnails, workers, progress):
        a, b = indices[pair.first], indices[pair.second]
        if images.groups is not None and images.groups[a] == images.groups[b] != "":
            continue  # no split separates a group
        rank = kinds.index(f"near_{_duplicate_kind(images, a, b)[0]}")
        worst[b] = min(worst.get(b, (rank, 0.0, a)), (rank, -pair.similarity, a))
    for second, (_, negative_similarity, first) in sorted(worst.items()):
        kind, difference = _duplicate_kind(images, first, second)
        name, other = images.names[second], images.names[first]
        detail = f"{name} looks like {other}{difference}, similarity {-negative_similarity:.2f}"
        yield Problem(f"near_{kind}", name, detail, other)


def _class_size_problems(labels: NDArray[np.int64], images: ImageDataset) -> Iterator[Problem]:
    """Yield the classes with too few usable training images, and an imbalance of class sizes."""
    classes = images.classes
    counts = np.bincount(labels, minlength=len(classes))
    for label in np.flatnonzero(counts == 0):
        detail = f"class {classes[label]!r} has no usable training image"
        yield Problem("class_without_training_images", classes[label], detail)
    yield from single_image_classes(labels, classes)
    for label in np.flatnonzero((counts > 1) & (counts < SMALL_CLASS)):
        detail = f"class {classes[label]!r} has {counts[label]} training images"
        yield Problem("small_class", classes[label], detail)
    present = np.flatnonzero(counts)
    if len(present) and counts.max() > IMBALANCE * counts[present].min():
        smallest, largest = present[counts[present].argmin()], counts.argmax()
        detail = (
            f"class {classes[largest]!r} has {counts[largest]} training images, "
            f"class {classes[smallest]!r} has {counts[smallest]}"
        )
        yield Problem("imbalance", classes[smallest], detail, classes[largest])


def _similar_labels(classes: Sequence[str]) -> Iterator[Problem]:
    """Yield class names that differ only in case, spaces or Unicode normalisation."""
    first_name: dict[str, str] = {}
    for name in classes:
        normalized = "".join(unicodedata.normalize("NFKC", name).casefold().split())
        other = first_name.setdefault(normalized, name)
        if other != name:
            detail = f"classes {other!r} and {name!r} differ only in case or spaces"
            yield Problem("similar_labels", name, detail, other)
