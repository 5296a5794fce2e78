"""From a diagnosis to a table that trains: copies left out, look-alikes in one split.

Nothing is changed or deleted: the table names the pictures to use, where they are. Left out are
pictures that cannot be used, copies of a picture that stays, pictures that occur with two labels,
and classes without a training picture. Of copies the one in the test part stays, so that results
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

from scs_supcon.config import DataRecipe
from scs_supcon.data.check import UNUSABLE, keep_duplicates_together
from scs_supcon.data.doctor import Diagnosis
from scs_supcon.data.pictures import Pictures, Problem, without
from scs_supcon.data.splits import assign_splits
from scs_supcon.errors import UserError

_STAYS = ("test", "val", "train", "")  # of copies, the first of these


@dataclass(frozen=True)
class Mended:
    """What to use.

    Attributes:
        pictures: Those that stay; all have a split.
        left_out: How many pictures were left out, by reason.
        moved: How many changed their split.
    """

    pictures: Pictures
    left_out: dict[str, int]
    moved: int


def mend(diagnosis: Diagnosis, seed: int = 0) -> Mended:
    """Choose the pictures to use and their splits.

    Args:
        diagnosis: Of the set.
        seed: For drawing splits where the data has none, with the shares that training takes.

    Raises:
        UserError: The pictures are not in files, or fewer than two classes would be left.
    """
    pictures = diagnosis.pictures
    if pictures.paths is None:
        raise UserError("a built-in set cannot be mended: it is what it is")
    reasons, stays_for = _left_out(diagnosis)
    usable = _without(pictures, reasons)
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
        counts["class without a training picture"] = len(untrained)
        chosen = _without(chosen, dict.fromkeys(untrained, ""))
    return Mended(chosen, dict(counts), moved)


def table_of(mended: Mended, folder: Path) -> str:
    """Return the CSV `image_path,label,split[,group][,fold]`, to be written into `folder`."""
    pictures = mended.pictures
    assert pictures.paths is not None
    assert pictures.splits is not None
    columns = {
        "image_path": [_relative(path, folder) for path in pictures.paths],
        "label": [pictures.classes[label] for label in pictures.labels],
        "split": pictures.splits.tolist(),
    }
    if pictures.groups is not None:
        columns["group"] = pictures.groups.tolist()
    if pictures.folds is not None:
        columns["fold"] = [str(fold) for fold in pictures.folds]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(zip(*columns.values(), strict=True))
    return text.getvalue()


def _left_out(diagnosis: Diagnosis) -> tuple[dict[int, str], dict[str, str]]:
    """Why each index is left out; and, for every copy, the name of the one that stays."""
    pictures = diagnosis.pictures
    index = {name: at for at, name in enumerate(pictures.names)}
    reasons: dict[int, str] = {}
    copies: dict[str, list[int]] = defaultdict(list)
    for problem in diagnosis.problems:
        if problem.kind in UNUSABLE:
            reasons[index[problem.name]] = "unusable"
        elif problem.kind.startswith("duplicate"):
            copies[problem.same_as].append(index[problem.name])
    trained = Counter(pictures.labels[_splits(pictures) == "train"].tolist())
    stays_for: dict[str, str] = {}
    for first, others in copies.items():
        equal = [index[first], *others]
        if len({int(pictures.labels[at]) for at in equal}) > 1:
            reasons |= dict.fromkeys(equal, "two labels")
            continue
        stays = _stays(pictures, equal, trained)
        reasons |= {at: "copy" for at in equal if at != stays}
        stays_for |= {pictures.names[at]: pictures.names[stays] for at in equal}
    return reasons, stays_for


def _links(diagnosis: Diagnosis, stays_for: dict[str, str]) -> Iterator[Problem]:
    """Look-alikes, under the names of those that stay."""
    for problem in diagnosis.problems:
        if problem.kind.startswith("near"):
            name, other = (stays_for.get(n, n) for n in (problem.name, problem.same_as))
            yield replace(problem, name=name, same_as=other)


def _stays(pictures: Pictures, equal: list[int], trained: Counter[int]) -> int:
    """Which of equal pictures stays; its class must not lose its last training picture."""
    splits = _splits(pictures)
    label = int(pictures.labels[equal[0]])
    in_train = [at for at in equal if splits[at] == "train"]
    if in_train and len(in_train) == trained[label]:
        stays = in_train[0]
    else:
        stays = min(equal, key=lambda at: (_STAYS.index(str(splits[at])), at))
    trained[label] -= len(in_train) - (stays in in_train)
    return stays


def _without(pictures: Pictures, reasons: dict[int, str]) -> Pictures:
    """The set without these pictures, and without the classes that are then empty."""
    left = np.ones(len(pictures), dtype=bool)
    left[list(reasons)] = False
    kept = np.unique(pictures.labels[left])
    if len(kept) < 2:
        raise UserError("fewer than two classes have usable pictures: there is nothing to train")
    # Pictures of a vanished class are all gone; until they are, any label will do for them.
    number = np.zeros(len(pictures.classes), dtype=np.int64)
    number[kept] = np.arange(len(kept))
    named = replace(
        pictures,
        labels=number[pictures.labels],
        classes=tuple(pictures.classes[label] for label in kept),
    )
    return without(named, reasons)


def _one_split_each(pictures: Pictures, given: NDArray[np.str_]) -> NDArray[np.str_]:
    """Give each group the split in which most of it is; no class may lose all its training."""
    splits = given.copy()
    for members in _groups(pictures):
        splits[members] = Counter(sorted(given[members], key=_STAYS.index)).most_common(1)[0][0]
    for label in range(len(pictures.classes)):
        mine = pictures.labels == label
        was = mine & (given == "train")
        if was.any() and not (splits[mine] == "train").any():
            splits[was] = "train"
            for members in _groups(pictures):
                if was[members].any():
                    splits[members] = "train"
    return splits


def _one_fold_each(pictures: Pictures) -> NDArray[np.int64] | None:
    if pictures.folds is None:
        return None
    folds = pictures.folds.copy()
    for members in _groups(pictures):
        folds[members] = folds[members[0]]
    return folds


def _groups(pictures: Pictures) -> Iterator[NDArray[np.int64]]:
    if pictures.groups is None:
        return
    members: dict[str, list[int]] = defaultdict(list)
    for at, group in enumerate(pictures.groups.tolist()):
        if group:
            members[group].append(at)
    yield from (np.array(found) for found in members.values() if len(found) > 1)


def _untrained(pictures: Pictures) -> list[int]:
    trained = np.unique(pictures.labels[_splits(pictures) == "train"])
    return np.flatnonzero(~np.isin(pictures.labels, trained)).tolist()


def _splits(pictures: Pictures) -> NDArray[np.str_]:
    return np.full(len(pictures), "") if pictures.splits is None else pictures.splits


def _default(field: str) -> float:
    return float(DataRecipe.model_fields[field].default)


def _relative(path: Path, folder: Path) -> str:
    """As the table's reader takes it: from the table's own folder, with slashes."""
    path = path.parent.resolve() / path.name  # ".." after a link leads elsewhere
    try:
        return Path(os.path.relpath(path, folder.resolve())).as_posix()
    except ValueError:  # another drive
        return path.as_posix()
