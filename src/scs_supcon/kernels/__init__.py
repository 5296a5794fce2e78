"""Exact sums over all pairs of a batch, fast and with little memory at any batch size.

Rows and labels may be in any order; sorting, tiling and gathering happen inside.
"""

from scs_supcon.kernels.autograd import full_precision
from scs_supcon.kernels.bias import solve_bias
from scs_supcon.kernels.dense import positives, scs_loss
from scs_supcon.kernels.distances import mean_distance
from scs_supcon.kernels.gather import (
    Gather,
    gather_rows,
    join_rows,
    several_processes,
    sum_gradients,
)
from scs_supcon.kernels.pairs import Anchors, Pairs, Sides, Weighting
from scs_supcon.kernels.sigmoid import sigmoid_pairs
from scs_supcon.kernels.softmax import softmax_pairs

__all__ = [
    "Anchors",
    "Gather",
    "Pairs",
    "Sides",
    "Weighting",
    "full_precision",
    "gather_rows",
    "join_rows",
    "mean_distance",
    "positives",
    "scs_loss",
    "several_processes",
    "sigmoid_pairs",
    "softmax_pairs",
    "solve_bias",
    "sum_gradients",
]
