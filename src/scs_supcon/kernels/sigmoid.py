"""The sigmoid pair loss: each pair is classified as "same" or "different" by its similarity.

    a_uv = t c_u·c_v − b,   cost = softplus(−a) for same-class pairs, softplus(a) for other pairs

A margin m makes positive pairs harder: a_uv = t (c_u·c_v − m) − b for same-class pairs only.

Value and gradient come from one pass over the tiles. With ζ_uv = ∂cost/∂a = −σ(−a) or σ(a):

    ∂/∂c_u = 2t Σ_v ζ_uv c_v,   ∂/∂t = Σ_u c_u·Σ_v ζ_uv c_v − m Σ_same ζ_uv,   ∂/∂b = −Σ_uv ζ_uv

each times the pair's weight. Memory is O(n·d + tile²). No result is a difference of large sums, so
a loss of 1e-20 has as many correct digits as a loss of 1. Small batches are computed in `dense`.
"""

from importlib.util import find_spec
from typing import Any

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
from scs_supcon.kernels.bias import solve_sorted_bias
from scs_supcon.kernels.dense import Weighting, dense_sigmoid_loss, pair_weights
from scs_supcon.kernels.gather import Group, arrange_pairs, several_processes
from scs_supcon.kernels.layout import TILE, PairLabels, Tile, longest, tiles

DENSE_ROWS = 128  # up to this size the dense form is no slower (measured)
SAFE_LOGIT = 5.0  # up to here −log(1 − σ) loses less than the rounding of the logit
MANY, WIDE_TILE = 4096, 768  # above MANY rows wide tiles are faster by 2 to 7%
FEW = 1 << 14  # numbers that are summed in one step


