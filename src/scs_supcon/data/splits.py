"""Who trains, who validates, who tests: stratified, seeded, groups never torn."""

import csv
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from scs_supcon.data.dataset import SPLITS, ImageDataset
from scs_supcon.errors import UserError, did_you_mean

Splits = NDArray[np.str_]
Counts = NDArray[np.int64]
Misfit = Callable[[Counts, Counts], NDArray[np.float64]]


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
    "There is no test split: the validation images also chose the classifier and the temperature, "
    "so these numbers are optimistic."
)
TRIES = 5  # random orders of the groups
ROUNDS = 4  # times each group may move


def assign_splits(images: SplitColumns, val_share: float, test_share: float, seed: int) -> Splits:
    """Keep the splits that the data gives and draw what is missing.

    Without any, each class is dealt into train, val and test by the shares. With a training part
    but no validation part, `val_share` of each class's training images become validation. A
    class with two training images or more gives at least one to validation; a class with one
    image keeps it in train. Groups stay whole, which may bend all this but for one thing: every
    class is trained.

    Returns:
        "train", "val" or "test" for each image.

    Raises:
        UserError: Too few classes, or a class that is tested but never trained.
    """
    if not (val_share >= 0 and test_share >= 0 and val_share + test_share < 1):
        raise UserError(
            f"val_share {val_share} and test_share {test_share} must not be negative and must "
            "leave something for training"
        )
    if len(images.classes) < 2:
        raise UserError(
            f"there is one class only ({images.classes[0]!r}): a classifier needs two or more"
        )
    given = images.splits
    if given is None or set(given.tolist()) == {"train"}:
        splits = _deal(images, np.arange(len(images)), (val_share, test_share), seed)
    else:
        splits = given.astype("<U5")
        if "val" not in splits:
            train = np.flatnonzero(splits == "train")
            splits[train] = _deal(images, train, (val_share, 0.0), seed)
    _must_be_trained(images, splits)
    return splits


def assign_folds(images: SplitColumns, folds: int, seed: int) -> NDArray[np.int64]:
    """Say in which fold each image is tested: 0 to `folds` − 1.

    A fold column of the data wins, its numbers counted from 0 in their order; checking names the
    copies and groups that it tears apart. Otherwise every class is dealt evenly, whole groups at a
    time, and the folds are of about one size. Splits that the data gives are not used: every
    image is tested once.

    Raises:
        UserError: Other folds are given than asked for, or a class lies in one fold alone, where
            it would be tested without having been trained.
    """
    if folds < 2 or folds > len(images):
        raise UserError(f"{folds} folds of {len(images)} images: ask for 2 or more, and a few")
    if images.folds is not None:
        given, numbers = np.unique(images.folds, return_inverse=True)
        if len(given) != folds:
            raise UserError(
                f"the data has a fold column with {len(given)} folds, not {folds}: "
                f"say --folds {len(given)}, or take the column out"
            )
    else:
        totals = np.bincount(images.labels, minlength=len(images.classes))
        everyone = np.arange(len(images))
        numbers = _dealt_closest(images, everyone, _even(totals, folds), seed, _unevenness)
    for label, name in enumerate(images.classes):
        if len(set(numbers[images.labels == label].tolist())) < 2:
            raise UserError(
                f"class {name!r} lies in one fold alone and could not be trained there: it needs "
                "two images or more that are not copies and not of one group"
            )
    return numbers.astype(np.int64)


def fold_splits(images: SplitColumns, fold: int, folds: int, val_share: float, seed: int) -> Splits:
    """Test on one fold; validation is `val_share` of each class's other images."""
    if len(images.classes) < 2:
        return assign_splits(images, val_share, 0.0, seed)  # says what is wrong
    splits = np.full(len(images), "test", dtype="<U5")
    rest = np.flatnonzero(assign_folds(images, folds, seed) != fold)
    splits[rest] = _deal(images, rest, (val_share, 0.0), seed)
    _must_be_trained(images, splits)
    return splits


def write_splits_csv(path: Path, images: ImageDataset, splits: Splits) -> None:
    """Write `name,label,split[,group,fold],sha256`, the same bytes for the same splits."""
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
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(zip(*columns.values(), strict=True))


def read_splits_csv(path: Path, images: ImageDataset) -> Splits:
    """Read the splits of these images back; names, labels and contents must be the same."""
    with path.open(newline="", encoding="utf-8") as file:
        rows = csv.DictReader(file)
        if not {"name", "label", "split", "sha256"} <= set(rows.fieldnames or ()):
            raise UserError(f"{path} is not a list of splits: expected name,label,split,sha256")
        written = {row["name"]: row for row in rows}
    for name in written.keys() - set(images.names):
        raise UserError(f"{path} lists {name!r}, which is not in the data any more")
    for name in set(images.names) - written.keys():
        raise UserError(f"{path} does not know {name!r}: the data has changed since")
    for index, (name, label) in enumerate(zip(images.names, images.labels, strict=True)):
        if written[name]["label"] != images.classes[label]:
            raise UserError(
                f"{path} has {name!r} as {written[name]['label']!r}, the data as "
                f"{images.classes[label]!r}: the data has changed since"
            )
        if written[name]["sha256"] != images.file_hash(index):
            raise UserError(
                f"{name!r} is another image than {path} was written for: bring the old one "
                "back, or start another run with another --out"
            )
    return np.array([written[name]["split"] for name in images.names])


