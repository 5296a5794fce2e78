"""The mean distance to positives, computed from same-class pairs only.

    D = (1/n) Σ_i (1/|P_i|) Σ_{p∈P_i} ‖s_i − s_p‖

A short list of pairs is subtracted pair by pair. Otherwise classes of similar size are processed
together, in pieces of bounded size. Two views of one image are near-duplicates, for which a float32
Gram matrix is badly off (35% at a distance of 1e-3), so float32 rows are multiplied in float64;
float64 rows are subtracted. Small batches are computed in `dense`.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from scs_supcon.kernels.autograd import (
    forbid_double_backward,
    full_precision,
    reads_are_free,
    scale_gradient,
    traced,
    wide,
)
from scs_supcon.kernels.dense import dense_distance, positive_pairs
from scs_supcon.kernels.layout import Layout, members
from scs_supcon.kernels.pairs import Pairs, Sides

DENSE_ROWS = 128  # up to this size the dense form is faster, unless there are 2 classes (measured)
PIECE = 1 << 19  # pairs held at once: 4 MiB of float64
TINY = 1e-37  # below any distance of two different rows; its inverse is a finite float32
LISTED = 1 << 18  # numbers in the differences of listed pairs: 1 MiB of float32
LISTED_ON_GPU = 1 << 26
LISTED_IN_BANDS = 1 << 22


def mean_distance(
    s: Sides,  # (n, d), (m, d)
    pairs: Pairs,
    *,
    piece: int | None = None,
) -> Tensor:  # (), or (n,) if pairs.per_row
    """Return the mean over rows of the mean distance to their positives; 0 for rows without any.

    Distances are weighted by w q. Pairs (u, u) never count.

    Args:
        s: both sides of the pairs, in any order.
        pairs: their targets and weights, and the rows to average over.
        piece: pairs held in memory at once; affects speed and memory, not the result.
    """
    style = s.rows
    if not pairs.by_label or traced(style):
        return _in_bands(s, pairs)
    assert pairs.labels is not None
    small = style.shape[0] <= DENSE_ROWS and s.references is None and not pairs.gather
    anchors = pairs.anchor_count()
    if piece is None and small:
        value: Tensor = _SmallDistances.apply(style, pairs.labels, anchors)
        return value
    layout = pairs.layout
    queries, others = layout.arrange(*s)
    distance: Tensor = _Distances.apply(queries, others, layout, anchors, piece or PIECE)
    return distance


def _in_bands(s: Sides, pairs: Pairs) -> Tensor:
    """Return the mean distance from targets and weights of pairs, with a gradient by autograd."""
    x, y = s.rows, pairs.join(*s)
    positive = pairs.over_rows(lambda rows: pairs.positives(rows, x.dtype).sum(1), x)

    def distances(rows: slice) -> Tensor:
        q = pairs.positives(rows, x.dtype)
        share = q.sum(1, keepdim=True)
        weights = q / torch.where(share > 0, share, 1)
        if traced(x):  # lists have no fixed length
            return (_differences(x[rows], y) * weights).sum(1)
        u, v = weights.nonzero().unbind(1)
        if len(u) * x.shape[1] <= LISTED_IN_BANDS:  # most often few pairs are positive
            gap = x[rows].index_select(0, u) - y.index_select(0, v)
            parts = torch.linalg.vector_norm(gap, dim=1) * weights[u, v]
            sums: Tensor = parts.new_zeros(len(weights)).index_add(0, u, parts)
            return sums
        # A Gram matrix would be inaccurate: two views of an image are near-duplicates.
        exact = "donot_use_mm_for_euclid_dist"
        return (torch.cdist(x[rows], y, compute_mode=exact) * weights).sum(1)

    with full_precision(x):
        return pairs.average(pairs.over_rows(distances, x), positive)


def _differences(x: Tensor, y: Tensor) -> Tensor:
    """Return all distances; those of equal rows have no gradient."""
    square = (x[:, None] - y).square().sum(2)
    zero = square == 0
    return torch.where(zero, 0, torch.where(zero, 1, square).sqrt())


class _SmallDistances(torch.autograd.Function):
    """The distances of a small batch, from a list of positive pairs in any order."""

    @staticmethod
    def forward(ctx: Any, style: Tensor, labels: Tensor, anchors: int) -> Tensor:
        u, v, weight = positive_pairs(labels, style.dtype)
        gap = style.index_select(0, u).sub_(style.index_select(0, v))
        distance = torch.linalg.vector_norm(gap, dim=1)
        value = torch.dot(distance, weight).div_(anchors)
        grad = None
        if ctx.needs_input_grad[0]:
            # A distance of 0 has no gradient, even if the gap is not 0: its squares can underflow.
            gap.mul_(weight.div_(distance).masked_fill_(distance == 0, 0)[:, None])
            grad = torch.zeros_like(style).index_add_(0, u, gap).index_add_(0, v, gap, alpha=-1)
            grad.div_(anchors)
        ctx.save_for_backward(style, labels, grad)
        ctx.anchors = anchors
        return value

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor, None, None]:
        style, labels, grad = ctx.saved_tensors
        if torch.is_grad_enabled():  # create_graph=True
            value = dense_distance(style, labels) / ctx.anchors
            (grad,) = torch.autograd.grad(value, style, grad_output, create_graph=True)
            return grad, None, None
        return scale_gradient(grad, grad_output), None, None


class _Distances(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        queries: Tensor,
        references: Tensor | None,
        layout: Layout,
        anchors: int,
        piece: int,
    ) -> Tensor:
        sums = _DistanceSums(queries, references, layout, *ctx.needs_input_grad[:2])
        with full_precision(queries):
            spans = _spans(layout, anchors)
            number = int((spans.stop - spans.first).sum())
            most = LISTED // max(queries.shape[1], 1)
            if not reads_are_free(queries):  # blocks of classes would read sizes many times
                piece = most = LISTED_ON_GPU // max(queries.shape[1], 1)
            if number <= min(piece, most):
                sums.add_listed(*_list_pairs(spans, number))
            else:
                for block in class_blocks(layout, anchors, piece):
                    sums.add_block(block)
        if layout.joined:
            dist.all_reduce(sums.total, group=layout.group)
        ctx.save_for_backward(queries, sums.grad, sums.grad_references)
        ctx.layout, ctx.anchors = layout, anchors
        return sums.total.to(queries.dtype)

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        queries, grad, grad_references = ctx.saved_tensors
        need_queries, need_references, *_ = ctx.needs_input_grad
        if torch.is_grad_enabled() and ctx.layout.symmetric:  # create_graph=True
            value = dense_distance(queries, ctx.layout.rows.labels) / ctx.anchors
            (again,) = torch.autograd.grad(value, queries, grad_output, create_graph=True)
            return again, *[None] * 4
        forbid_double_backward()
        return (
            scale_gradient(grad, grad_output) if need_queries else None,
            scale_gradient(grad_references, grad_output) if need_references else None,
            *[None] * 3,
        )


class _DistanceSums:
    """The weighted sum of distances and its gradients."""

    def __init__(
        self,
        queries: Tensor,
        references: Tensor | None,
        layout: Layout,
        need_queries: bool,
        need_references: bool,
    ) -> None:
        self.queries, self.layout = queries, layout
        self.others = queries if references is None else references
        self.total = torch.zeros((), dtype=wide(queries), device=queries.device)
        any_gradient = need_queries or need_references
        self.grad = torch.zeros_like(queries) if any_gradient else None
        self.grad_references = torch.zeros_like(self.others) if need_references else None

    def add_listed(self, u: Tensor, v: Tensor, weight: Tensor) -> None:
        """Add the distances of listed pairs (row, reference)."""
        gap = self.queries.index_select(0, u).sub_(self.others.index_select(0, v))
        distance = torch.linalg.vector_norm(gap, dim=1, dtype=wide(gap))
        self.total += torch.dot(distance, weight)
        if self.grad is None:
            return
        # The gap of equal rows is 0, so their gradient is 0 with any finite divisor.
        inverse = weight.div_(distance.clamp_min_(TINY)).to(gap.dtype)
        gap.mul_(inverse[:, None])
        self.grad.index_add_(0, u, gap, alpha=2 if self.layout.joined else 1)
        target = self.grad if self.layout.symmetric else self.grad_references
        if target is not None:
            target.index_add_(0, v, gap, alpha=-1)

    def add_block(self, block: "Block") -> None:
        """Add the distances of a block; its padding has weight 0."""
        need_others = self.grad_references is not None
        value, grad, grad_others = _block_distances(
            self.queries, self.others, block, self.grad is not None, need_others
        )
        self.total += value
        _scatter(self.grad, block.rows, grad, 2 if self.layout.one_set else 1)
        _scatter(self.grad_references, block.columns, grad_others, 1)


class _Spans(NamedTuple):
    """Start and stop of the positives of each row, among the columns.

    For symmetric pairs only positives after the row are included, so that each pair occurs once.
    """

    first: Tensor
    stop: Tensor
    weight: Tensor  # of a distance


def _spans(layout: Layout, anchors: int) -> _Spans:
    labels, columns = layout.rows.labels, layout.right.labels
    first = torch.searchsorted(columns, labels)
    stop = torch.searchsorted(columns, labels, right=True)
    count = stop - first - int(layout.contains_self)
    weight = 1 / (anchors * count.clamp_min(1).to(wide(count)))
    if layout.symmetric:
        first = torch.arange(1, len(labels) + 1, device=first.device)
        weight *= 2
    return _Spans(first, stop, weight)


def _list_pairs(spans: _Spans, number: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return (row, column, weight) of each pair."""
    count = spans.stop - spans.first
    u = torch.repeat_interleave(count, output_size=number)
    shift = (spans.stop - count.cumsum(0)).index_select(0, u)
    v = torch.arange(number, device=u.device).add_(shift)
    return u, v, spans.weight.index_select(0, u)


