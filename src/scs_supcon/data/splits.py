"""Who trains, who validates, who tests: stratified, seeded, groups never torn."""

import csv
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from scs_supcon.data.pictures import SPLITS, Pictures
from scs_supcon.errors import UserError, did_you_mean

Splits = NDArray[np.str_]
Counts = NDArray[np.int64]


def assign_splits(pictures: Pictures, val_share: float, test_share: float, seed: int) -> Splits:
    """Keep the splits that the data gives and draw what is missing.

    Without any, each class is dealt into train, val and test by the shares. With a training part
    but no validation part, `val_share` of each class's training pictures become validation. A
    class with two training pictures or more gives at least one to validation; a class with one
    picture keeps it in train. Groups stay whole, which may bend the shares.

    Returns:
        "train", "val" or "test" for each picture.

    Raises:
        UserError: Too few classes, or a class that is tested but never trained.
    """
    if not (val_share >= 0 and test_share >= 0 and val_share + test_share < 1):
        raise UserError(
            f"val_share {val_share} and test_share {test_share} must not be negative and must "
            "leave something for training"
        )
    if len(pictures.classes) < 2:
        raise UserError(
            f"there is one class only ({pictures.classes[0]!r}): a classifier needs two or more"
        )
    given = pictures.splits
    if given is None or set(given.tolist()) == {"train"}:
        splits = _deal(pictures, np.arange(len(pictures)), (val_share, test_share), seed)
    else:
        splits = given.astype("<U5")
        if "val" not in splits:
            train = np.flatnonzero(splits == "train")
            splits[train] = _deal(pictures, train, (val_share, 0.0), seed)
    _must_be_trained(pictures, splits)
    return splits


def write_splits_csv(path: Path, pictures: Pictures, splits: Splits) -> None:
    """Write `name,label,split[,group,fold]`, the same bytes for the same splits."""
    columns: dict[str, list[str]] = {
        "name": list(pictures.names),
        "label": [pictures.classes[label] for label in pictures.labels],
        "split": splits.tolist(),
    }
    if pictures.groups is not None:
        columns["group"] = pictures.groups.tolist()
    if pictures.folds is not None:
        columns["fold"] = [str(fold) for fold in pictures.folds]
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(zip(*columns.values(), strict=True))


def read_splits_csv(path: Path, pictures: Pictures) -> Splits:
    """Read the splits of these pictures back; both must know the same pictures and labels."""
    with path.open(newline="", encoding="utf-8") as file:
        rows = csv.DictReader(file)
        if not {"name", "label", "split"} <= set(rows.fieldnames or ()):
            raise UserError(f"{path} is not a list of splits: expected name,label,split")
        written = {row["name"]: row for row in rows}
    for name in written.keys() - set(pictures.names):
        raise UserError(f"{path} lists {name!r}, which is not in the data any more")
    for name, label in zip(pictures.names, pictures.labels, strict=True):
        if name not in written:
            raise UserError(f"{path} does not know {name!r}: the data has changed since")
        if written[name]["label"] != pictures.classes[label]:
            raise UserError(
                f"{path} has {name!r} as {written[name]['label']!r}, the data as "
                f"{pictures.classes[label]!r}: the data has changed since"
            )
    return np.array([written[name]["split"] for name in pictures.names])


def _must_be_trained(pictures: Pictures, splits: Splits) -> None:
    trained = np.bincount(pictures.labels[splits == "train"], minlength=len(pictures.classes))
    trained_names = [pictures.classes[label] for label in np.flatnonzero(trained)]
    for label in np.flatnonzero(trained == 0):
        name = pictures.classes[label]
        where = str(splits[pictures.labels == label][0])
        raise UserError(
            f"class {name!r} is in {where} but has no training picture: add some to train or "
            f"take it out of {where}{did_you_mean(name, trained_names)}"
        )


@dataclass(frozen=True)
class _Group:
    """Pictures that stay together: which classes it holds, and how many pictures of each."""

    labels: Counts
    counts: Counts


def _deal(
    pictures: Pictures, members: NDArray[np.int64], shares: tuple[float, float], seed: int
) -> Splits:
    """Deal whole groups, the largest first, each to the split that still needs it most."""
    labels = pictures.labels[members]
    numbers = _group_numbers(pictures, members)
    groups = _contents(numbers, labels)
    totals = np.bincount(labels, minlength=len(pictures.classes))
    need = np.stack([_wanted(int(total), *shares) for total in totals], axis=1)
    placed = np.zeros_like(need)  # pictures (split, class)
    dealt = np.zeros(len(groups), dtype=np.int64)

    def move(group: int, split: int) -> None:
        held = groups[group]
        placed[dealt[group], held.labels] -= held.counts
        placed[split, held.labels] += held.counts
        dealt[group] = split

    order = np.random.default_rng(seed).permutation(len(groups))
    sizes = np.bincount(numbers)
    order = order[np.argsort(-sizes[order], kind="stable")]
    placed[0] = totals
    for group in order:
        held = groups[group]
        split = int(np.argmax(need[:, held.labels] @ held.counts))
        need[split, held.labels] -= held.counts
        move(group, split)

    smallest_first = order[::-1]
    for label in np.flatnonzero((placed[0] == 0) & (totals > 0)):
        move(next(group for group in smallest_first if label in groups[group].labels), 0)
    for label in np.flatnonzero((placed[1] == 0) & (placed[0] > 1)) if shares[0] > 0 else ():
        for group in smallest_first[dealt[smallest_first] == 0]:
            held = groups[group]
            if label in held.labels and np.all(placed[0, held.labels] > held.counts):
                move(group, 1)
                break
    return np.array(SPLITS)[dealt[numbers]]


def _group_numbers(pictures: Pictures, members: NDArray[np.int64]) -> NDArray[np.int64]:
    """A number for each picture's group; a picture without one is a group of its own."""
    if pictures.groups is None:
        return np.arange(len(members))
    groups = pictures.groups[members]
    own = np.array([f"\0{position}" for position in range(len(members))])
    return np.unique(np.where(groups == "", own, groups), return_inverse=True)[1]


def _contents(numbers: NDArray[np.int64], labels: NDArray[np.int64]) -> list[_Group]:
    pairs, counts = np.unique(np.stack([numbers, labels], axis=1), axis=0, return_counts=True)
    ends = np.cumsum(np.bincount(pairs[:, 0]))[:-1]
    parts = zip(np.split(pairs[:, 1], ends), np.split(counts, ends), strict=True)
    return [_Group(held, amount) for held, amount in parts]


def _wanted(total: int, val_share: float, test_share: float) -> Counts:
    """How many pictures of a class train, val and test should get: train at least one."""
    test = min(round(total * test_share), max(0, total - 1))
    left = max(0, total - test - 1)
    val = min(max(1, round(total * val_share)), left) if val_share > 0 else 0
    return np.array([total - test - val, val, test])
