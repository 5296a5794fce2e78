"""From a diagnosis to a table that trains: copies left out, look-alikes in one split.

Nothing is changed or deleted: the table names the images to use, where they are. Left out are
images that cannot be used, copies of an image that stays, images that occur with two labels,
and classes without a training image. Of copies the one in the test part stays, so that results
remain comparable. Look-alikes and groups go where most of them are.
"""

import csv
import io
import os
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from scs_supcon.data.check import UNUSABLE, keep_duplicates_together
from scs_supcon.data.dataset import ImageDataset, Problem, without
from scs_supcon.data.doctor import Diagnosis
from scs_supcon.data.splits import assign_splits
from scs_supcon.errors import UserError
from scs_supcon.recipe import DataRecipe

_STAYS = ("test", "val", "train", "")  # of copies, the first of these


@dataclass(frozen=True)
class Mended:
    """What to use.

    Attributes:
        images: Those that stay; all have a split.
        left_out: How many images were left out, by reason.
        moved: How many changed their split.
    """

    images: ImageDataset
    left_out: dict[str, int]
    moved: int


def mend(diagnosis: Diagnosis, seed: int = 0) -> Mended:
    """Choose the images to use and their splits.

    Args:
        diagnosis: Of the set.
        seed: For drawing splits where the data has none, with the shares that training takes.

    Raises:
        UserError: The images are not in files, or fewer than two classes would be left.
    """
    images = diagnosis.images
    if images.paths is None:
        raise UserError("a built-in set cannot be mended: it is what it is")
    reasons, stays_for = _left_out(diagnosis)
    usable = _without(images, reasons)
    together = keep_duplicates_together(usable, list(_links(diagnosis, stays_for)))
    if together.splits is None:
        splits = assign_splits(together, _default("val_share"), _default("test_share"), seed)
        moved = 0
    else:
        splits = _one_split_each(together, together.splits)
        moved = int((splits != together.splits).sum())
    chosen = replace(together, splits=splits, folds=_one_fold_each(together))
    untrained = _untrained(chosen)
    counts = Counter(reasons.values())
    if untrained:
        counts["class without a training image"] = len(untrained)
        chosen = _without(chosen, dict.fromkeys(untrained, ""))
    return Mended(chosen, dict(counts), moved)


def table_of(mended: Mended, folder: Path) -> str:
    """Return the CSV `image_path,label,split[,group][,fold]`, to be written into `folder`."""
    images = mended.images
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
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(zip(*columns.values(), strict=True))
    return text.getvalue()


def _left_out(diagnosis: Diagnosis) -> tuple[dict[int, str], dict[str, str]]:
    """Why each index is left out; and, for every copy, the name of the one that stays."""
    images = diagnosis.images
    index = {name: at for at, name in enumerate(images.names)}
    reasons: dict[int, str] = {}
    copies: dict[str, list[int]] = defaultdict(list)
    for problem in diagnosis.problems:
        if problem.kind in UNUSABLE:
            reasons[index[problem.name]] = "unusable"
        elif problem.kind.startswith("duplicate"):
            copies[problem.same_as].append(index[problem.name])
    trained = Counter(images.labels[_splits(images) == "train"].tolist())
    stays_for: dict[str, str] = {}
    for first, others in copies.items():
        equal = [index[first], *others]
        if len({int(images.labels[at]) for at in equal}) > 1:
            reasons |= dict.fromkeys(equal, "two labels")
            continue
        stays = _stays(images, equal, trained)
        reasons |= {at: "copy" for at in equal if at != stays}
        stays_for |= {images.names[at]: images.names[stays] for at in equal}
    return reasons, stays_for


def _links(diagnosis: Diagnosis, stays_for: dict[str, str]) -> Iterator[Problem]:
    """Look-alikes, under the names of those that stay."""
    for problem in diagnosis.problems:
        if problem.kind.startswith("near"):
            name, other = (stays_for.get(n, n) for n in (problem.name, problem.same_as))
            yield replace(problem, name=name, same_as=other)


def _stays(images: ImageDataset, equal: list[int], trained: Counter[int]) -> int:
    """Which of equal images stays; its class must not lose its last training image."""
    splits = _splits(images)
    label = int(images.labels[equal[0]])
    in_train = [at for at in equal if splits[at] == "train"]
    if in_train and len(in_train) == trained[label]:
        stays = in_train[0]
    else:
        stays = min(equal, key=lambda at: (_STAYS.index(str(splits[at])), at))
    trained[label] -= len(in_train) - (stays in in_train)
    return stays


def _without(images: ImageDataset, reasons: dict[int, str]) -> ImageDataset:
    """The set without these images, and without the classes that are then empty."""
    left = np.ones(len(images), dtype=bool)
    left[list(reasons)] = False
    kept = np.unique(images.labels[left])
    if len(kept) < 2:
        raise UserError("fewer than two classes have usable images: there is nothing to train")
    # Images of a vanished class are all gone; until they are, any label will do for them.
    number = np.zeros(len(images.classes), dtype=np.int64)
    number[kept] = np.arange(len(kept))
    named = replace(
        images,
        labels=number[images.labels],
        classes=tuple(images.classes[label] for label in kept),
    )
    return without(named, reasons)


def _one_split_each(images: ImageDataset, given: NDArray[np.str_]) -> NDArray[np.str_]:
    """Give each group the split in which most of it is; no class may lose all its training."""
    splits = given.copy()
    for members in _groups(images):
        splits[members] = Counter(sorted(given[members], key=_STAYS.index)).most_common(1)[0][0]
    for label in range(len(images.classes)):
        mine = images.labels == label
        was = mine & (given == "train")
        if was.any() and not (splits[mine] == "train").any():
            splits[was] = "train"
            for members in _groups(images):
                if was[members].any():
                    splits[members] = "train"
    return splits


def _one_fold_each(images: ImageDataset) -> NDArray[np.int64] | None:
    if images.folds is None:
        return None
    folds = images.folds.copy()
    for members in _groups(images):
        folds[members] = folds[members[0]]
    return folds


def _groups(images: ImageDataset) -> Iterator[NDArray[np.int64]]:
    if images.groups is None:
        return
    members: dict[str, list[int]] = defaultdict(list)
    for at, group in enumerate(images.groups.tolist()):
        if group:
            members[group].append(at)
    yield from (np.array(found) for found in members.values() if len(found) > 1)


def _untrained(images: ImageDataset) -> list[int]:
    trained = np.unique(images.labels[_splits(images) == "train"])
    return np.flatnonzero(~np.isin(images.labels, trained)).tolist()


def _splits(images: ImageDataset) -> NDArray[np.str_]:
    return np.full(len(images), "") if images.splits is None else images.splits


def _default(field: str) -> float:
    return float(DataRecipe.model_fields[field].default)


def _relative(path: Path, folder: Path) -> str:
    """As the table's reader takes it: from the table's own folder, with slashes."""
    path = path.parent.resolve() / path.name  # ".." after a link leads elsewhere
    try:
        return Path(os.path.relpath(path, folder.resolve())).as_posix()
    except ValueError:  # another drive
        return path.as_posix()