def _scatter(grad: Tensor | None, index: Tensor, values: Tensor | None, times: int) -> None:
    if grad is not None and values is not None:
        grad.index_add_(0, index.reshape(-1), values.flatten(0, 1).to(grad.dtype), alpha=times)


class Block(NamedTuple):
    """Rows of k classes and all their positives, padded to `(k, m)` and `(k, p)`."""

    rows: Tensor
    columns: Tensor
    weight: Tensor  # (k, m): 1/(n |P_i|)
    real: Tensor | None  # (k, m, p): pairs that are not padding; None: all of them


def class_blocks(layout: Layout, anchors: int, piece: int) -> Iterator[Block]:
    """Yield blocks of classes of similar size; a class too large for a piece is cut into bands."""
    rows, columns = layout.rows, layout.right
    classes, counts = rows.counts
    stops = counts.cumsum(0)
    column_counts = members(classes, columns)
    positives = column_counts - int(layout.contains_self)
    column_starts = torch.searchsorted(columns.labels, classes)
    (order,) = torch.where(positives > 0)
    order = order[torch.argsort(column_counts[order])]
    row_spans = torch.stack([stops - counts, stops], 1)[order]
    column_spans = torch.stack([column_starts, column_starts + column_counts], 1)[order]
    weights = 1 / (anchors * positives[order].to(wide(order)))
    heights, widths = counts[order].tolist(), column_counts[order].tolist()
    for start, stop in _similar_sizes(heights, widths, piece):
        spans = row_spans[start:stop]
        band = max(1, piece // widths[stop - 1])
        if stop - start > 1 or heights[start] <= band:
            yield _pad(spans, column_spans[start:stop], weights[start:stop])
            continue
        first, last = spans[0].tolist()
        for low in range(first, last, band):
            cut = torch.tensor([[low, min(low + band, last)]], device=spans.device)
            yield _pad(cut, column_spans[start:stop], weights[start:stop])


def _pad(row_spans: Tensor, column_spans: Tensor, weights: Tensor) -> Block:
    row_index, row_real = _rectangle(row_spans)
    if torch.equal(row_spans, column_spans):
        column_index, column_real = row_index, row_real
    else:
        column_index, column_real = _rectangle(column_spans)
    full = bool(row_real.all() and column_real.all())
    real = None if full else row_real[:, :, None] & column_real[:, None, :]
    return Block(row_index, column_index, weights[:, None].expand_as(row_index), real)


def _rectangle(spans: Tensor) -> tuple[Tensor, Tensor]:
    """Return the indices of each span, padded to one length, and a mask that excludes padding."""
    starts, stops = spans[:, :1], spans[:, 1:]
    index = starts + torch.arange(int((stops - starts).max()), device=spans.device)
    return torch.minimum(index, stops - 1), index < stops


def _similar_sizes(heights: list[int], widths: list[int], piece: int) -> Iterator[tuple[int, int]]:
    """Yield runs of classes, sorted by size, that need little padding and fit into one piece."""
    start = 0
    tallest = 0
    for stop in range(1, len(widths) + 1):
        tallest = max(tallest, heights[stop - 1])
        if stop < len(widths):
            height, width = max(tallest, heights[stop]), widths[stop]
            fits = (stop + 1 - start) * height * width <= piece
            similar = width <= 2 * widths[start] or width <= 16
            if fits and similar:
                continue
        yield start, stop
        start, tallest = stop, 0


def _block_distances(
    queries: Tensor, others: Tensor, block: Block, need: bool, need_others: bool
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Return the weighted sum of distances and its gradients for the rows and their positives."""
    exact = queries.dtype == wide(queries)
    x = _take_rows(queries, block.rows)
    identical = others is queries and block.columns is block.rows
    y = x if identical else _take_rows(others, block.columns)
    if exact:
        distance = torch.cdist(x, y, compute_mode="donot_use_mm_for_euclid_dist")
    else:
        distance = _distances_from_products(x, y)
    if block.real is not None:
        distance *= block.real
    value = (distance.sum(2) * block.weight).sum()
    if not need:
        return value, None, None
    weight = block.weight[:, :, None]
    if exact:
        ones = (distance > 0) * weight
        grad = torch.ops.aten._cdist_backward(ones, x, y, 2.0, distance)
        if not need_others:
            return value, grad, None
        ones, distance = ones.mT.contiguous(), distance.mT.contiguous()
        return value, grad, torch.ops.aten._cdist_backward(ones, y, x, 2.0, distance)
    # Weighted 1/distance, 0 for a distance of 0; in place, as these are the largest matrices.
    inverse = torch.threshold_(distance, 0.0, torch.inf).reciprocal_().mul_(weight)
    grad = (x * inverse.sum(2, keepdim=True)).baddbmm_(inverse, y, alpha=-1)
    if not need_others:
        return value, grad, None
    return value, grad, (y * inverse.sum(1)[:, :, None]).baddbmm_(inverse.mT, x, alpha=-1)


def _take_rows(x: Tensor, index: Tensor) -> Tensor:
    """Return rows `(k, m)` of x, in float64 if possible."""
    return x.index_select(0, index.reshape(-1)).to(wide(x)).view(*index.shape, x.shape[1])


def _distances_from_products(x: Tensor, y: Tensor) -> Tensor:
    """Return distances, computed from products in float64; rounding errors become 0."""
    x_squared, y_squared = (x * x).sum(2)[:, :, None], (y * y).sum(2)[:, None, :]
    rounding = 1e-14 * float(x_squared.amax() + y_squared.amax())
    squared = (x_squared + y_squared).baddbmm_(x, y.mT, alpha=-2)
    return torch.threshold_(squared, rounding, 0.0).sqrt_()
