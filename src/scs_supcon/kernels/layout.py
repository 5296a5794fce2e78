"""Rows sorted by label, and the tiles that their pairs form.

Sorting puts same-class pairs into blocks on the diagonal, so most tiles hold only negative pairs
and need no mask.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from scs_supcon.kernels.gather import Group, gather_padded, gather_sizes, several_processes

TILE = 512  # 1 MiB of float32: a tile stays in a core's cache between its passes


@dataclass(frozen=True)
class SortedLabels:
    """Labels in ascending order.

    Attributes:
        labels: `(n,)`, ascending.
        local: if the queries are among these rows, the positions of the queries.
    """

    labels: Tensor
    local: Tensor | None = None

    def __len__(self) -> int:
        return len(self.labels)

    @cached_property
    def counts(self) -> tuple[Tensor, Tensor]:
        """The distinct labels, and the number of rows of each."""
        classes, counts = torch.unique_consecutive(self.labels, return_counts=True)
        return classes, counts

    @cached_property
    def as_list(self) -> list[int]:
        """The labels on the host."""
        values: list[int] = self.labels.tolist()
        return values

    def self_pairs(self, tile: "Tile") -> tuple[Tensor, Tensor] | None:
        """Return the positions of pairs (u, u) in a tile with these columns, if possible."""
        if self.local is None:
            return None
        inside = self.local[tile.rows] - tile.columns.start
        (row,) = torch.where((inside >= 0) & (inside < tile.columns.stop - tile.columns.start))
        return row, inside[row]


@dataclass(frozen=True)
class Layout:
    """Both sides of the pairs in the order of their labels.

    Attributes:
        rows: labels of the queries.
        row_order: `(n,)` indices of the queries.
        columns: labels of the references; None if queries are paired among themselves.
        column_order: `(m,)` indices of the references.
        with_rows: the queries come before the references on the right side.
        sizes: numbers of rows of the processes, if the references are the rows of all of them.
        group: the processes; None: all.
    """

    rows: SortedLabels
    row_order: Tensor
    columns: SortedLabels | None = None
    column_order: Tensor | None = None
    with_rows: bool = False
    sizes: tuple[int, ...] = ()
    group: Group = None

    @property
    def joined(self) -> bool:
        """Whether the references are the rows of all processes, the queries among them."""
        return len(self.sizes) > 0

    @property
    def symmetric(self) -> bool:
        """Whether the queries are paired among themselves within this process."""
        return self.columns is None

    @property
    def one_set(self) -> bool:
        """Whether, over all processes, both sides of the pairs are the same rows."""
        return self.symmetric or self.joined

    @property
    def contains_self(self) -> bool:
        """Whether each query is also one of the references."""
        return self.columns is None or self.columns.local is not None

    @property
    def right(self) -> SortedLabels:
        """Labels of the right side of the pairs."""
        return self.rows if self.columns is None else self.columns

    @property
    def left(self) -> SortedLabels:
        """Labels of the left side of the pairs of all processes."""
        return self.right if self.joined else self.rows

    def arrange(self, rows: Tensor, references: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Return queries and references in this order; rows of other processes have no gradient."""
        queries: Tensor = _Permute.apply(rows, self.row_order)
        if self.column_order is None:
            return queries, None
        if self.joined:
            everything = gather_padded(queries.detach(), self.sizes, self.group)
            return queries, everything.index_select(0, self.column_order)
        assert references is not None
        if self.with_rows:
            references = torch.cat([queries, references.to(queries.dtype)])
        others: Tensor = _Permute.apply(references, self.column_order)
        return queries, others

    def count(self, include_self: bool = True) -> tuple[int, int]:
        """Return (number of pairs, number of same-class pairs) over all processes."""
        excluded = 0 if include_self or not self.contains_self else len(self.left)
        total = len(self.left) * len(self.right) - excluded
        return total, same_class_pairs(self.left, self.right) - excluded

    def count_on_device(self, include_self: bool = True) -> tuple[Tensor, Tensor]:
        """As `count`, as integers on the device of the labels, which the host does not read."""
        excluded = 0 if include_self or not self.contains_self else len(self.left)
        total = len(self.left) * len(self.right) - excluded
        positive = members(self.left.labels, self.right).sum() - excluded
        return positive.new_tensor(total), positive


