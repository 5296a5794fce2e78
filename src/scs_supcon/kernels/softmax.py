"""The InfoNCE pair loss (SupCon's "out" form) by streaming log-sum-exps.

    L = (1/n) Σ_i [ log Σ_{a≠i} exp(x_i·x_a/τ) − (1/|P_i|) Σ_{p∈P_i} x_i·x_p/τ ]   where P_i ≠ ∅

The second sum needs no pairs: Σ_p x_i·x_p = x_i·(S_{y_i} − x_i) with class sums S. The first needs
one pass over the tiles; with p_uv = exp(x_u·x_v/τ)/Z_u a second pass computes the gradient

    ∂/∂x_u = (1/nτ) [ Σ_v (p_uv + p_vu) x_v − 2 (S_{y_u} − x_u)/|P_u| ]

where rows without positives contribute no p. Memory is O(n·d + tile²). Small batches are computed
in `dense`.
"""

from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from scs_supcon.kernels.autograd import (
    forbid_double_backward,
    full_precision,
    scale_gradient,
    traced,
    wide,
)
from scs_supcon.kernels.dense import dense_softmax
from scs_supcon.kernels.layout import TILE, Layout, SortedLabels, Tile, longest, members, tiles
from scs_supcon.kernels.pairs import Pairs, Sides

DENSE_ROWS = 512  # up to this size the dense form is no slower (measured)
# exp(−80) is still a normal float32: below this spread all rows can use the same shift.
SAFE_SPREAD = 80.0
CHUNK = 4096  # rows whose class sums are held in memory


def softmax_pairs(
    x: Sides,  # (n, d), (m, d)
    pairs: Pairs,
    temperature: float,
    *,
    tile: int | None = None,
) -> Tensor:  # (), or (n,) if pairs.per_row
    """Return the mean over anchors of −log softmax, averaged over the positives of each anchor.

    Pairs with a weight of 0 are left out of the denominator; other weights, times q, are those of
    the average over positives. Pairs (u, u) never count. A row without positives contributes 0. In
    float32 a value far below 1 has the rounding error of its logits, about 1e-7/τ, as in any form
    that subtracts logits.

    Args:
        x: both sides of the pairs, in any order.
        pairs: their targets and weights, and the anchors to average over.
        temperature: τ.
        tile: side of a tile; affects speed and memory, not the result. Default: chosen by size.
    """
    rows = x.rows
    if not pairs.by_label or traced(rows):
        return _in_bands(x, pairs, temperature)
    if tile is None and x.references is None and not pairs.gather and len(rows) <= DENSE_ROWS:
        assert pairs.labels is not None
        return dense_softmax(rows, pairs.labels, temperature) / pairs.anchor_count()
    layout, anchors = pairs.layout, pairs.anchor_count()
    queries, others = layout.arrange(*x)
    loss: Tensor = _SoftmaxPairs.apply(
        queries, others, layout, anchors, 1 / temperature, tile or TILE
    )
    return loss


def _in_bands(x: Sides, pairs: Pairs, temperature: float) -> Tensor:
    """Return the loss from targets and weights of pairs, with a gradient by autograd."""
    z, y = x.rows, pairs.join(*x)
    positive = pairs.over_rows(lambda rows: pairs.positives(rows, z.dtype).sum(1), z)

    def losses(rows: slice) -> Tensor:
        logits = z[rows] @ y.T / temperature
        _, w = pairs.targets(rows)
        excluded = None if w is None else w == 0
        if pairs.contains_self:
            itself = pairs.itself(rows, z.device)
            excluded = itself if excluded is None else excluded | itself
        if excluded is not None:
            logits = logits.masked_fill(excluded, -1e30)  # −inf × 0 would be NaN
        q = pairs.positives(rows, z.dtype)
        share = q.sum(1, keepdim=True)
        attracted = (logits * (q / torch.where(share > 0, share, 1))).sum(1)
        return torch.where(share[:, 0] > 0, logits.logsumexp(1) - attracted, 0)

    with full_precision(z):
        return pairs.average(pairs.over_rows(losses, z), positive)


