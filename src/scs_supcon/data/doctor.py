"""What is wrong with a set of images, kind by kind, and what to do about it."""

import unicodedata
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from scs_supcon.data.check import (
    duplicates,
    kind_of_duplicate,
    single_image_classes,
    torn_groups,
    training_labels,
)
from scs_supcon.data.dataset import ImageDataset, Problem, printable
from scs_supcon.data.folder import load_images
from scs_supcon.data.image_io import SUFFIXES, ImageError, Look, look_at
from scs_supcon.data.near_duplicates import Pair, near_duplicates, thumbnail

Tell = Callable[[int, int], None]

# What harms, worst first, and what to do about it.
HARMFUL = {
    "unreadable": "training leaves them out: fetch them again, or remove them",
    "truncated": "training leaves them out: fetch them again",
    "too large": "training leaves them out: resize or crop them",
    "duplicate with another label": "one of the labels is wrong: decide which",
    "near duplicate with another label": "look at both: one of the labels may be wrong",
    "duplicate across splits": "what is learnt by heart is then tested: keep one of them",
    "near duplicate across splits": "what is learnt by heart is then tested: keep them together",
    "group across splits": "results will flatter: keep each group in one split",
    "duplicate across folds": "what is learnt by heart is then tested: keep one of them",
    "near duplicate across folds": "what is learnt by heart is then tested: keep them together",
    "group across folds": "results will flatter: keep each group in one fold",
    "untrained class": "training refuses them: add training images, or take the class out",
    "empty folder": "training refuses those among the training images: fill or remove them",
    "alike labels": "they count as different classes: give them one name, if they are one",
    "one image": "add images: with one there is nothing to validate or test",
    "tiny class": "add images: with so few, a class's result means little",
    "duplicate": "they weigh double: keep one of them",
    "near duplicate": "they weigh double, and a split drawn at random may tear them apart",
}
# What training copes with.
HARMLESS = {
    "imbalance": "scores by class matter then; try --set pretrain.batches=long_tail",
    "wrong extension": "they are read by their content; other programs may stumble",
    "skipped file": "not read",
    "hidden": "not read",
    "unread column": "not read",
}
FEW = 5  # training images below which a class is tiny
UNEVEN = 10  # times as many images in one class as in another
SHORT_SIDE = 64  # pixels that a thumbnail is made of at least: a JPEG is decoded no larger

_FORMATS = {
    **dict.fromkeys((".jpg", ".jpeg", ".jpe", ".jfif"), ("JPEG", "MPO")),
    **dict.fromkeys((".tif", ".tiff"), ("TIFF",)),
    **{suffix: (suffix[1:].upper(),) for suffix in (".png", ".webp", ".bmp", ".gif")},
}


@dataclass(frozen=True)
class Diagnosis:
    """What was found.

    Attributes:
        images: The set as it was read.
        problems: All that was found, in the order of HARMFUL and HARMLESS.
        handled: Names of the images with something odd that opening deals with, by what it is.
    """

    images: ImageDataset
    problems: tuple[Problem, ...]
    handled: dict[str, tuple[str, ...]]

    @property
    def healthy(self) -> bool:
        """Whether there is nothing harmful."""
        return not any(problem.kind in HARMFUL for problem in self.problems)


def diagnose(source: str | Path, workers: int = 1, progress: Tell | None = None) -> Diagnosis:
    """Look at every image, then compare each with all others.

    Args:
        source: Whatever `load_images` reads.
        workers: Threads; decoding and comparing free the interpreter.
        progress: Called with (done, total), in looks: each image is looked at and compared.
    """
    images = load_images(source, forgiving=True)
    tell = progress or (lambda done, total: None)
    n = len(images)
    seen = _see_all(images, workers, lambda done: tell(done, 2 * n))
    contents = [one.content for one in seen]
    problems = [
        *images.notes,
        *_hidden(Path(source)),
        *(problem for one in seen for problem in one.problems),
        *duplicates(images, contents),
        *_near(images, seen, workers, lambda done, total: tell(2 * n - total + done, 2 * n)),
        *torn_groups(images),
        *_alike_labels(images.classes),
        *_class_sizes(training_labels(images, contents), images),
    ]
    rank = {kind: number for number, kind in enumerate([*HARMFUL, *HARMLESS])}
    problems.sort(key=lambda problem: (rank[problem.kind], problem.name))
    handled: dict[str, list[str]] = defaultdict(list)
    for name, one in zip(images.names, seen, strict=True):
        for oddity in one.handled:
            handled[oddity].append(name)
    return Diagnosis(images, tuple(problems), {key: tuple(handled[key]) for key in sorted(handled)})


class _Seen(NamedTuple):
    """One image: a usable one has a content and a thumbnail."""

    content: str | None = None
    thumbnail: NDArray[np.uint8] | None = None
    handled: tuple[str, ...] = ()
    problems: tuple[Problem, ...] = ()


