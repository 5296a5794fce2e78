"""Sums over all pairs of a batch: exact, fast, and small in memory at any batch size."""

from scs_supcon.pairs.distances import class_distances
from scs_supcon.pairs.gather import gather_rows, sum_gradients
from scs_supcon.pairs.listed import listed_pairs
from scs_supcon.pairs.rows import Rows, sort_rows
from scs_supcon.pairs.sigmoid import sigmoid_pairs
from scs_supcon.pairs.softmax import softmax_pairs
from scs_supcon.pairs.solve import solve_bias, solve_listed_bias

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
