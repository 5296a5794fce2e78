"""Numbers that judge a classifier or an embedding. Fractions, not percent; float64 inside.

Labels are class indices (n,), probabilities (n, classes) with rows that sum to 1. NumPy arrays and
tensors are both welcome. The order of classes settles every tie: the first one wins.
"""

import math
from collections.abc import Iterator
from statistics import NormalDist

import numpy as np
import torch
from torch import Tensor

from scs_supcon.evaluation.record import Reliability, ReliabilityBin
from scs_supcon.inference.decision import class_means
from scs_supcon.nn.head import unit

Array = Tensor | np.ndarray
CHUNK = 2**24  # similarities held at once by the neighbour search: 64 MB


def summary(probabilities: Array, labels: Array) -> dict[str, float]:
    """Everything about the predictions of one set of images, under the field's usual names."""
    predicted = torch.as_tensor(probabilities).argmax(1)
    return {
        "acc1": top_k(probabilities, labels, 1),
        "acc5": top_k(probabilities, labels, 5),
        "macro_f1": macro_f1(predicted, labels),
        "balanced_acc": balanced_accuracy(predicted, labels),
        "ece": calibration_error(probabilities, labels),
        "nll": negative_log_likelihood(probabilities, labels),
    }


def top_k(scores: Array, labels: Array, k: int = 1) -> float:
    """Share of rows with fewer than k classes ahead of the right one.

    A class is ahead if its score is higher, or equal and the class comes earlier: k = 1 is argmax.
    """
    scores, labels = torch.as_tensor(scores), torch.as_tensor(labels)
    own = scores.gather(1, labels[:, None])
    earlier = torch.arange(scores.shape[1], device=scores.device) < labels[:, None]
    ahead = (scores > own) | ((scores == own) & earlier)
    return _mean(ahead.sum(1) < k)


def macro_f1(predicted: Array, labels: Array) -> float:
    """Mean over the classes present in the labels of F1 = 2 TP / (2 TP + FP + FN).

    Data may hold few of a model's classes, and one that is not there cannot be found.
    """
    table = confusion(predicted, labels)
    return _mean(class_f1(table)[table.sum(1) > 0])


def class_f1(table: Tensor) -> Tensor:
    """F1 of each class of a `confusion`; 0 if it is neither present nor named."""
    return 2 * table.diagonal() / (table.sum(0) + table.sum(1)).clamp_min(1)


def balanced_accuracy(predicted: Array, labels: Array) -> float:
    """Mean over the classes present of the share of their images that is predicted right."""
    table = confusion(predicted, labels)
    present = table.sum(1)
    return _mean((table.diagonal() / present)[present > 0])


def calibration_error(probabilities: Array, labels: Array, bins: int = 15) -> float:
    """Expected calibration error: Σ_m (n_m / n) |accuracy_m − confidence_m|.

    Confidence is the largest probability of a row. Bin m of M holds the rows whose confidence lies
    in ((m − 1)/M, m/M]; accuracy_m and confidence_m are the means over its n_m rows.
    """
    return reliability(probabilities, labels, bins).ece


def reliability(probabilities: Array, labels: Array, bins: int = 15) -> Reliability:
    """The calibration error with its bins, for a diagram; an empty bin has None for its means."""
    confidence, predicted = torch.as_tensor(probabilities).double().max(1)
    right = (predicted == torch.as_tensor(labels)).double()
    edges = torch.linspace(0, 1, bins + 1, dtype=torch.float64, device=confidence.device)
    bin_of = torch.bucketize(confidence, edges[1:-1])
    counts = torch.bincount(bin_of, minlength=bins)
    sums = confidence.new_zeros(2, bins).index_add_(1, bin_of, torch.stack([confidence, right]))
    means = (sums / counts.clamp_min(1)).tolist()
    rows = zip(edges[:-1].tolist(), edges[1:].tolist(), *means, counts.tolist(), strict=True)
    return Reliability(
        ece=float((sums[1] - sums[0]).abs().sum() / len(confidence)),
        bins=tuple(
            ReliabilityBin(
                low=low,
                high=high,
                confidence=mean_confidence if count else None,
                accuracy=accuracy if count else None,
                count=count,
            )
            for low, high, mean_confidence, accuracy, count in rows
        ),
    )


