"""Mean distance to classmates: the style term touches same-class pairs only.

    D = (1/n) Σ_i (1/|P_i|) Σ_{p∈P_i} ‖s_i − s_p‖

Few pairs are listed and subtracted. Of many, classes of like size are handled together, in pieces
of bounded size: two views of one image are near-duplicates, and there a float32 Gram matrix is
badly off (35 % at a distance of 1e-3), so float32 rows are multiplied in float64; float64 rows are
subtracted.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from scs_supcon.kernels.autograd import full_precision, only_once, times
from scs_supcon.kernels.layout import Rows, members

PIECE = 1 << 19  # pairs held at once: 4 MiB of float64
NOTHING = 1e-37  # a distance that no two different rows have; its inverse is a finite float32
LISTED = 1 << 20  # numbers in the differences of listed pairs: 4 MiB of float32


def class_distances(
    queries: Tensor,
    rows: Rows,
    *,
    references: Tensor | None = None,
    columns: Rows | None = None,
    piece: int = PIECE,
) -> Tensor:
    """Return the mean over queries of their mean distance to same-class rows; 0 for lonely ones.

    Args:
        queries: `(n, d)` rows sorted by label.
        rows: their labels.
        references: where classmates are looked for; default: the queries themselves.
            With `columns.own` set they are the rows of all processes.
        columns: labels of the references.
        piece: pairs held in memory at once; changes speed and memory, not the result.
    """
    result: Tensor = _ClassDistances.apply(queries, references, rows, columns, piece)
    return result


class _ClassDistances(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        queries: Tensor,
        references: Tensor | None,
        rows: Rows,
        columns: Rows | None,
        piece: int,
    ) -> Tensor:
        joined = columns is not None and columns.own is not None
        sums = _Sums(queries, references, joined, ctx.needs_input_grad)
        with full_precision(queries):
            pairs = _Pairs.of(rows, columns)
            if pairs.number <= min(piece, LISTED // max(queries.shape[1], 1)):
                sums.add_listed(*pairs.listed())
            else:
                for block in _blocks(
                    rows, rows if columns is None else columns, sums.itself, piece
                ):
                    sums.add_block(block)
        if joined:
            dist.all_reduce(sums.total)
        ctx.save_for_backward(sums.grad, sums.grad_references)
        return sums.total.to(queries.dtype)

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        only_once()
        grad, grad_references = ctx.saved_tensors
        need = ctx.needs_input_grad
        return (
            times(grad, grad_output) if need[0] else None,
            times(grad_references, grad_output) if need[1] else None,
            None,
            None,
            None,
        )


class _Sums:
    """What is collected: the weighted sum of distances and its gradients."""

    def __init__(
        self, queries: Tensor, references: Tensor | None, joined: bool, need: Sequence[bool]
    ) -> None:
        self.queries = queries
        self.others = queries if references is None else references
        self.symmetric = references is None
        self.itself = self.symmetric or joined  # a row is among its own references
        self.total = torch.zeros((), dtype=torch.float64, device=queries.device)
        self.grad = torch.zeros_like(queries) if any(need) else None
        self.grad_references = torch.zeros_like(self.others) if need[1] else None

    def add_listed(self, u: Tensor, v: Tensor, weight: Tensor) -> None:
        """Add the distances of listed pairs (row, reference)."""
        value, pull = _listed_distances(self.queries, self.others, u, v, weight)
        self.total += value
        if self.grad is not None:
            self.grad.index_add_(0, u, pull, alpha=1 if self.symmetric or not self.itself else 2)
        seen = self.grad if self.symmetric else self.grad_references
        if seen is not None:
            seen.index_add_(0, v, pull, alpha=-1)

    def add_block(self, block: "_Block") -> None:
        """Add the distances of a block; its padding adds zeros, for its weights are zero."""
        both = self.grad_references is not None
        value, pull, push = _measure(self.queries, self.others, block, self.grad is not None, both)
        self.total += value
        # Every distance holds s_i twice: as the one who looks and as the one seen.
        _scatter(self.grad, block.rows, pull, 2 if self.itself else 1)
        _scatter(self.grad_references, block.columns, push, 1)


def masked_distances(
    x: Tensor, same: Tensor, mates: Tensor, factor: float
) -> tuple[Tensor, Tensor]:
    """(factor × D, its gradient) of a few rows in any order.

    Args:
        x: `(n, d)` rows.
        same: `(n, n)`, true for pairs of one class, pairs (u, u) included.
        mates: float64, how many rows each row has in its class, itself included.
        factor: what D is multiplied by.
    """
    n = len(x)
    # Twice: every distance holds s_i as the one who looks and as the one seen.
    weight = (mates - 1).clamp_min_(1).reciprocal_().mul_(2 * factor / max(n, 1))
    u, v = same.triu(1).nonzero().unbind(1)
    if len(u) > n * n // 20:  # so many that whole matrices are faster, measured
        index = torch.arange(n, device=x.device)[None]
        block = _Block(index, index, weight[None], same[None])
        value, pull, _ = _measure(x, x, block, True, False)
        assert pull is not None
        return value / 2, pull[0].to(x.dtype)
    value, pull = _listed_distances(x, x, u, v, weight.index_select(0, u))
    return value, torch.zeros_like(x).index_add_(0, u, pull).index_add_(0, v, pull, alpha=-1)


def _listed_distances(
    x: Tensor, y: Tensor, u: Tensor, v: Tensor, weight: Tensor
) -> tuple[Tensor, Tensor]:
    """(Σ weight ‖x_u − y_v‖ over listed pairs, gradient of each summand by x_u); −it is y_v's."""
    gap = x.index_select(0, u).sub_(y.index_select(0, v))
    far = torch.linalg.vector_norm(gap, dim=1, dtype=torch.float64)
    value = torch.dot(far, weight)
    # Coincident rows have no gap: the gradient is 0, whatever finite number it is divided by.
    near = weight.div_(far.clamp_min_(NOTHING)).to(gap.dtype)
    return value, gap.mul_(near[:, None])


