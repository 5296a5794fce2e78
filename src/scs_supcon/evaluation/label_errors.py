"""Images whose label is probably wrong, by confident learning (Northcutt et al., 2021).

Every image is judged by a classifier that has not learned from it: five folds, drawn with the
classes in proportion, and a linear classifier on the encoder's features (`linear.py`), its
probabilities calibrated by one temperature. With p_c the probability of class c, the bar of a class
is the mean of p_c over the images that carry its label: how sure one usually is of it. A label is
suspected if its own probability is below its bar while another class reaches that class's bar. The
wider the gap between the two probabilities, the more suspicious.

A frozen encoder never saw the labels. One that was trained on them has learned wrong ones too, and
its features then hide some of the errors: fewer are found, but those found are no less suspicious.
"""

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from scs_supcon.evaluation import linear
from scs_supcon.evaluation.calibration import fit_temperature

FOLDS = 5
MOST = 60


class Suspect(NamedTuple):
    """A suspected label error: the row, the class suggested, and both probabilities."""

    row: int
    suggested: int
    own_probability: float
    suggested_probability: float


def out_of_fold(
    features: Tensor, labels: Tensor, classes: int, folds: int = FOLDS, seed: int = 0
) -> Tensor:
    """Probabilities (n, classes) of features (n, D), each from a classifier that did not see it."""
    rows = features.float() - features.float().mean(0)
    everything = linear.moments(rows, labels, classes)
    means = everything.sums / everything.counts.clamp_min(1)[:, None]
    fold_of = deal(labels, folds, seed)
    scores = torch.empty(len(rows), classes, dtype=torch.float64)
    for fold in range(folds):
        out = fold_of == fold
        if out.any():
            held = linear.moments(rows[out], labels[out], classes, means)
            scores[out] = linear.from_moments(everything - held).scores(rows[out])
    # A class whose only image is held out is unknown then: as good as impossible.
    finite = scores.masked_fill(scores.isinf(), torch.inf).amin(1, keepdim=True)
    scores = torch.where(scores.isinf(), finite - 1, scores)
    return (scores / fit_temperature(scores, labels)).softmax(1)


def deal(labels: Tensor, folds: int, seed: int) -> Tensor:
    """The fold of each row: shuffled, then dealt out class by class."""
    shuffled = np.random.default_rng(seed).permutation(len(labels))
    order = shuffled[np.argsort(labels.numpy()[shuffled], kind="stable")]
    fold_of = np.empty(len(labels), dtype=np.int64)
    fold_of[order] = np.arange(len(labels)) % folds
    return torch.from_numpy(fold_of)


def suspects(probabilities: Tensor, labels: Tensor, most: int = MOST) -> list[Suspect]:
    """Rows that are probably mislabelled, most suspicious first.

    Args:
        probabilities: (n, classes), none from a classifier that learned from the row.
        labels: (n,)
        most: how many to name.
    """
    rows = torch.arange(len(labels))
    own = probabilities[rows, labels]
    counts = torch.bincount(labels, minlength=probabilities.shape[1])
    sums = own.new_zeros(len(counts)).index_add_(0, labels, own)
    bars = torch.where(counts > 0, sums / counts.clamp_min(1), torch.inf)
    passing = torch.where(probabilities >= bars, probabilities, 0.0)
    passing[rows, labels] = 0.0
    rival = passing.max(1)
    gap = torch.where(own < bars[labels], rival.values - own, 0.0)
    order = gap.sort(descending=True, stable=True)
    found = order.indices[order.values > 0][:most]
    return [
        Suspect(row, int(rival.indices[row]), float(own[row]), float(rival.values[row]))
        for row in found.tolist()
    ]


def described(
    found: list[Suspect], names: list[str], labels: Tensor, classes: tuple[str, ...]
) -> list[dict[str, Any]]:
    """Suspects by name."""
    return [
        {
            "name": names[one.row],
            "label": classes[int(labels[one.row])],
            "suggested": classes[one.suggested],
            "own_probability": one.own_probability,
            "suggested_probability": one.suggested_probability,
        }
        for one in found
    ]