class _SoftmaxPairs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        queries: Tensor,
        references: Tensor | None,
        layout: Layout,
        anchors: int,
        scale: float,
        tile: int,
    ) -> Tensor:
        others = queries if references is None else references
        with full_precision(queries):
            value, *gradients = _value_and_gradients(
                queries, others, layout, anchors, scale, tile, ctx.needs_input_grad[:2]
            )
        ctx.save_for_backward(*gradients)
        return value.to(queries.dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        forbid_double_backward()
        by_queries, by_references = ctx.saved_tensors
        need_queries, need_references, *_ = ctx.needs_input_grad
        return (
            scale_gradient(by_queries, grad) if need_queries else None,
            scale_gradient(by_references, grad) if need_references else None,
            *[None] * 4,
        )


def _value_and_gradients(
    queries: Tensor,
    others: Tensor,
    layout: Layout,
    n: int,
    scale: float,
    tile: int,
    need: tuple[bool, bool],
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Return L and its gradients for the queries and the references."""
    count = members(layout.rows.labels, layout.right) - int(layout.contains_self)
    tile_pass = _TilePass(queries, others, layout, scale, tile)
    log_z = tile_pass.log_sum_exp()
    positive_mean = _PositiveMean(queries, others, layout, count)
    per_row = log_z - scale * positive_mean.inner_product()
    value = per_row.masked_fill(count == 0, 0).sum() / n
    if layout.joined:
        dist.all_reduce(value, group=layout.group)
    if not any(need):
        return value, None, None
    log_z = log_z.masked_fill(count == 0, torch.inf)  # p = 0 for rows without a loss
    grad, grad_others = tile_pass.weighted_sums(log_z, need[1])
    positive_mean.subtract_from(grad, 2 if layout.one_set else 1)
    if grad_others is not None:
        share = queries / count.clamp_min(1)[:, None]
        sums, position = _class_sums(share, layout.rows, layout.right.labels)
        grad_others.sub_(sums[position])
        if layout.right.local is not None:  # pairs (u, u) do not count
            grad_others.index_add_(0, layout.right.local, share)
        grad_others.mul_(scale / n)
    return value, grad.mul_(scale / n), grad_others


class _PositiveMean:
    """The mean of each row's positives, in float64 because of later subtractions.

    Only the class sums and one chunk of rows are held in memory.
    """

    def __init__(self, queries: Tensor, others: Tensor, layout: Layout, count: Tensor) -> None:
        self.queries, self.contains_self, self.count = queries, layout.contains_self, count
        self.sums, self.position = _class_sums(others, layout.right, layout.rows.labels)

    def _chunks(self) -> Iterator[tuple[slice, Tensor]]:
        for k in range(0, len(self.queries), CHUNK):
            rows = slice(k, k + CHUNK)
            mean = self.sums[self.position[rows]]
            if self.contains_self:
                mean -= self.queries[rows]
            count = self.count[rows, None]
            yield rows, mean.div_(count.clamp_min(1)).masked_fill_(count == 0, 0)

    def inner_product(self) -> Tensor:
        """Return the inner product of each query with its mean."""
        product = torch.zeros(
            len(self.queries), dtype=wide(self.queries), device=self.queries.device
        )
        for rows, mean in self._chunks():
            product[rows] = mean.mul_(self.queries[rows]).sum(1)
        return product

    def subtract_from(self, grad: Tensor, times: int) -> None:
        """Subtract a multiple of the means from a gradient."""
        for rows, mean in self._chunks():
            grad[rows] -= mean.mul_(times)


def _class_sums(x: Tensor, rows: SortedLabels, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return the float64 sum of the rows of each class, and the index of each label's sum.

    The last sum is zero, for labels without rows.
    """
    classes, counts = rows.counts
    number = torch.repeat_interleave(torch.arange(len(classes), device=x.device), counts)
    sums = torch.zeros(len(classes) + 1, x.shape[1], dtype=wide(x), device=x.device)
    for k in range(0, len(x), CHUNK):
        sums.index_add_(0, number[k : k + CHUNK], x[k : k + CHUNK].to(sums.dtype))
    if not len(classes):
        return sums, torch.zeros_like(labels)
    index = torch.searchsorted(classes, labels).clamp_max(len(classes) - 1)
    return sums, torch.where(classes[index] == labels, index, len(classes))


class _TilePass:
    """The passes over the tiles.

    If no logit is far from the largest possible one, all exponentials use the same shift. Otherwise
    (tiny temperatures, long rows) a first pass computes the maximum of each row.
    """

    def __init__(
        self, queries: Tensor, others: Tensor, layout: Layout, scale: float, tile: int
    ) -> None:
        self.queries, self.others, self.layout = queries, others, layout
        self.scale, self.tile = scale, tile
        self.buffer = queries.new_empty(min(tile, len(queries)) * min(tile, len(others)))
        bound = longest(queries) * longest(others) * scale  # of all |logits|
        self.shift = bound if 2 * bound <= SAFE_SPREAD else None

    def log_sum_exp(self) -> Tensor:
        """Return log Σ_v exp(logit_uv) of each query, in float64."""
        sums = torch.zeros(len(self.queries), dtype=wide(self.queries), device=self.queries.device)
        if self.shift is None:
            return self._careful_log_sum_exp(sums)
        for tile in tiles(self.layout, self.tile):
            e = self._logits(tile, self.shift).exp_()
            sums[tile.rows] += e.sum(1)
            if self.layout.symmetric and not tile.diagonal:
                sums[tile.columns] += e.sum(0)
        return sums.log_().add_(self.shift)

    def _careful_log_sum_exp(self, sums: Tensor) -> Tensor:
        largest = self._maxima()
        for tile in tiles(self.layout, self.tile):
            x = self._logits(tile, 0.0)
            sums[tile.rows] += torch.exp(x - largest[tile.rows, None]).sum(1)
            if self.layout.symmetric and not tile.diagonal:
                sums[tile.columns] += torch.exp(x - largest[None, tile.columns]).sum(0)
        return sums.log_().add_(largest)

    def _maxima(self) -> Tensor:
        largest = torch.full_like(self.queries[:, 0], -torch.inf)
        for tile in tiles(self.layout, self.tile):
            x = self._logits(tile, 0.0)
            largest[tile.rows] = torch.maximum(largest[tile.rows], x.amax(1))
            if self.layout.symmetric and not tile.diagonal:
                largest[tile.columns] = torch.maximum(largest[tile.columns], x.amax(0))
        return largest.masked_fill(largest.isinf(), 0)

    def weighted_sums(self, log_z: Tensor, need_others: bool) -> tuple[Tensor, Tensor | None]:
        """Return Σ_v (p_uv + p_vu) x_v of each query.

        If the references are other rows, return Σ_v p_uv x_v of each query and, if needed, of each
        reference.
        """
        grad = torch.zeros_like(self.queries)
        grad_others = torch.zeros_like(self.others) if need_others else None
        log_z_columns = self._log_z_of_columns(log_z).to(grad.dtype)
        log_z = log_z.to(grad.dtype)
        for tile in tiles(self.layout, self.tile):
            p = self._probabilities(tile, log_z[tile.rows, None], log_z_columns[None, tile.columns])
            grad[tile.rows].addmm_(p, self.others[tile.columns])
            if self.layout.symmetric and not tile.diagonal:
                grad[tile.columns].addmm_(p.T, self.queries[tile.rows])
            elif grad_others is not None:
                grad_others[tile.columns].addmm_(p.T, self.queries[tile.rows])
        return grad, grad_others

    def _probabilities(self, tile: Tile, row: Tensor, column: Tensor) -> Tensor:
        """Return p_uv + p_vu of a tile, or p_uv alone if the references are other rows."""
        if self.shift is None:
            x = self._logits(tile, 0.0)
            p = torch.exp(x - row)
            return p.add_(torch.exp(x - column)) if self.layout.one_set else p
        weight = torch.exp(self.shift - row)
        if self.layout.one_set:
            weight = weight + torch.exp(self.shift - column)
        return self._logits(tile, self.shift).exp_().mul_(weight)

    def _log_z_of_columns(self, log_z: Tensor) -> Tensor:
        if self.layout.symmetric:
            return log_z
        joined = log_z.new_zeros(len(self.others))
        if self.layout.joined:
            joined[self.layout.right.local] = log_z
            dist.all_reduce(joined, group=self.layout.group)
        return joined

    def _logits(self, tile: Tile, shift: float) -> Tensor:
        """Return the logits of a tile minus the shift, with −inf for pairs (u, u)."""
        q, r = self.queries[tile.rows], self.others[tile.columns]
        x = self.buffer[: len(q) * len(r)].view(len(q), len(r))
        torch.addmm(q.new_full((1,), -shift), q, r.T, alpha=self.scale, out=x)
        if tile.diagonal:
            x.fill_diagonal_(-torch.inf)
        else:
            itself = self.layout.right.self_pairs(tile)
            if itself is not None:
                x[itself] = -torch.inf
        return x