def negative_log_likelihood(probabilities: Array, labels: Array) -> float:
    """Mean of −ln p(right class); infinite when a right class was given probability 0."""
    own = torch.as_tensor(probabilities).double().gather(1, torch.as_tensor(labels)[:, None])
    return float(-own.log().mean())


def accuracy_interval(right: Array, level: float = 0.95) -> tuple[float, float]:
    """Wilson's score interval of an accuracy, from one true-or-false per image.

    Its ends are the shares p with |share right − p| = z √(p (1 − p) / n). Resampling would give an
    interval without width where all flags agree, as if a few right answers proved a perfect model.
    """
    flags = torch.as_tensor(right)
    n, share = len(flags), _mean(flags)
    z = NormalDist().inv_cdf((1 + level) / 2)
    middle = share + z**2 / (2 * n)
    reach = z * math.sqrt(share * (1 - share) / n + (z / (2 * n)) ** 2)
    low, high = ((middle + side * reach) / (1 + z**2 / n) for side in (-1, 1))
    return max(0.0, low), min(1.0, high)


def knn_scores(
    known: Array, known_labels: Array, queries: Array, k: int = 10, temperature: float = 0.07
) -> Tensor:
    """Votes (n, classes) of the k known rows most similar by cosine, each worth exp(cosine / τ)."""
    known, queries = unit(torch.as_tensor(known)), unit(torch.as_tensor(queries))
    known_labels = torch.as_tensor(known_labels)
    votes = queries.new_zeros(len(queries), int(known_labels.max()) + 1, dtype=torch.float64)
    for rows in chunks(len(queries), len(known)):
        near = (queries[rows] @ known.T).topk(min(k, len(known)), dim=1)
        # The largest similarity is 1, so subtracting 1 keeps the exponential in range.
        weights = ((near.values.double() - 1) / temperature).exp()
        votes[rows] = votes[rows].scatter_add_(1, known_labels[near.indices], weights)
    return votes


def knn_accuracy(
    known: Array, known_labels: Array, queries: Array, labels: Array, k: int = 10
) -> float:
    """Share of queries whose k nearest known rows vote for the right class (`knn_scores`)."""
    return _mean(knn_scores(known, known_labels, queries, k).argmax(1) == torch.as_tensor(labels))


def nearest_mean_accuracy(
    known: Array, known_labels: Array, queries: Array, labels: Array
) -> float:
    """Share of unit queries that are nearest, by distance, to the class mean of their own class."""
    labels = torch.as_tensor(labels)
    classes = int(max(torch.as_tensor(known_labels).max(), labels.max())) + 1
    means = class_means(torch.as_tensor(known), torch.as_tensor(known_labels), classes)
    closeness = unit(torch.as_tensor(queries)).double() @ means.T - means.square().sum(1) / 2
    closeness[:, torch.bincount(torch.as_tensor(known_labels), minlength=classes) == 0] = -torch.inf
    return _mean(closeness.argmax(1) == labels)


def confusion(predicted: Array, labels: Array, classes: int = 0) -> Tensor:
    """Counts by (right class, predicted class); at least so many classes."""
    predicted, labels = torch.as_tensor(predicted), torch.as_tensor(labels)
    classes = max(classes, int(max(predicted.max(), labels.max())) + 1)
    cells = torch.bincount(labels * classes + predicted, minlength=classes**2)
    return cells.view(classes, classes).double()


def chunks(rows: int, columns: int) -> Iterator[slice]:
    """Slices of rows, so that no more than 64 MB of single-precision columns are held at once."""
    step = max(1, CHUNK // max(1, columns))
    return (slice(start, min(start + step, rows)) for start in range(0, rows, step))


def evenly_spaced(total: int, most: int) -> Tensor:
    """Indices of at most `most` of `total` rows, evenly spaced."""
    return torch.arange(min(total, most)) * total // max(1, min(total, most))


def _mean(values: Tensor) -> float:
    return float(values.double().mean())
