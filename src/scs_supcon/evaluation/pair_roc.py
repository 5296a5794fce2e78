"""Same class or not, by similarity alone: every pair of images, and one threshold for all.

A pair is called "same" where its similarity reaches the threshold. The true positive rate is the
share of same-class pairs that are called so, the false positive rate that of the others. The area
under the curve of one against the other is the chance that a same-class pair is the more similar
one of two pairs, ties counted half; it is exact.
"""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from scs_supcon.evaluation.metrics import chunks, evenly

IMAGES = 4000  # paired at most: eight million pairs
BINS = 60
POINTS = 99  # of each kind on the curve

Values = NDArray[np.float32]


def pair_roc(
    rows: Tensor, labels: Tensor, threshold: float, images: int = IMAGES
) -> dict[str, Any]:
    """Judge the pairs of unit rows (n, D); rates are None where there are no such pairs."""
    chosen = evenly(len(rows), images)
    same, different = similarities(rows[chosen], labels[chosen])
    edges = np.linspace(-1, 1, BINS + 1)
    both = len(same) and len(different)
    return {
        "auc": auc(same, different) if both else None,
        "true_positive_rate": _reaching(same, threshold) if len(same) else None,
        "false_positive_rate": _reaching(different, threshold) if len(different) else None,
        "roc": curve(same, different) if both else [],
        "histogram": {
            "edges": edges.tolist(),
            "same": _counts(same, edges),
            "different": _counts(different, edges),
        },
        "images": len(chosen),
    }


def similarities(rows: Tensor, labels: Tensor) -> tuple[Values, Values]:
    """Similarities of all same-class pairs and of all others, sorted; each pair once."""
    rows = rows.float()
    same, different = [], []
    for some in chunks(len(rows), len(rows)):
        similar = rows[some] @ rows[some.start :].T
        after = torch.ones_like(similar, dtype=torch.bool).triu(1)
        alike = labels[some, None] == labels[some.start :]
        same.append(similar[after & alike].numpy())
        different.append(similar[after & ~alike].numpy())
    empty = [np.empty(0, np.float32)]
    return np.sort(np.concatenate(same or empty)), np.sort(np.concatenate(different or empty))


def auc(same: Values, different: Values) -> float:
    """Area under the curve, from sorted similarities."""
    below = np.searchsorted(different, same, "left").astype(np.float64)
    upto = np.searchsorted(different, same, "right")
    return float(((below + upto) / 2).mean() / len(different))


def curve(same: Values, different: Values) -> list[list[float]]:
    """Points [false positive rate, true positive rate], at even shares of either kind of pair."""
    shares = np.arange(1, POINTS + 1) / (POINTS + 1)
    at = np.concatenate([_quantiles(same, shares), _quantiles(different, shares)])
    thresholds = np.unique(at)[::-1]
    points = [[_reaching(different, one), _reaching(same, one)] for one in thresholds]
    return [[0.0, 0.0], *points, [1.0, 1.0]]


def _quantiles(ordered: Values, shares: NDArray[np.float64]) -> Values:
    return ordered[(shares * len(ordered)).astype(np.int64)]


def _reaching(ordered: Values, threshold: float) -> float:
    """Share of the values that reach a threshold."""
    below = np.searchsorted(ordered, np.float32(threshold), "left")
    return round(1 - float(below) / len(ordered), 9)


def _counts(ordered: Values, edges: NDArray[np.float64]) -> list[int]:
    """How many values lie between two edges; those beyond the ends count in the last bins."""
    at = np.searchsorted(ordered, edges[1:-1], "left")
    counts: list[int] = np.diff(at, prepend=0, append=len(ordered)).tolist()
    return counts
