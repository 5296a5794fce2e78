"""Rows sorted by label, and the tiles that their pairs form.

Sorted rows put same-class pairs into blocks on the diagonal: most tiles hold only negative pairs
and need no mask at all.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple

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
    kind: Literal["negative", "positive", "mixed"]  # what its pairs are
    diagonal: bool  # a tile of the symmetric case that holds pairs (u, u)


def sort_rows(embeddings: Tensor, labels: Tensor) -> tuple[Tensor, Rows]:
    """Return the embeddings in the order of their labels, and those labels."""
    ordered, order = torch.sort(labels, stable=True)
    rows: Tensor = _Permute.apply(embeddings, order)
    return rows, Rows(ordered)


def tiles(rows: Rows, columns: Rows | None, size: int = TILE) -> Iterator[Tile]:
    """Yield the tiles of all pairs; with `columns=None` the upper triangle of rows × rows."""
    row_slices = _slices(len(rows), size)
    row_spans = _spans(rows.labels, row_slices)
    if columns is None:
        column_slices, column_spans = row_slices, row_spans
    else:
        column_slices = _slices(len(columns), size)
        column_spans = _spans(columns.labels, column_slices)
    for i, (r, (row_low, row_high)) in enumerate(zip(row_slices, row_spans, strict=True)):
        start = i if columns is None else 0
        for j in range(start, len(column_slices)):
            low, high = column_spans[j]
            if row_high < low or high < row_low:
                kind: Literal["negative", "positive", "mixed"] = "negative"
            elif row_low == row_high == low == high:
                kind = "positive"
            else:
                kind = "mixed"
            yield Tile(r, column_slices[j], kind, columns is None and i == j)


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


def _slices(n: int, size: int) -> list[slice]:
    return [slice(start, min(start + size, n)) for start in range(0, n, size)]


def _spans(labels: Tensor, slices: list[slice]) -> list[tuple[int, int]]:
    ends = [k for s in slices for k in (s.start, s.stop - 1)]
    values = labels[torch.tensor(ends, dtype=torch.long, device=labels.device)].tolist()
    return list(zip(values[::2], values[1::2], strict=True))


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
