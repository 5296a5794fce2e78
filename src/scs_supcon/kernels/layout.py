"""Rows sorted by label, and the tiles that their pairs form.

Sorted rows put same-class pairs into blocks on the diagonal: most tiles hold only negative pairs
and need no mask at all.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

TILE = 512  # 1 MiB of float32: a tile stays in a core's cache between its passes


@dataclass(frozen=True)
class Rows:
    """Labels of rows that are sorted by label.

    Attributes:
        labels: `(n,)`, ascending.
        own: for rows gathered from all processes, where this process's rows are among them.
    """

    labels: Tensor
    own: Tensor | None = None

    def __len__(self) -> int:
        return len(self.labels)

    @cached_property
    def counts(self) -> tuple[Tensor, Tensor]:
        """(distinct labels, how many rows each has)."""
        classes, counts = torch.unique_consecutive(self.labels, return_counts=True)
        return classes, counts

    @cached_property
    def listed(self) -> list[int]:
        """The labels on the host."""
        listed: list[int] = self.labels.tolist()
        return listed

    def place(self, tile: "Tile") -> tuple[Tensor, Tensor] | None:
        """Where a tile with these columns holds the pairs of a row with itself."""
        if self.own is None:
            return None
        inside = self.own[tile.rows] - tile.columns.start
        (row,) = torch.where((inside >= 0) & (inside < tile.columns.stop - tile.columns.start))
        return row, inside[row]


class Tile(NamedTuple):
    rows: slice
    columns: slice
    diagonal: bool  # a tile of the symmetric case that holds pairs (u, u)
    same: tuple[slice, slice] | None  # the part, counted from its corner, that holds classmates
    uniform: bool  # everything in that part is of one class


def sort_rows(embeddings: Tensor, labels: Tensor) -> tuple[Tensor, Rows]:
    """Return the embeddings in the order of their labels, and those labels."""
    ordered, order = torch.sort(labels, stable=True)
    rows: Tensor = _Permute.apply(embeddings, order)
    return rows, Rows(ordered)


def tiles(rows: Rows, columns: Rows | None, size: int = TILE) -> Iterator[Tile]:
    """Yield the tiles of all pairs; with `columns=None` the upper triangle of rows × rows."""
    others = rows if columns is None else columns
    if columns is None and 0 < len(rows) <= size:
        whole = slice(0, len(rows))
        yield Tile(whole, whole, True, (whole, whole), False)
        return
    row_labels = rows.listed
    column_labels = others.listed
    for i in range(0, len(rows), size):
        r = slice(i, min(i + size, len(rows)))
        for j in range(i if columns is None else 0, len(others), size):
            c = slice(j, min(j + size, len(others)))
            low = max(row_labels[i], column_labels[j])
            high = min(row_labels[r.stop - 1], column_labels[c.stop - 1])
            same = None
            if low <= high:
                same = _span(row_labels, r, low, high), _span(column_labels, c, low, high)
            yield Tile(r, c, columns is None and i == j, same, low == high)


def _span(labels: list[int], within: slice, low: int, high: int) -> slice:
    """Where, counted from the start of `within`, sorted labels lie between low and high."""
    left = bisect_left(labels, low, within.start, within.stop)
    right = bisect_right(labels, high, within.start, within.stop)
    return slice(left - within.start, right - within.start)


def same_class_pairs(rows: Rows, columns: Rows | None = None) -> int:
    """Count ordered pairs with equal labels, pairs (u, u) included."""
    classes, counts = rows.counts
    if columns is None:
        return int((counts * counts).sum())
    return int((counts * members(classes, columns)).sum())


def members(labels: Tensor, rows: Rows) -> Tensor:
    """How many of `rows` carry each of `labels`."""
    left = torch.searchsorted(rows.labels, labels, right=False)
    return torch.searchsorted(rows.labels, labels, right=True) - left


def longest(x: Tensor) -> float:
    """Length of the longest row."""
    return float(torch.linalg.vector_norm(x, dim=1).max()) if len(x) else 0.0


class _Permute(torch.autograd.Function):
    """Reorder rows; the way back is a gather too, not a scatter."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, order: Tensor) -> Tensor:
        ctx.save_for_backward(order)
        return x.index_select(0, order)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (order,) = ctx.saved_tensors
        inverse = torch.empty_like(order)
        inverse[order] = torch.arange(len(order), device=order.device)
        return grad.index_select(0, inverse), None