@dataclass(frozen=True)
class _Pairs:
    """For each row where its classmates start and stop among the columns.

    Rows among themselves: only classmates behind the row, so that a pair of two comes once.
    """

    first: Tensor
    stop: Tensor
    weight: Tensor  # of a distance

    @classmethod
    def of(cls, rows: Rows, columns: Rows | None) -> "_Pairs":
        others = rows if columns is None else columns
        first = torch.searchsorted(others.labels, rows.labels)
        stop = torch.searchsorted(others.labels, rows.labels, right=True)
        itself = columns is None or columns.own is not None
        n = len(others) if itself else len(rows)
        weight = 1 / (n * (stop - first - int(itself)).clamp_min(1).double())
        if columns is None:
            first = torch.arange(1, n + 1, device=first.device)
            weight *= 2
        return cls(first, stop, weight)

    @cached_property
    def number(self) -> int:
        return int((self.stop - self.first).sum())

    def listed(self) -> tuple[Tensor, Tensor, Tensor]:
        """(row, column, weight) of every pair."""
        many = self.stop - self.first
        u = torch.repeat_interleave(many, output_size=self.number)
        shift = (self.stop - many.cumsum(0)).index_select(0, u)
        v = torch.arange(self.number, device=u.device).add_(shift)
        return u, v, self.weight.index_select(0, u)


def _scatter(grad: Tensor | None, index: Tensor, parts: Tensor | None, times: int) -> None:
    """Add the parts of a block; padding adds zeros, for its weights are zero."""
    if grad is not None and parts is not None:
        grad.index_add_(0, index.reshape(-1), parts.flatten(0, 1).to(grad.dtype), alpha=times)


@dataclass(frozen=True)
class _Block:
    """Some rows of k classes and all their classmates, padded to `(k, m)` and `(k, p)`."""

    rows: Tensor
    columns: Tensor
    weight: Tensor  # (k, m): 1/(n |P_i|)
    real: Tensor | None  # (k, m, p): pairs without padding; None: all of them