def lay_out(
    labels: Tensor,  # (n,)
    reference_labels: Tensor | None = None,  # (m,)
    *,
    with_rows: bool = False,
    gather: bool = False,
    group: Group = None,
) -> Layout:
    """Sort the labels of both sides.

    Args:
        labels: `(n,)` of the queries.
        reference_labels: `(m,)`; None: the queries are paired among themselves.
        with_rows: whether the queries are references, too.
        gather: use the rows of all processes as references.
        group: the processes; default: all.
    """
    ordered, order = torch.sort(labels, stable=True)
    rows = SortedLabels(ordered)
    if reference_labels is not None:
        if not with_rows:
            others, others_order = torch.sort(reference_labels, stable=True)
            return Layout(rows, order, SortedLabels(others), others_order)
        joined = torch.cat([ordered, reference_labels])
        return Layout(rows, order, *_sort_joined(joined, slice(0, len(labels))), with_rows=True)
    if not (gather and several_processes(group)):
        return Layout(rows, order)
    sizes, local = gather_sizes(ordered, group)
    everything = gather_padded(ordered, sizes, group)
    return Layout(rows, order, *_sort_joined(everything, local), sizes=sizes, group=group)


def _sort_joined(labels: Tensor, queries: slice) -> tuple[SortedLabels, Tensor]:
    """Return sorted labels with the new positions of the queries, and the order."""
    ordered, order = torch.sort(labels, stable=True)
    position = torch.empty_like(order)
    position[order] = torch.arange(len(order), device=order.device)
    return SortedLabels(ordered, position[queries]), order


class Tile(NamedTuple):
    rows: slice
    columns: slice
    diagonal: bool  # a tile of the symmetric case that holds pairs (u, u)
    same: tuple[slice, slice] | None  # the part, relative to its corner, with same-class pairs
    uniform: bool  # all pairs of that part are same-class pairs


def tiles(pairs: Layout, size: int = TILE) -> Iterator[Tile]:
    """Yield the tiles of all pairs, or of the upper triangle if the pairs are symmetric."""
    rows, columns = pairs.rows, pairs.right
    for i in range(0, len(rows), size):
        r = slice(i, min(i + size, len(rows)))
        for j in range(i if pairs.symmetric else 0, len(columns), size):
            c = slice(j, min(j + size, len(columns)))
            low = max(rows.as_list[i], columns.as_list[j])
            high = min(rows.as_list[r.stop - 1], columns.as_list[c.stop - 1])
            same = None
            if low <= high:
                same = _span(rows.as_list, r, low, high), _span(columns.as_list, c, low, high)
            yield Tile(r, c, pairs.symmetric and i == j, same, low == high)


def _span(labels: list[int], within: slice, low: int, high: int) -> slice:
    """Return the positions of labels from low to high, relative to the start of `within`."""
    left = bisect_left(labels, low, within.start, within.stop)
    right = bisect_right(labels, high, within.start, within.stop)
    return slice(left - within.start, right - within.start)


def same_class_pairs(rows: SortedLabels, columns: SortedLabels) -> int:
    """Return the number of ordered pairs with equal labels, including pairs (u, u)."""
    classes, counts = rows.counts
    if columns is rows:
        return int((counts * counts).sum())
    return int((counts * members(classes, columns)).sum())


def members(labels: Tensor, rows: SortedLabels) -> Tensor:  # (k,), (n,) -> (k,)
    """Return the number of rows with each of the labels."""
    first = torch.searchsorted(rows.labels, labels)
    return torch.searchsorted(rows.labels, labels, right=True) - first


def evenly_spaced(total: int, limit: int, device: torch.device | None = None) -> Tensor:
    """Return the indices of at most `limit` of `total` rows, evenly spaced."""
    count = min(total, limit)
    return torch.arange(count, device=device) * total // max(1, count)


def longest(x: Tensor) -> float:
    """Return the length of the longest row."""
    return float(torch.linalg.vector_norm(x, dim=1).max()) if len(x) else 0.0


class _Permute(torch.autograd.Function):
    """Reorder rows; the gradient is also a gather, which is faster than a scatter."""

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
