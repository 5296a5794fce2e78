"""Sums over all pairs of a batch: exact, fast, and small in memory at any batch size."""

from scs_supcon.kernels.bias import solve_bias, solve_listed_bias
from scs_supcon.kernels.distances import class_distances
from scs_supcon.kernels.gather import gather_rows, sum_gradients
from scs_supcon.kernels.layout import Rows, sort_rows
from scs_supcon.kernels.pair_list import listed_pairs
from scs_supcon.kernels.sigmoid import sigmoid_pairs
from scs_supcon.kernels.softmax import softmax_pairs

__all__ = [
    "Rows",
    "class_distances",
    "gather_rows",
    "listed_pairs",
    "sigmoid_pairs",
    "softmax_pairs",
    "solve_bias",
    "solve_listed_bias",
    "sort_rows",
    "sum_gradients",
]
