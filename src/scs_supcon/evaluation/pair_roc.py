"""Separate same-class from different-class pairs by one threshold on their similarity.

A pair is predicted to be of one class if its similarity reaches the threshold. The true positive
rate is the share of same-class pairs that reach it, the false positive rate that of the
different-class pairs. The area under the ROC curve is the probability that a random same-class pair
is more similar than a random different-class pair, ties counted half; it is exact.
"""

from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from scs_supcon.evaluation.metrics import chunks
from scs_supcon.evaluation.record import PairHistogram, PairStatistics
from scs_supcon.kernels.layout import evenly_spaced

MAX_IMAGES = 4000  # eight million pairs
BINS = 60
POINTS = 99  # quantiles of each kind of pair on the ROC curve

Similarities = NDArray[np.float32]


def pair_statistics(
    rows: Tensor,
    labels: Tensor,
    rule: Literal["boundary", "fitted"],
    threshold: float,
    t: float | None = None,
    max_images: int = MAX_IMAGES,
) -> PairStatistics:
    """Return statistics of the pairs of unit rows (n, D); rates are None without such pairs."""
    subset = evenly_spaced(len(rows), max_images)
    same, different = similarities(rows[subset], labels[subset])
    edges = np.linspace(-1, 1, BINS + 1)
    both = len(same) > 0 and len(different) > 0
    return PairStatistics(
        rule=rule,
        threshold=threshold,
        t=t,
        auc=auc(same, different) if both else None,
        true_positive_rate=_share_reaching(same, threshold) if len(same) else None,
        false_positive_rate=_share_reaching(different, threshold) if len(different) else None,
        roc=roc_curve(same, different) if both else (),
        histogram=PairHistogram(
            edges=tuple(edges.tolist()),
            same=_counts(same, edges),
            different=_counts(different, edges),
        ),
        images=len(subset),
    )


def similarities(rows: Tensor, labels: Tensor) -> tuple[Similarities, Similarities]:
    """Return the sorted similarities of same-class and of different-class pairs, each pair once."""
    rows = rows.float()
    same, different = [np.empty(0, np.float32)], [np.empty(0, np.float32)]
    for chunk in chunks(len(rows), len(rows)):
        similarity = rows[chunk] @ rows[chunk.start :].T
        upper = torch.ones_like(similarity, dtype=torch.bool).triu(1)
        positive = labels[chunk, None] == labels[chunk.start :]
        same.append(similarity[upper & positive].numpy())
        different.append(similarity[upper & ~positive].numpy())
    return np.sort(np.concatenate(same)), np.sort(np.concatenate(different))


def auc(same: Similarities, different: Similarities) -> float:
    """Return the area under the ROC curve of sorted similarities."""
    below = np.searchsorted(different, same, "left").astype(np.float64)
    up_to = np.searchsorted(different, same, "right")
    return float(((below + up_to) / 2).mean() / len(different))


def roc_curve(same: Similarities, different: Similarities) -> tuple[tuple[float, float], ...]:
    """Return points (false positive rate, true positive rate) at quantiles of both kinds."""
    shares = np.arange(1, POINTS + 1) / (POINTS + 1)
    quantiles = [ordered[(shares * len(ordered)).astype(np.int64)] for ordered in (same, different)]
    thresholds = np.unique(np.concatenate(quantiles))[::-1]
    points = [(_share_reaching(different, t), _share_reaching(same, t)) for t in thresholds]
    return ((0.0, 0.0), *points, (1.0, 1.0))


def _share_reaching(ordered: Similarities, threshold: float) -> float:
    below = np.searchsorted(ordered, np.float32(threshold), "left")
    return round(1 - float(below) / len(ordered), 9)


def _counts(ordered: Similarities, edges: NDArray[np.float64]) -> tuple[int, ...]:
    """Return the number of values per bin; values beyond the ends count in the outer bins."""
    positions = np.searchsorted(ordered, edges[1:-1], "left")
    return tuple(np.diff(positions, prepend=0, append=len(ordered)).tolist())
