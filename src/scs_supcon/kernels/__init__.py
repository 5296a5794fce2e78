"""Exact sums over all pairs of a batch, fast and with little memory at any batch size.

Rows and labels may be in any order; sorting, tiling and gathering happen inside.
"""

from scs_supcon.kernels.autograd import full_precision
from scs_supcon.kernels.bias import solve_bias
from scs_supcon.kernels.cosines import mean_cosines
from scs_supcon.kernels.dense import Weighting, positives
from scs_supcon.kernels.distances import style_distance
from scs_supcon.kernels.gather import gather_rows, several_processes, sum_gradients
from scs_supcon.kernels.layout import count_pairs
from scs_supcon.kernels.sigmoid import sigmoid_pair_loss
from scs_supcon.kernels.soft import expected_positives, soft_sigmoid_loss, soft_style_distance
from scs_supcon.kernels.softmax import softmax_pair_loss

__all__ = [
    "Weighting",
    "count_pairs",
    "expected_positives",
    "full_precision",
    "gather_rows",
    "mean_cosines",
    "positives",
    "several_processes",
    "sigmoid_pair_loss",
    "soft_sigmoid_loss",
    "soft_style_distance",
    "softmax_pair_loss",
    "solve_bias",
    "style_distance",
    "sum_gradients",
]