def _must_be_trained(images: SplitColumns, splits: Splits) -> None:
    trained = np.bincount(images.labels[splits == "train"], minlength=len(images.classes))
    trained_names = [images.classes[label] for label in np.flatnonzero(trained)]
    for label in np.flatnonzero(trained == 0):
        name = images.classes[label]
        where = str(splits[images.labels == label][0])
        raise UserError(
            f"class {name!r} is in {where} but has no training image: add some to train or "
            f"take it out of {where}{did_you_mean(name, trained_names)}"
        )


@dataclass(frozen=True)
class _Group:
    """Images that stay together: which classes it holds, and how many images of each."""

    labels: Counts
    counts: Counts


def _deal(
    images: SplitColumns, members: NDArray[np.int64], shares: tuple[float, float], seed: int
) -> Splits:
    """Deal into train, val and test by the shares."""
    totals = np.bincount(images.labels[members], minlength=len(images.classes))
    wanted = np.stack([_wanted(int(total), *shares) for total in totals], axis=1)
    return np.array(SPLITS)[_dealt_closest(images, members, wanted, seed, _misfit)]


def _dealt_closest(
    images: SplitColumns, members: NDArray[np.int64], wanted: Counts, seed: int, misfit: Misfit
) -> Counts:
    """Deal whole groups in a few random orders and keep the deal that comes closest.

    Returns:
        The part of each member: a row of `wanted` (parts, classes).
    """
    numbers = _group_numbers(images, members)
    groups = _contents(numbers, images.labels[members])
    rng = np.random.default_rng(seed)
    best, least = _dealt(groups, rng.permutation(len(groups)), wanted, misfit)
    for _ in range(TRIES - 1):
        if least == 0:  # always so without groups
            break
        dealt, far = _dealt(groups, rng.permutation(len(groups)), wanted, misfit)
        if far < least:
            best, least = dealt, far
    return best[numbers]


def _dealt(
    groups: list[_Group], order: Counts, wanted: Counts, misfit: Misfit
) -> tuple[Counts, float]:
    """Put each group where it fits best, and go round again while that moves any."""
    placed = np.zeros_like(wanted)  # images (part, class)
    dealt = np.full(len(groups), -1)
    usable = np.flatnonzero(wanted.sum(axis=1))
    into = np.eye(len(wanted), dtype=np.int64)[usable, :, None]
    for _ in range(ROUNDS):
        before = dealt.copy()
        for group in order:
            labels, counts = groups[group].labels, groups[group].counts
            if dealt[group] >= 0:
                placed[dealt[group], labels] -= counts
            choices = placed[:, labels] + into * counts  # (choice, part, class)
            dealt[group] = usable[np.argmin(misfit(choices, wanted[:, labels]))]
            placed[dealt[group], labels] += counts
        far = float(misfit(placed, wanted))
        if far == 0 or np.array_equal(dealt, before):
            break
    return dealt, far


def _misfit(placed: Counts, wanted: Counts) -> NDArray[np.float64]:
    """How far counts (…, split, class) are from the wanted; an untrained class outweighs all."""
    far = ((placed - wanted) ** 2 / np.maximum(wanted, 1)).sum(axis=(-2, -1))
    untrained = (placed[..., 0, :] == 0) & (wanted[0] > 0)
    unvalidated = (placed[..., 1, :] == 0) & (wanted[1] > 0)
    misfit: NDArray[np.float64] = far + 1e9 * untrained.sum(axis=-1) + 10 * unvalidated.sum(axis=-1)
    return misfit


def _unevenness(placed: Counts, wanted: Counts) -> NDArray[np.float64]:
    """How far counts (…, fold, class) are from the wanted."""
    far: NDArray[np.float64] = ((placed - wanted) ** 2 / np.maximum(wanted, 1)).sum(axis=(-2, -1))
    return far


def _group_numbers(images: SplitColumns, members: NDArray[np.int64]) -> NDArray[np.int64]:
    """A number for each image's group; an image without one is a group of its own."""
    if images.groups is None:
        return np.arange(len(members))
    groups = images.groups[members]
    own = np.array([f"\0{position}" for position in range(len(members))])
    return np.unique(np.where(groups == "", own, groups), return_inverse=True)[1]


def _contents(numbers: NDArray[np.int64], labels: NDArray[np.int64]) -> list[_Group]:
    pairs, counts = np.unique(np.stack([numbers, labels], axis=1), axis=0, return_counts=True)
    ends = np.cumsum(np.bincount(pairs[:, 0]))[:-1]
    parts = zip(np.split(pairs[:, 1], ends), np.split(counts, ends), strict=True)
    return [_Group(held, amount) for held, amount in parts]


def _wanted(total: int, val_share: float, test_share: float) -> Counts:
    """How many images of a class train, val and test should get: train at least one."""
    test = min(round(total * test_share), max(0, total - 1))
    left = max(0, total - test - 1)
    val = min(max(1, round(total * val_share)), left) if val_share > 0 else 0
    return np.array([total - test - val, val, test])


def _even(totals: Counts, folds: int) -> Counts:
    """Images (fold, class) of an even deal; what is left over goes round, class after class."""
    before = np.cumsum(totals) - totals
    turn = (np.arange(folds)[:, None] - before) % folds
    return totals // folds + (turn < totals % folds)
