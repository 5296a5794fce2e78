"""Metrics of a classifier or an embedding, as fractions; float64 inside.

Labels are class indices (n,), probabilities (n, classes) with rows that sum to 1. NumPy arrays and
tensors are accepted. Ties go to the class that comes first.
"""

from collections.abc import Callable, Iterator

import numpy as np
import torch
from scipy.stats import binomtest
from sklearn.metrics import f1_score, recall_score
from torch import Tensor

from scs_supcon.evaluation.record import Reliability, ReliabilityBin
from scs_supcon.inference.decision import class_means
from scs_supcon.nn.head import unit

Array = Tensor | np.ndarray
CHUNK = 2**24  # similarities held at once by the neighbour search: 64 MB


def top_k(scores: Array, labels: Array, k: int = 1) -> float:
    """Return the share of rows in which fewer than k classes are ahead of the correct one.

    A class is ahead if its score is higher, or equal and the class comes first: k = 1 is argmax.
    """
    scores, labels = torch.as_tensor(scores), torch.as_tensor(labels)
    correct = scores.gather(1, labels[:, None])
    earlier = torch.arange(scores.shape[1], device=scores.device) < labels[:, None]
    ahead = (scores > correct) | ((scores == correct) & earlier)
    return _mean(ahead.sum(1) < k)


def macro_f1(predicted: Array, labels: Array) -> float:
    """Return the mean of F1 = 2 TP / (2 TP + FP + FN) over the classes present in the labels."""
    return _class_mean(f1_score, predicted, labels)


def balanced_accuracy(predicted: Array, labels: Array) -> float:
    """Return the mean recall over the classes present in the labels."""
    return _class_mean(recall_score, predicted, labels)


def reliability(probabilities: Array, labels: Array, bins: int = 15) -> Reliability:
    """Return the expected calibration error Σ_m (n_m / n) |accuracy_m − confidence_m| and its bins.

    Confidence is the largest probability of a row. Bin m of M holds the rows whose confidence lies
    in ((m − 1)/M, m/M]; accuracy_m and confidence_m are the means over its n_m rows.
    """
    confidence, predicted = torch.as_tensor(probabilities).double().max(1)
    correct = (predicted == torch.as_tensor(labels)).double()
    edges = torch.linspace(0, 1, bins + 1, dtype=torch.float64, device=confidence.device)
    bin_of = torch.bucketize(confidence, edges[1:-1])
    counts = torch.bincount(bin_of, minlength=bins)
    sums = confidence.new_zeros(2, bins).index_add_(1, bin_of, torch.stack([confidence, correct]))
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
    """Return the mean of −ln p(correct class); infinite if such a probability is 0."""
    p = torch.as_tensor(probabilities).double().gather(1, torch.as_tensor(labels)[:, None])
    return float(-p.log().mean())


def accuracy_interval(correct: Array, level: float = 0.95) -> tuple[float, float]:
    """Return Wilson's score interval of an accuracy, given one flag per image.

    A bootstrap interval would have no width if all flags agree.
    """
    flags = torch.as_tensor(correct)
    interval = binomtest(int(flags.sum()), len(flags)).proportion_ci(level, method="wilson")
    return float(interval.low), float(interval.high)


def knn_scores(
    train: Array, train_labels: Array, queries: Array, k: int = 10, temperature: float = 0.07
) -> Tensor:
    """Return votes (n, classes) of the k most similar training rows, weighted exp(cosine / τ)."""
    train, queries = unit(torch.as_tensor(train)), unit(torch.as_tensor(queries))
    train_labels = torch.as_tensor(train_labels)
    votes = queries.new_zeros(len(queries), int(train_labels.max()) + 1, dtype=torch.float64)
    for rows in chunks(len(queries), len(train)):
        nearest = (queries[rows] @ train.T).topk(min(k, len(train)), dim=1)
        # The largest similarity is 1, so subtracting 1 keeps the exponential in range.
        weights = ((nearest.values.double() - 1) / temperature).exp()
        votes[rows] = votes[rows].scatter_add_(1, train_labels[nearest.indices], weights)
    return votes


def knn_accuracy(
    train: Array, train_labels: Array, queries: Array, labels: Array, k: int = 10
) -> float:
    """Return the accuracy of the vote of the k nearest training rows (`knn_scores`)."""
    return _mean(knn_scores(train, train_labels, queries, k).argmax(1) == torch.as_tensor(labels))


def nearest_mean_accuracy(
    train: Array, train_labels: Array, queries: Array, labels: Array
) -> float:
    """Return the share of unit queries whose nearest class mean is that of their class."""
    train_labels, labels = torch.as_tensor(train_labels), torch.as_tensor(labels)
    classes = int(max(train_labels.max(), labels.max())) + 1
    means = class_means(torch.as_tensor(train), train_labels, classes)
    closeness = unit(torch.as_tensor(queries)).double() @ means.T - means.square().sum(1) / 2
    closeness[:, torch.bincount(train_labels, minlength=classes) == 0] = -torch.inf
    return _mean(closeness.argmax(1) == labels)


def chunks(rows: int, columns: int) -> Iterator[slice]:
    """Yield slices of rows such that at most 64 MB of float32 columns are held at once."""
    step = max(1, CHUNK // max(1, columns))
    return (slice(start, min(start + step, rows)) for start in range(0, rows, step))


def _class_mean(score: Callable[..., float], predicted: Array, labels: Array) -> float:
    """Average a score over the classes present: an absent class cannot be predicted correctly."""
    y_true, y_pred = np.asarray(labels), np.asarray(predicted)
    present = np.unique(y_true)
    return float(score(y_true, y_pred, labels=present, average="macro", zero_division=0))


def _mean(values: Tensor) -> float:
    return float(values.double().mean())
