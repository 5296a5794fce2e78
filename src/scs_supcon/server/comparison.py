"""Two runs side by side, on test images whose labels were not edited."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, NotRequired, TypedDict

import torch

from scs_supcon.errors import UserError
from scs_supcon.evaluation.metrics import accuracy_interval
from scs_supcon.io.records import read_parquet


class Predicted(NamedTuple):
    """The predicted class of an image and its split."""

    prediction: str
    split: str


class AccuracyScore(TypedDict):
    """An accuracy with its interval, in JSON."""

    value: float
    low: float
    high: float


class ChangedImage(TypedDict):
    """An image that two runs classify differently, in JSON; `id` is its number."""

    id: NotRequired[int | None]
    image: str
    label: str
    old: str
    new: str


ClassAccuracies = TypedDict(
    "ClassAccuracies", {"class": str, "images": int, "old": float | None, "new": float | None}
)


class RunComparison(TypedDict):
    """Two runs side by side, in JSON; lists of two hold the old and the new run."""

    split: str
    images: int
    left_out: int
    accuracy: list[AccuracyScore]
    fixed: int
    broken: int
    p_value: float
    changed: list[ChangedImage]
    classes: list[ClassAccuracies]


def read_predictions(run: Path, renamed: Mapping[str, str]) -> dict[str, Predicted]:
    """Return the predictions of a run by the names of the images here."""
    columns = dict.fromkeys(("name", "prediction", "split"), str)
    table = read_parquet(run / "predictions.parquet", columns).to_pydict()
    rows = zip(*(table[name] for name in columns), strict=True)
    return {renamed.get(name, name): Predicted(predicted, split) for name, predicted, split in rows}


def compare_predictions(
    old: Mapping[str, Predicted],
    new: Mapping[str, Predicted],
    labels: Mapping[str, str],
    classes: Sequence[str],
    edited: set[str],
) -> RunComparison:
    """Return accuracies with intervals, changed images and accuracies per class, for JSON.

    Args:
        old: predictions of one run.
        new: predictions of the other one.
        labels: original labels.
        classes: names of the classes.
        edited: images that are left out, because their labels were edited.

    Raises:
        UserError: the runs share no images.
    """
    split = "test" if any(entry.split == "test" for entry in old.values()) else "val"
    shared = [
        name
        for name, entry in old.items()
        if entry.split == split and name in new and name not in edited
    ]
    if not shared:
        raise UserError(
            f"the two runs have no {split} images in common that were not edited; if the run "
            "directory was moved after the training, train again"
        )
    pairs = [(name, old[name].prediction, new[name].prediction) for name in shared]
    correct = [sum(p[side] == labels[p[0]] for p in pairs) for side in (1, 2)]
    fixed = sum(a != labels[name] and b == labels[name] for name, a, b in pairs)
    broken = sum(a == labels[name] and b != labels[name] for name, a, b in pairs)
    return {
        "split": split,
        "images": len(pairs),
        "left_out": len([n for n, entry in old.items() if entry.split == split and n in edited]),
        "accuracy": [_score(count, len(pairs)) for count in correct],
        "fixed": fixed,
        "broken": broken,
        "p_value": sign_test(fixed, broken),
        "changed": [
            {"image": name, "label": labels[name], "old": a, "new": b}
            for name, a, b in pairs
            if a != b
        ],
        "classes": _per_class(pairs, labels, classes),
    }


def _per_class(
    pairs: Sequence[tuple[str, str, str]], labels: Mapping[str, str], classes: Sequence[str]
) -> list[ClassAccuracies]:
    rows: list[ClassAccuracies] = []
    for label in classes:
        own = [pair for pair in pairs if labels[pair[0]] == label]
        counts = [sum(pair[side] == label for pair in own) for side in (1, 2)]
        shares = [count / len(own) if own else None for count in counts]
        rows.append({"class": label, "images": len(own), "old": shares[0], "new": shares[1]})
    return rows


def _score(correct: int, total: int) -> AccuracyScore:
    if not total:
        return {"value": 0.0, "low": 0.0, "high": 1.0}
    low, high = accuracy_interval(torch.arange(total) < correct)
    return {"value": correct / total, "low": low, "high": high}


def sign_test(fixed: int, broken: int) -> float:
    """Return the p-value of an exact two-sided sign test of the images that changed."""
    from scipy.stats import binomtest

    return float(binomtest(fixed, fixed + broken).pvalue) if fixed + broken else 1.0
