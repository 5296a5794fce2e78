"""Everything there is to say about a model's answers on labelled images, as one record."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from scs_supcon.evaluation import metrics
from scs_supcon.evaluation.bootstrap import class_intervals
from scs_supcon.evaluation.leakage import leakage
from scs_supcon.evaluation.pair_roc import pair_roc
from scs_supcon.evaluation.retrieval import retrieval

FORMAT_VERSION = 1
CONFUSED = 100  # pairs of classes named
NEAR = 1e-5  # distance of unit vectors that are of one image, kept in single precision
COMPARED = 64


@dataclass(frozen=True)
class Rows:
    """Labelled images as unit vectors: common (n, D) and style (n, S), which may be empty."""

    labels: Tensor
    common: Tensor
    style: Tensor


@dataclass(frozen=True)
class Answers:
    """What a model said of images of its own classes.

    Attributes:
        rows: their labels and vectors.
        probabilities: (n, classes), calibrated.
        refused: (n,) whether it called the image none of these.
    """

    rows: Rows
    probabilities: Tensor
    refused: Tensor


@dataclass(frozen=True)
class Strangers:
    """Images of classes that the model was never shown, and whether each was refused."""

    classes: Sequence[str] = ()
    refused: Tensor | None = None


@dataclass(frozen=True)
class Rules:
    """A model's classes, the temperature of its logits, and when an image is none of them."""

    classes: tuple[str, ...]
    temperature: float
    rule: str
    threshold: float


def evaluate(
    rules: Rules,
    known: Rows,
    answers: Answers,
    agreement: dict[str, float | None] | None,
    strangers: Strangers,
) -> dict[str, Any]:
    """Judge answers about images that were not trained on.

    Args:
        rules: of the model.
        known: the training images; without style where it was not kept.
        answers: at least one.
        agreement: of views, from `leakage.view_agreement`, if there are views.
        strangers: images of other classes, if any.
    """
    rows, classes = answers.rows, len(rules.classes)
    predicted = answers.probabilities.argmax(1)
    table = metrics.confusion(predicted, rows.labels, classes)
    style = known.style if len(known.style) else rows.style[:0, :0]
    return {
        "format_version": FORMAT_VERSION,
        "images": len(rows.labels),
        "trained_on": _trained_on(known.common, rows.common),
        "classes": list(rules.classes),
        "scores": scores(answers.probabilities, rows.labels),
        "calibration": _calibration(answers.probabilities, rows.labels, rules.temperature),
        "retrieval": retrieval(rows.common, rows.labels),
        "pairs": {
            "boundary": rules.threshold if rules.rule == "boundary" else None,
            "rule": rules.rule,
            "threshold": rules.threshold,
            **pair_roc(rows.common, rows.labels, rules.threshold),
        },
        "refused": _refused(answers.refused, strangers),
        "per_class": per_class(table, rules.classes, rows.labels, answers.refused),
        "confusion": table.long().tolist(),
        "confused": confused(table, rules.classes),
        "leakage": leakage(
            (known.common, style, known.labels),
            (rows.common, rows.style, rows.labels),
            classes,
            agreement,
        ),
    }


def scores(probabilities: Tensor, labels: Tensor) -> dict[str, dict[str, float]]:
    """The usual scores, each with its 95 % interval."""
    predicted = probabilities.argmax(1)
    order = probabilities.sort(dim=1, descending=True, stable=True).indices
    hit = order == labels[:, None]
    intervals = {
        "acc1": metrics.accuracy_interval(hit[:, 0]),
        "acc5": metrics.accuracy_interval(hit[:, :5].any(1)),
    } | class_intervals(predicted, labels)
    values = {
        "acc1": metrics.top_k(probabilities, labels),
        "acc5": metrics.top_k(probabilities, labels, 5),
        "macro_f1": metrics.macro_f1(predicted, labels),
        "balanced_acc": metrics.balanced_accuracy(predicted, labels),
    }
    return {
        name: {"value": value, "low": intervals[name][0], "high": intervals[name][1]}
        for name, value in values.items()
    }


def baselines(known: Rows, rows: Rows) -> dict[str, float]:
    """What the vectors alone tell, without a classifier."""
    if not len(known.labels):
        return {}
    between = known.common.float(), known.labels, rows.common.float(), rows.labels
    return {
        "kNN on the readout": metrics.knn_accuracy(*between),
        "nearest class mean": metrics.nearest_mean_accuracy(*between),
    }


def per_class(
    table: Tensor, classes: Sequence[str], labels: Tensor, refused: Tensor
) -> list[dict[str, Any]]:
    """One row for each class; what has nothing to divide by is 0."""
    hits, present, named = table.diagonal(), table.sum(1), table.sum(0)
    turned = torch.bincount(labels[refused], minlength=len(classes))
    columns = {
        "precision": hits / named.clamp_min(1),
        "recall": hits / present.clamp_min(1),
        "f1": metrics.class_f1(table),
        "refused": turned / present.clamp_min(1),
    }
    return [
        {"name": name, "images": int(present[row])}
        | {title: float(column[row]) for title, column in columns.items()}
        for row, name in enumerate(classes)
    ]


def confused(table: Tensor, classes: Sequence[str]) -> list[dict[str, Any]]:
    """Pairs of classes by how often the first was taken for the second, worst first."""
    wrong = table.long().clone().fill_diagonal_(0)
    order = wrong.flatten().sort(descending=True, stable=True)
    pairs = zip(order.indices[:CONFUSED].tolist(), order.values.tolist(), strict=False)
    return [
        {
            "label": classes[cell // len(classes)],
            "prediction": classes[cell % len(classes)],
            "count": count,
        }
        for cell, count in pairs
        if count
    ]


def _calibration(probabilities: Tensor, labels: Tensor, temperature: float) -> dict[str, Any]:
    """Reliability as calibrated, and as it would be at temperature 1: p ∝ p_calibrated^T."""
    before = (temperature * probabilities.double().log()).softmax(1)
    return {
        "temperature": temperature,
        "before": metrics.reliability(before, labels),
        "after": metrics.reliability(probabilities, labels),
    }


def _refused(known: Tensor, strangers: Strangers) -> dict[str, Any]:
    flags = strangers.refused
    there = flags is not None and len(flags) > 0
    return {
        "known": float(known.double().mean()),
        "unknown": float(flags.double().mean()) if flags is not None and there else None,
        "unknown_images": len(flags) if flags is not None else 0,
        "unknown_classes": list(strangers.classes),
    }


def _trained_on(known: Tensor, rows: Tensor) -> int:
    """How many images have the vector of a training image, last digits aside: they are it.

    Rows that are near are near along any direction: along one of them the training images are
    sorted, and few are left to compare with.
    """
    if not len(known):
        return 0
    known, rows = known.double(), rows.double()
    along = torch.arange(1.0, rows.shape[1] + 1, dtype=torch.float64).cos()
    along /= along.norm()
    order = (known @ along).sort()
    places = rows @ along
    low = torch.searchsorted(order.values, places - NEAR)
    # Where all vectors are nearly the same, it is the count of comparisons that has to end.
    counts = (torch.searchsorted(order.values, places + NEAR) - low).clamp(0, COMPARED)
    query = torch.arange(len(rows)).repeat_interleave(counts)
    step = torch.arange(len(query)) - (counts.cumsum(0) - counts)[query]
    gaps = (rows[query] - known[order.indices[low[query] + step]]).norm(dim=1)
    same = torch.zeros(len(rows), dtype=torch.bool)
    same[query[gaps < NEAR]] = True
    return int(same.sum())