def _see_all(images: ImageDataset, workers: int, tell: Callable[[int], None]) -> list[_Seen]:
    seen = []
    with warnings.catch_warnings(), ThreadPoolExecutor(max(1, workers)) as pool:
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # a Problem names it
        for one in pool.map(partial(_see, images), range(len(images))):
            seen.append(one)
            tell(len(seen))
    return seen


def _see(images: ImageDataset, index: int) -> _Seen:
    name = images.names[index]
    try:
        if images.paths is None:
            look = Look(images.open(index), "", ())
        else:
            look = look_at(images.paths[index], SHORT_SIDE)
        content = images.file_hash(index)
    except ImageError as error:
        return _Seen(problems=(Problem(error.kind, name, str(error)),))
    wrong = tuple(_wrong_extension(name, look.format)) if look.format else ()
    return _Seen(content, thumbnail(look.image), look.handled, wrong)


def _wrong_extension(name: str, found: str) -> Iterator[Problem]:
    suffix = Path(name).suffix.lower()
    if found not in _FORMATS.get(suffix, ()):
        yield Problem("wrong extension", name, f"{name} is a {found} image")


def _near(
    images: ImageDataset, seen: Sequence[_Seen], workers: int, tell: Tell
) -> Iterator[Problem]:
    """For each image that looks like others: the worst of them. Equal files count once."""
    unique: dict[str | None, tuple[int, NDArray[np.uint8]]] = {}
    for index, one in enumerate(seen):
        if one.thumbnail is not None:
            unique.setdefault(one.content, (index, one.thumbnail))
    if not unique:
        return
    members = [index for index, _ in unique.values()]
    thumbnails = np.stack([small for _, small in unique.values()])
    worst: dict[int, tuple[int, float, int]] = {}
    for pair in near_duplicates(thumbnails, workers, tell):
        a, b = members[pair.first], members[pair.second]
        if images.groups is not None and images.groups[a] == images.groups[b] != "":
            continue  # somebody knows, and no split tears them apart
        harm = list(HARMFUL).index(f"near {kind_of_duplicate(images, a, b)[0]}")
        worst[b] = min(worst.get(b, (harm, 0.0, a)), (harm, -pair.similarity, a))
    for again, (_, similarity, earlier) in sorted(worst.items()):
        yield _near_problem(images, Pair(earlier, again, -similarity))


def _near_problem(images: ImageDataset, pair: Pair) -> Problem:
    kind, where = kind_of_duplicate(images, pair.first, pair.second)
    name, other = images.names[pair.second], images.names[pair.first]
    detail = f"{name} looks like {other}{where}, similarity {pair.similarity:.2f}"
    return Problem(f"near {kind}", name, detail, other)


def _class_sizes(labels: NDArray[np.int64], images: ImageDataset) -> Iterator[Problem]:
    """Classes with too few usable training images, and unevenness between the others."""
    classes = images.classes
    counts = np.bincount(labels, minlength=len(classes))
    for label in np.flatnonzero(counts == 0):
        name = classes[label]
        yield Problem("untrained class", name, f"class {name!r} has no usable training image")
    yield from single_image_classes(labels, classes)
    for label in np.flatnonzero((counts > 1) & (counts < FEW)):
        detail = f"class {classes[label]!r} has {counts[label]} training images"
        yield Problem("tiny class", classes[label], detail)
    some = np.flatnonzero(counts)
    if len(some) and counts.max() > UNEVEN * counts[some].min():
        least, most = some[counts[some].argmin()], counts.argmax()
        detail = (
            f"class {classes[most]!r} has {counts[most]} training images, "
            f"class {classes[least]!r} has {counts[least]}"
        )
        yield Problem("imbalance", classes[least], detail, classes[most])


def _alike_labels(classes: Sequence[str]) -> Iterator[Problem]:
    """Names that people take for one: they differ in capitals, spaces or how accents are stored."""
    first: dict[str, str] = {}
    for name in classes:
        plain = "".join(unicodedata.normalize("NFKC", name).casefold().split())
        other = first.setdefault(plain, name)
        if other != name:
            detail = f"classes {other!r} and {name!r} differ by case or space alone"
            yield Problem("alike labels", name, detail, other)


def _hidden(root: Path) -> Iterator[Problem]:
    """Files and folders whose names begin with a dot, the topmost ones."""
    if not root.is_dir():
        return
    for path in sorted(root.rglob(".*")):
        relative = path.relative_to(root)
        if any(part.startswith(".") for part in relative.parts[:-1]):
            continue
        name = printable(relative.as_posix())
        inside = sum(file.suffix.lower() in SUFFIXES for file in path.rglob("*"))
        holds = f" (images inside: {inside})" if inside else ""
        yield Problem("hidden", name, f"{name} is not read{holds}")