def sigmoid_pair_loss(  # noqa: PLR0913
    common: Tensor,
    labels: Tensor,
    t: Tensor,
    b: Tensor | None,
    *,
    weighting: Weighting = "all",
    include_self: bool = True,
    margin: float = 0.0,
    references: Tensor | None = None,
    reference_labels: Tensor | None = None,
    include_rows: bool = False,
    gather: bool = False,
    group: Group = None,
    tile: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the weighted mean cost of all pairs, and b.

    Args:
        common: `(n, d)` rows, in any order.
        labels: `(n,)`.
        t: scalar that multiplies the similarity.
        b: scalar bias; None: solved such that the mean of σ(a) is the share of same-class pairs.
        weighting: "all": the mean over pairs. "balanced": half the mean over same-class pairs plus
            half the mean over the others; an empty set contributes 0. "positives": the sum divided
            by the number of same-class pairs (by 1 if there are none).
        include_self: whether pairs (u, u) count.
        margin: m, subtracted from the similarities of same-class pairs.
        references: `(m, d)` right side of the pairs; default: the rows themselves.
        reference_labels: `(m,)`.
        include_rows: whether the rows are references, too: n × (n + m) pairs.
        gather: pair the rows with those of all processes. The value and the gradients of t and b
            are then the same on all processes.
        group: the processes; default: all.
        tile: side of a tile; affects speed and memory, not the result. Default: chosen by size.
    """
    gather = gather and several_processes(group)
    if tile is None and references is None and not gather and _dense(common):
        return dense_sigmoid_loss(
            common, labels, t, b, weighting=weighting, include_self=include_self, margin=margin
        )
    queries, others, pairs = arrange_pairs(
        common, labels, references, reference_labels, gather, group=group, include_rows=include_rows
    )
    if b is None:
        b = solve_sorted_bias(queries, others, pairs, t, include_self=include_self, margin=margin)
        if gather:
            dist.broadcast(b, group=group, group_src=0)
    if tile is None and _use_triton(queries, others):
        return _fused(queries, others, pairs, t, b, weighting, include_self, margin), b
    if tile is None:
        tile = TILE if len(queries) <= MANY else WIDE_TILE
    weights = pair_weights(*pairs.count(include_self), weighting)
    loss: Tensor = _SigmoidPairs.apply(
        queries, others, t, b, pairs, weights, include_self, margin, tile
    )
    return loss, b


def _dense(common: Tensor) -> bool:
    """Return whether whole matrices are used: small batches, and whatever torch traces."""
    return (common.shape[0] <= DENSE_ROWS and reads_are_free(common)) or traced(common)


def _use_triton(queries: Tensor, others: Tensor | None) -> bool:
    """Return whether Triton's kernel is used: on CUDA, if Triton is installed."""
    if not queries.is_cuda or find_spec("triton") is None:
        return False
    from scs_supcon.kernels.triton_sigmoid import supported

    return supported(queries, others)


def _fused(
    queries: Tensor,
    others: Tensor | None,
    pairs: PairLabels,
    t: Tensor,
    b: Tensor,
    weighting: Weighting,
    include_self: bool,
    margin: float,
) -> Tensor:
    """Return the loss, computed by one kernel; the host reads nothing."""
    from scs_supcon.kernels.triton_sigmoid import triton_sigmoid_loss

    return triton_sigmoid_loss(
        queries,
        others,
        pairs.rows.labels,
        pairs.right.labels,
        pairs.right.local,
        t,
        b,
        pair_weights(*pairs.count_on_device(include_self), weighting),
        include_self=include_self,
        margin=margin,
        one_set=pairs.one_set,
        joined=pairs.joined,
        group=pairs.group,
    )


class _SigmoidPairs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        queries: Tensor,
        references: Tensor | None,
        t: Tensor,
        b: Tensor,
        pairs: PairLabels,
        weights: tuple[float, float],
        include_self: bool,
        margin: float,
        tile: int,
    ) -> Tensor:
        sums = _TileSums(
            queries, references, pairs, float(t), float(b), weights, include_self, margin
        )
        sums.prepare(tile, *ctx.needs_input_grad[:4])
        with full_precision(queries):
            for piece in tiles(pairs, tile):
                sums.add(piece)
        sums.finish()
        ctx.save_for_backward(sums.grad_queries, sums.grad_references, sums.by_t, sums.by_b)
        ctx.scalars = (t, b)
        return sums.cost.to(queries.dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        forbid_double_backward()
        grad_queries, grad_references, by_t, by_b = ctx.saved_tensors
        t, b = ctx.scalars
        need_queries, need_references, need_t, need_b, *_ = ctx.needs_input_grad
        return (
            scale_gradient(grad_queries, grad) if need_queries else None,
            scale_gradient(grad_references, grad) if need_references else None,
            (by_t * grad).to(t) if need_t else None,
            (by_b * grad).to(b) if need_b else None,
            *[None] * 5,
        )


class _TileSums:
    """The cost and its gradients, summed tile by tile."""

    def __init__(
        self,
        queries: Tensor,
        references: Tensor | None,
        pairs: PairLabels,
        t: float,
        b: float,
        weights: tuple[float, float],
        include_self: bool,
        margin: float,
    ) -> None:
        self.queries = queries
        self.references = queries if references is None else references
        self.pairs, self.t, self.b = pairs, t, b
        self.weights, self.include_self, self.margin = weights, include_self, margin
        self.cost = torch.zeros((), dtype=wide(queries), device=queries.device)
        self.by_b, self.by_t = torch.zeros_like(self.cost), torch.zeros_like(self.cost)

    def prepare(
        self, tile: int, need_queries: bool, need_references: bool, need_t: bool, need_b: bool
    ) -> None:
        """Allocate buffers for a tile and the gradients that are needed."""
        queries, references = self.queries, self.references
        self.need_t, self.need_b = need_t, need_b
        any_gradient = need_queries or need_references or need_t or need_b
        self.grad_queries = torch.zeros_like(queries) if any_gradient else None
        self.grad_references = torch.zeros_like(references) if need_references else None
        area = min(tile, len(queries)) * min(tile, len(references))
        self.costs, self.logits = queries.new_empty(area), queries.new_empty(area)
        self.minus_b = queries.new_full((1,), -self.b)
        # Whether log(1 − σ(a)) is accurate for all logits; not checked for a single tile.
        self.safe = area < len(queries) * len(references) and (
            abs(self.t) * longest(queries) * longest(references) - self.b <= SAFE_LOGIT
        )
        self.threshold = 40.0 if queries.dtype == torch.float64 else 20.0  # see `dense.softplus`

    def add(self, tile: Tile) -> None:
        """Add the pairs of a tile."""
        q, r = self.queries[tile.rows], self.references[tile.columns]
        x = self.logits[: len(q) * len(r)].view(len(q), len(r))
        torch.addmm(self.minus_b, q, r.T, alpha=self.t, out=x)
        _, scale = self.weights
        twice = 2 if self.pairs.symmetric and not tile.diagonal else 1
        negatives_only = tile.same is None and self.safe
        cost = self._cost_of_negatives(x) if negatives_only else self._cost(x, tile)
        self.cost.add_(cost, alpha=scale * twice)
        if self.grad_queries is None:
            return
        if self.need_b:
            self.by_b.sub_(_total(x), alpha=scale * twice)
        if self.need_t and self.margin and tile.same is not None:
            self.by_t.sub_(self._total_of_positives(x, tile), alpha=scale * twice * self.margin)
        self.grad_queries[tile.rows].addmm_(x, r, alpha=scale)
        if twice == 2:
            self.grad_queries[tile.columns].addmm_(x.T, q, alpha=scale)
        elif self.grad_references is not None:
            self.grad_references[tile.columns].addmm_(x.T, q, alpha=scale)

    def finish(self) -> None:
        """Sum over processes, and scale Σ_v ζ_uv c_v to the gradient."""
        if self.grad_queries is not None and self.need_t:
            self.by_t.add_(_inner_product(self.queries, self.grad_queries))
        if self.pairs.joined:
            totals = torch.stack([self.cost, self.by_t, self.by_b])
            dist.all_reduce(totals, group=self.pairs.group)
            self.cost, self.by_t, self.by_b = totals.unbind()
        if self.grad_queries is not None:
            self.grad_queries.mul_(2 * self.t if self.pairs.one_set else self.t)
        if self.grad_references is not None:
            self.grad_references.mul_(self.t)

    def _cost(self, x: Tensor, tile: Tile) -> Tensor:
        """Return the cost of a tile with logits x, and overwrite x with ζ, both weighted."""
        costs = self.costs[: x.numel()].view_as(x)
        same = self._same_class(tile)
        itself = None if self.include_self else self._self_pairs(tile)
        if self.margin:
            _subtract_from_positives(x, tile, same, self.t * self.margin)
        _negate_positives(x, tile, same)  # the argument of softplus is a, or −a for positive pairs
        torch.ops.aten.softplus.out(x, 1, self.threshold, out=costs)
        self._weight(costs, tile, same, itself)
        if self.grad_queries is not None:
            x.sigmoid_()
            _negate_positives(x, tile, same)
            self._weight(x, tile, same, itself)
        return _total(costs)

    def _cost_of_negatives(self, x: Tensor) -> Tensor:
        """As `_cost` for negative pairs only: softplus(a) = −log(1 − σ(a)) saves an exponential."""
        costs = self.costs[: x.numel()].view_as(x)
        torch.neg(x.sigmoid_(), out=costs).log1p_()
        return _total(costs).neg_()

    def _total_of_positives(self, x: Tensor, tile: Tile) -> Tensor:
        """Return the sum over the same-class pairs of a tile."""
        same = self._same_class(tile)
        block = x[tile.same]
        return _total(block if same is None else block * same)

    def _same_class(self, tile: Tile) -> Tensor | None:
        """Return 1 for same-class pairs and 0 for others where a tile holds both, else None."""
        if tile.same is None or tile.uniform:
            return None
        across = self.pairs.rows.labels[tile.rows][tile.same[0], None]
        down = self.pairs.right.labels[tile.columns][None, tile.same[1]]
        return (across == down).to(self.queries.dtype)

    def _self_pairs(self, tile: Tile) -> tuple[Tensor, Tensor] | None:
        """Return the positions of pairs (u, u) in the tile, if there can be any."""
        if tile.diagonal:
            index = torch.arange(tile.rows.stop - tile.rows.start, device=self.queries.device)
            return index, index
        return self.pairs.right.self_pairs(tile)

    def _weight(
        self, x: Tensor, tile: Tile, same: Tensor | None, itself: tuple[Tensor, Tensor] | None
    ) -> None:
        """Clear pairs (u, u), and weight positive pairs relative to negative ones."""
        positive, negative = self.weights
        if itself is not None:
            x[itself] = 0
        if tile.same is None or positive == negative:
            return
        block = x[tile.same]
        if same is None:
            block.mul_(positive / negative)
        else:
            block.copy_(torch.where(same > 0, block * (positive / negative), block))


def _negate_positives(x: Tensor, tile: Tile, same: Tensor | None) -> None:
    if tile.same is None:
        return
    block = x[tile.same]
    if same is None:
        block.neg_()
    else:
        block.addcmul_(block, same, value=-2)  # x − 2x is −x exactly


def _subtract_from_positives(x: Tensor, tile: Tile, same: Tensor | None, amount: float) -> None:
    if tile.same is None:
        return
    block = x[tile.same]
    if same is None:
        block.sub_(amount)
    else:
        block.sub_(same, alpha=amount)


def _total(x: Tensor) -> Tensor:
    """Return the sum in float64; rows of large tiles are first summed in their precision."""
    return (x if x.numel() <= FEW else x.sum(1)).sum(dtype=wide(x))


def _inner_product(x: Tensor, y: Tensor, chunk: int = 8192) -> Tensor:
    """Return Σ_u x_u·y_u in float64, without allocating a third matrix of this size."""
    if len(x) <= chunk:
        return _total(x * y)
    return _inner_product(x[:chunk], y[:chunk]) + _inner_product(x[chunk:], y[chunk:])
