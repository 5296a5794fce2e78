"""Compute an `Evaluation` from the predictions and embeddings of labelled images."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from sklearn.metrics import precision_recall_fscore_support
from torch import Tensor

from scs_supcon.evaluation import metrics
from scs_supcon.evaluation.bootstrap import class_intervals
from scs_supcon.evaluation.leakage import Reference, measure_leakage
from scs_supcon.evaluation.pair_roc import pair_statistics
from scs_supcon.evaluation.record import (
    Baselines,
    Calibration,
    ClassScores,
    ConfusedPair,
    ConfusionCell,
    Evaluation,
    LabelError,
    Rejection,
    Score,
    Scores,
    UnreadableImage,
    ViewAgreement,
)
from scs_supcon.evaluation.retrieval import retrieval
from scs_supcon.inference.package import ModelMetrics

CONFUSED_PAIRS = 100  # listed at most
SAME_VECTOR = 1e-5  # distance of two unit vectors of one image, stored in single precision
COMPARISONS = 64  # per image at most


@dataclass(frozen=True)
class EmbeddedImages:
    """Labels (n,) and unit vectors: common (n, D) and style (n, S), where S may be 0."""

    labels: Tensor
    common: Tensor
    style: Tensor


def compute_evaluation(  # noqa: PLR0913
    *,
    data: str,
    split: Literal["test", "val", "all"],
    classes: Sequence[str],
    temperature: float,
    rule: Literal["boundary", "fitted"],
    boundary: float,
    pair_temperature: float | None = None,
    threshold: float,
    train: EmbeddedImages,
    evaluated: EmbeddedImages,
    probabilities: Tensor,
    rejected: Tensor,
    baselines: Baselines,
    view_agreement: ViewAgreement | None = None,
    reference: Reference | None = None,
    unknown_classes: Sequence[str] = (),
    unknown_rejected: Tensor | None = None,
    label_errors: Sequence[LabelError] = (),
    unreadable: Sequence[UnreadableImage] = (),
    path: str | None = None,
) -> Evaluation:
    """Evaluate the predictions for at least one image of a known class.

    Args:
        data: the dataset as given by the user.
        split: which split of it was evaluated.
        classes: names of the model's classes.
        temperature: temperature of the model's logits.
        rule: how the boundary of pairs was chosen.
        boundary: similarity above which two images count as one class.
        pair_temperature: t in the probability σ(t r − b) that two images are of one class.
        threshold: similarity to a class below which an image is rejected.
        train: the training images; without style vectors if they were not stored.
        evaluated: the evaluated images.
        probabilities: (n, classes), calibrated.
        rejected: (n,) whether the image was rejected as unknown.
        baselines: accuracy of other classifiers on the same images.
        view_agreement: from `leakage.view_agreement`, if there are random views.
        reference: features and factors of the images, to compare the style field with.
        unknown_classes: classes of the data that the model does not have.
        unknown_rejected: (m,) whether each image of these classes was rejected.
        label_errors: suspected label errors.
        unreadable: images that were left out.
        path: location of the data.
    """
    labels = evaluated.labels
    predicted = probabilities.argmax(1)
    confusion = confusion_cells(predicted, labels)
    nll = metrics.negative_log_likelihood(probabilities, labels)
    unscaled = (temperature * probabilities.double().log()).softmax(1)
    unknown = rejected[:0] if unknown_rejected is None else unknown_rejected
    return Evaluation(
        data=data,
        path=path,
        split=split,
        images=len(labels),
        training_images=_count_training_images(train.common, evaluated.common),
        classes=tuple(classes),
        scores=compute_scores(probabilities, labels),
        calibration=Calibration(
            temperature=temperature,
            before=metrics.reliability(unscaled, labels),
            after=metrics.reliability(probabilities, labels),
            nll=nll if math.isfinite(nll) else None,
        ),
        baselines=baselines,
        retrieval=retrieval(evaluated.common, labels),
        pairs=pair_statistics(evaluated.common, labels, rule, boundary, pair_temperature),
        rejection=Rejection(
            threshold=threshold,
            known_rejected=_mean(rejected),
            unknown_rejected=_mean(unknown) if len(unknown) else None,
            unknown_images=len(unknown),
            unknown_classes=tuple(unknown_classes),
        ),
        per_class=class_scores(predicted, labels, rejected, classes),
        confusion=confusion,
        confused_pairs=confused_pairs(confusion, classes),
        leakage=measure_leakage(
            (train.common, train.style, train.labels),
            (evaluated.common, evaluated.style, labels),
            len(classes),
            view_agreement,
            reference,
        ),
        label_errors=tuple(label_errors),
        unreadable=tuple(unreadable),
    )


def compute_scores(probabilities: Tensor, labels: Tensor) -> Scores:
    """Compute accuracy, top-5 accuracy, macro-F1 and balanced accuracy with 95% intervals."""
    predicted = probabilities.argmax(1)
    order = probabilities.sort(dim=1, descending=True, stable=True).indices
    correct = order == labels[:, None]
    intervals = class_intervals(predicted, labels)
    return Scores(
        accuracy=_score(
            metrics.top_k(probabilities, labels), metrics.accuracy_interval(correct[:, 0])
        ),
        top5_accuracy=_score(
            metrics.top_k(probabilities, labels, 5),
            metrics.accuracy_interval(correct[:, :5].any(1)),
        ),
        macro_f1=_score(metrics.macro_f1(predicted, labels), intervals["macro_f1"]),
        balanced_accuracy=_score(
            metrics.balanced_accuracy(predicted, labels), intervals["balanced_accuracy"]
        ),
    )


def embedding_baselines(train: EmbeddedImages, evaluated: EmbeddedImages) -> Baselines:
    """Return the accuracies of kNN and of the nearest class mean."""
    if not len(train.labels):
        return Baselines()
    arguments = train.common.float(), train.labels, evaluated.common.float(), evaluated.labels
    return Baselines(
        knn_on_probe_input=metrics.knn_accuracy(*arguments),
        nearest_class_mean=metrics.nearest_mean_accuracy(*arguments),
    )


def class_scores(
    predicted: Tensor, labels: Tensor, rejected: Tensor, classes: Sequence[str]
) -> tuple[ClassScores, ...]:
    """Return the scores of each class."""
    precision, recall, f1, support = precision_recall_fscore_support(
        labels.numpy(), predicted.numpy(), labels=range(len(classes)), zero_division=0
    )
    rejected_images = torch.bincount(labels[rejected], minlength=len(classes))
    return tuple(
        ClassScores(
            name=name,
            images=int(support[c]),
            precision=float(precision[c]),
            recall=float(recall[c]),
            f1=float(f1[c]),
            rejected=float(rejected_images[c] / max(1, support[c])),
        )
        for c, name in enumerate(classes)
    )


def confusion_cells(predicted: Tensor, labels: Tensor) -> tuple[ConfusionCell, ...]:
    """Return (label, prediction, images) of the pairs of classes that occur, in order."""
    rows = torch.stack([labels, predicted], 1).numpy()
    pairs, counts = np.unique(rows, axis=0, return_counts=True)
    return tuple(
        (label, prediction, count)
        for (label, prediction), count in zip(pairs.tolist(), counts.tolist(), strict=True)
    )


def confused_pairs(
    confusion: Sequence[ConfusionCell], classes: Sequence[str]
) -> tuple[ConfusedPair, ...]:
    """Return pairs of classes of which the first was predicted as the second, worst first."""
    errors = [cell for cell in confusion if cell[0] != cell[1]]
    worst = sorted(errors, key=lambda cell: -cell[2])[:CONFUSED_PAIRS]
    return tuple(
        ConfusedPair(label=classes[label], prediction=classes[prediction], count=count)
        for label, prediction, count in worst
    )


def model_metrics(evaluation: Evaluation) -> ModelMetrics:
    """Return the results for the model card."""
    scores, calibration = evaluation.scores, evaluation.calibration
    return ModelMetrics(
        accuracy=scores.accuracy.value,
        top5_accuracy=scores.top5_accuracy.value,
        macro_f1=scores.macro_f1.value,
        balanced_accuracy=scores.balanced_accuracy.value,
        ece=calibration.after.ece,
        nll=calibration.nll,
    )


def _count_training_images(train: Tensor, evaluated: Tensor) -> int:
    """Count the evaluated images whose vector equals that of a training image, up to rounding.

    Vectors that are close are also close along any direction. The training images are sorted along
    one direction, so that each image is compared with a few candidates only.
    """
    if not len(train):
        return 0
    train, evaluated = train.double(), evaluated.double()
    direction = torch.arange(1.0, evaluated.shape[1] + 1, dtype=torch.float64).cos()
    direction /= direction.norm()
    order = (train @ direction).sort()
    positions = evaluated @ direction
    first = torch.searchsorted(order.values, positions - SAME_VECTOR)
    # If all vectors are nearly the same, the number of candidates has to be limited.
    counts = (torch.searchsorted(order.values, positions + SAME_VECTOR) - first).clamp(
        0, COMPARISONS
    )
    query = torch.arange(len(evaluated)).repeat_interleave(counts)
    step = torch.arange(len(query)) - (counts.cumsum(0) - counts)[query]
    distances = (evaluated[query] - train[order.indices[first[query] + step]]).norm(dim=1)
    matches = torch.zeros(len(evaluated), dtype=torch.bool)
    matches[query[distances < SAME_VECTOR]] = True
    return int(matches.sum())


def _score(value: float, interval: tuple[float, float]) -> Score:
    return Score(value=value, low=interval[0], high=interval[1])


def _mean(flags: Tensor) -> float:
    return float(flags.double().mean())
