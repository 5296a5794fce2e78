"""Find images whose label is probably wrong, by confident learning (Northcutt et al., 2021).

Each image is classified by a model that was not trained on it: five stratified folds, and a linear
classifier on the encoder's features (`linear.py`) with probabilities calibrated by one temperature.
With p_c the probability of class c, the threshold of a class is the mean of p_c over the images
with that label. A label is suspected if its probability is below its threshold while another class
reaches the threshold of that class. The larger the difference between the two probabilities, the
more suspicious the label.

A frozen encoder was not trained on the labels. A trained encoder has also learned wrong labels, and
its features hide some of the errors: fewer are found, but those are no less suspicious.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from scs_supcon.evaluation import linear
from scs_supcon.evaluation.record import LabelError
from scs_supcon.inference.classifier import fit_temperature

FOLDS = 5
MAX_ERRORS = 60


class LabelScores(NamedTuple):
    """How well the labels of n images fit, each by a classifier that was not fitted to the image.

    Attributes:
        prediction: (n,) most probable class.
        confidence: (n,) its probability.
        label_probability: (n,) probability of the label.
        suggested: (n,) class that fits better than a suspected label; −1 if it is not suspected.
        suspicion: (n,) difference of the two probabilities; 0 if the label is not suspected.
    """

    prediction: Tensor
    confidence: Tensor
    label_probability: Tensor
    suggested: Tensor
    suspicion: Tensor


def find_label_errors(
    features: Tensor, labels: Tensor, images: Sequence[str], classes: Sequence[str]
) -> tuple[LabelError, ...]:
    """Cross-validate a linear classifier on features (n, D) and return the suspected labels."""
    probabilities = out_of_fold(features, labels, len(classes))
    return suspected_labels(probabilities, labels, images, classes)


def out_of_fold(
    features: Tensor, labels: Tensor, classes: int, folds: int = FOLDS, seed: int = 0
) -> Tensor:
    """Return probabilities (n, classes), each from a classifier fitted without that image."""
    rows = features.float() - features.float().mean(0)
    total = linear.moments(rows, labels, classes)
    means = total.sums / total.counts.clamp_min(1)[:, None]
    fold_of = stratified_folds(labels, folds, seed)
    scores = torch.empty(len(rows), classes, dtype=torch.float64)
    for fold in range(folds):
        held_out = fold_of == fold
        if held_out.any():
            excluded = linear.moments(rows[held_out], labels[held_out], classes, means)
            scores[held_out] = linear.from_moments(total - excluded).scores(rows[held_out])
    # A class whose only image is held out cannot be predicted: its probability is nearly 0.
    lowest = scores.masked_fill(scores.isinf(), torch.inf).amin(1, keepdim=True)
    scores = torch.where(scores.isinf(), lowest - 1, scores)
    return (scores / fit_temperature(scores, labels)).softmax(1)


def stratified_folds(labels: Tensor, folds: int, seed: int) -> Tensor:
    """Return the fold of each row: shuffled, then dealt out class by class."""
    shuffled = np.random.default_rng(seed).permutation(len(labels))
    order = shuffled[np.argsort(labels.numpy()[shuffled], kind="stable")]
    fold_of = np.empty(len(labels), dtype=np.int64)
    fold_of[order] = np.arange(len(labels)) % folds
    return torch.from_numpy(fold_of)


def suspected_labels(
    probabilities: Tensor,
    labels: Tensor,
    images: Sequence[str],
    classes: Sequence[str],
    max_errors: int = MAX_ERRORS,
) -> tuple[LabelError, ...]:
    """Return the labels that are probably wrong, most suspicious first.

    Args:
        probabilities: (n, classes), each from a classifier that was not fitted to the image.
        labels: (n,)
        images: names of the images.
        classes: names of the classes.
        max_errors: maximum number of labels to return.
    """
    scores = _score_labels(probabilities, labels)
    order = scores.suspicion.sort(descending=True, stable=True)
    return tuple(
        LabelError(
            image=images[row],
            label=classes[int(labels[row])],
            suggested=classes[int(scores.suggested[row])],
            label_probability=float(scores.label_probability[row]),
            suggested_probability=float(probabilities[row, scores.suggested[row]]),
        )
        for row in order.indices[order.values > 0][:max_errors].tolist()
    )


def label_scores(features: Tensor, labels: Tensor, classes: int) -> LabelScores:
    """Return the scores of all labels, by a linear classifier of features (n, D), out of fold."""
    return _score_labels(out_of_fold(features, labels, classes), labels)


def _score_labels(probabilities: Tensor, labels: Tensor) -> LabelScores:
    rows = torch.arange(len(labels))
    label_probability = probabilities[rows, labels]
    counts = torch.bincount(labels, minlength=probabilities.shape[1])
    sums = label_probability.new_zeros(len(counts)).index_add_(0, labels, label_probability)
    thresholds = torch.where(counts > 0, sums / counts.clamp_min(1), torch.inf)
    reaching = torch.where(probabilities >= thresholds, probabilities, 0.0)
    reaching[rows, labels] = 0.0
    rival = reaching.max(1)
    suspicious = label_probability < thresholds[labels]
    gap = torch.where(suspicious, rival.values - label_probability, 0.0).clamp_min(0)
    best = probabilities.max(1)
    return LabelScores(
        best.indices,
        best.values,
        label_probability,
        torch.where(gap > 0, rival.indices, -1),
        gap,
    )
