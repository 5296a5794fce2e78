"""Mean distance to classmates: the style term touches same-class pairs only.

    D = (1/n) Σ_i (1/|P_i|) Σ_{p∈P_i} ‖s_i − s_p‖

Two views of one picture are near-duplicates, and there a float32 Gram matrix is badly off (35 %
at a distance of 1e-3), so float32 rows are multiplied in float64; float64 rows are subtracted.
Classes of like size are handled together, in pieces of bounded size.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from scs_supcon.autograd import only_once, times
from scs_supcon.pairs.rows import Rows, members

PIECE = 1 << 19  # pairs held at once: 4 MiB of float64
SMALL = 128 * 128  # so few pairs are measured all at once, those of two classes masked


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
        itself = references is None or joined  # a row is among its own references
        others = queries if references is None else references
        need = ctx.needs_input_grad
        grad = torch.zeros_like(queries) if any(need) else None
        grad_references = torch.zeros_like(others) if need[1] else None
        total = torch.zeros((), dtype=torch.float64, device=queries.device)
        with torch.autocast(queries.device.type, enabled=False):
            for block in _blocks(rows, rows if columns is None else columns, itself, piece):
                value, pull, push = _measure(queries, others, block, any(need), need[1])
                total += value
                # Every distance holds s_i twice: as the one who looks and as the one seen.
                _scatter(grad, block.rows, pull, 2 if itself else 1)
                _scatter(grad_references, block.columns, push, 1)
        if joined:
            dist.all_reduce(total)
        ctx.save_for_backward(grad, grad_references)
        return total.to(queries.dtype)

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
    real: Tensor | None  # (k, m, p): pairs that are neither padding nor of two classes


def _blocks(rows: Rows, columns: Rows, itself: bool, piece: int) -> Iterator[_Block]:
    """Classes of like size together; a class too big for a piece is cut into bands of rows."""
    n = len(columns) if itself else len(rows)
    if not len(rows) or not len(columns):
        return
    if len(rows) * len(columns) <= SMALL:
        yield _everything(rows, columns, itself, n)
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


def _everything(rows: Rows, columns: Rows, itself: bool, n: int) -> _Block:
    """All pairs of a small batch at once: fewer steps than sorting out its classes."""
    same = rows.labels[:, None] == columns.labels[None, :]
    classmates = same.sum(1) - int(itself)
    device = rows.labels.device
    return _Block(
        torch.arange(len(rows), device=device)[None],
        torch.arange(len(columns), device=device)[None],
        torch.where(classmates > 0, 1 / (n * classmates.double()), 0.0)[None],
        same[None],
    )


def _padded(row_spans: Tensor, column_spans: Tensor, weights: Tensor) -> _Block:
    row_index, row_real = _rectangle(row_spans)
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
    x, y = queries[block.rows].double(), others[block.columns].double()
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
    near = torch.where(far > 0, weight / far, 0.0)
    pull = torch.baddbmm(x * near.sum(2, keepdim=True), near, y, alpha=-1)
    if not both:
        return value, pull, None
    return value, pull, torch.baddbmm(y * near.sum(1)[:, :, None], near.mT, x, alpha=-1)


def _multiplied(x: Tensor, y: Tensor) -> Tensor:
    """Distances by float64 products of float32 rows; what rounding alone can make is 0."""
    x_squared, y_squared = (x * x).sum(2)[:, :, None], (y * y).sum(2)[:, None, :]
    squared = torch.baddbmm(x_squared + y_squared, x, y.mT, alpha=-2)
    rounding = 1e-14 * (x_squared.amax() + y_squared.amax())
    return torch.where(squared > rounding, squared, 0.0).sqrt_()


def _subtracted(x: Tensor, y: Tensor) -> Tensor:
    return torch.cdist(x, y, compute_mode="donot_use_mm_for_euclid_dist")