def _blocks(rows: Rows, columns: Rows, itself: bool, piece: int) -> Iterator[_Block]:
    """Classes of like size together; a class too big for a piece is cut into bands of rows."""
    n = len(columns) if itself else len(rows)
    if not len(rows) or not len(columns):
        return
    classes, counts = rows.counts
    stops = counts.cumsum(0)
    found = members(classes, columns)
    classmates = found - 1 if itself else found
    left = torch.searchsorted(columns.labels, classes)
    (some,) = torch.where(classmates > 0)
    some = some[torch.argsort(found[some])]
    row_spans = torch.stack([stops - counts, stops], 1)[some]
    column_spans = torch.stack([left, left + found], 1)[some]
    weights = 1 / (n * classmates[some].double())
    heights, widths = counts[some].tolist(), found[some].tolist()
    for start, stop in _like_sized(heights, widths, piece):
        spans = row_spans[start:stop]
        band = max(1, piece // widths[stop - 1])
        if stop - start > 1 or heights[start] <= band:
            yield _padded(spans, column_spans[start:stop], weights[start:stop])
            continue
        first, last = spans[0].tolist()
        for low in range(first, last, band):
            cut = torch.tensor([[low, min(low + band, last)]], device=spans.device)
            yield _padded(cut, column_spans[start:stop], weights[start:stop])


def _padded(row_spans: Tensor, column_spans: Tensor, weights: Tensor) -> _Block:
    row_index, row_real = _rectangle(row_spans)
    if torch.equal(row_spans, column_spans):
        column_index, column_real = row_index, row_real
    else:
        column_index, column_real = _rectangle(column_spans)
    full = bool(row_real.all() and column_real.all())
    real = None if full else row_real[:, :, None] & column_real[:, None, :]
    return _Block(row_index, column_index, weights[:, None].expand_as(row_index), real)


def _rectangle(spans: Tensor) -> tuple[Tensor, Tensor]:
    """Indices start … stop−1 of each span, padded to one length, and which of them are real."""
    starts, stops = spans[:, :1], spans[:, 1:]
    index = starts + torch.arange(int((stops - starts).max()), device=spans.device)
    return torch.minimum(index, stops - 1), index < stops


def _like_sized(heights: list[int], widths: list[int], piece: int) -> Iterator[tuple[int, int]]:
    """Runs of classes (sorted by size) that pad little and together fit into one piece."""
    start = 0
    tallest = 0
    for stop in range(1, len(widths) + 1):
        tallest = max(tallest, heights[stop - 1])
        if stop < len(widths):
            height, width = max(tallest, heights[stop]), widths[stop]
            fits = (stop + 1 - start) * height * width <= piece
            alike = width <= 2 * widths[start] or width <= 16
            if fits and alike:
                continue
        yield start, stop
        start, tallest = stop, 0


def _measure(
    queries: Tensor, others: Tensor, block: _Block, gradient: bool, both: bool
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Return (weighted sum of distances, its gradient for the rows, for their classmates)."""
    exact = queries.dtype == torch.float64
    x = _gathered(queries, block.rows)
    alike = others is queries and block.columns is block.rows
    y = x if alike else _gathered(others, block.columns)
    far = _subtracted(x, y) if exact else _multiplied(x, y)
    if block.real is not None:
        far *= block.real
    value = (far.sum(2) * block.weight).sum()
    if not gradient:
        return value, None, None
    weight = block.weight[:, :, None]
    if exact:
        ones = (far > 0) * weight
        pull = torch.ops.aten._cdist_backward(ones, x, y, 2.0, far)
        if not both:
            return value, pull, None
        ones, far = ones.mT.contiguous(), far.mT.contiguous()
        return value, pull, torch.ops.aten._cdist_backward(ones, y, x, 2.0, far)
    # 1/distance, where there is one; in place, for these are the largest matrices.
    near = torch.threshold_(far, 0.0, torch.inf).reciprocal_().mul_(weight)
    pull = (x * near.sum(2, keepdim=True)).baddbmm_(near, y, alpha=-1)
    if not both:
        return value, pull, None
    return value, pull, (y * near.sum(1)[:, :, None]).baddbmm_(near.mT, x, alpha=-1)


def _gathered(x: Tensor, index: Tensor) -> Tensor:
    """Rows `(k, m)` of x in float64."""
    return x.index_select(0, index.reshape(-1)).double().view(*index.shape, x.shape[1])


def _multiplied(x: Tensor, y: Tensor) -> Tensor:
    """Distances by float64 products of float32 rows; what rounding alone can make is 0."""
    x_squared, y_squared = (x * x).sum(2)[:, :, None], (y * y).sum(2)[:, None, :]
    rounding = 1e-14 * float(x_squared.amax() + y_squared.amax())
    squared = (x_squared + y_squared).baddbmm_(x, y.mT, alpha=-2)
    return torch.threshold_(squared, rounding, 0.0).sqrt_()


def _subtracted(x: Tensor, y: Tensor) -> Tensor:
    return torch.cdist(x, y, compute_mode="donot_use_mm_for_euclid_dist")
