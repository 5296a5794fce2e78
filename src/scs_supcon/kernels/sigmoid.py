"""The sigmoid pair loss: each pair is classified as "same" or "different" by its similarity.

    a_uv = t c_u·c_v − b,   cost = softplus(−a) for positive pairs, softplus(a) for negative pairs

Value and gradient come from one pass over the tiles. With ζ_uv = ∂cost/∂a = −σ(−a) or σ(a):

    ∂/∂c_u = 2t Σ_v ζ_uv c_v,   ∂/∂t = Σ_u c_u·Σ_v ζ_uv c_v,   ∂/∂b = −Σ_uv ζ_uv

each times the pair's weight. Memory is O(n·d + tile²). No result is a difference of large sums, so
a loss of 1e-20 has as many correct digits as a loss of 1.
"""

import os
from collections.abc import Callable
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
    sum_to,
    traced,
    wide,
)
from scs_supcon.kernels.bias import solve, solve_banded_bias, solve_sorted_bias
from scs_supcon.kernels.dense import sigmoid_cost, softplus_threshold
from scs_supcon.kernels.layout import TILE, Layout, Tile, longest, tiles
from scs_supcon.kernels.pairs import Pairs, Sides, pair_weights

SAFE_LOGIT = 5.0  # up to here −log(1 − σ) loses less than the rounding of the logit
MANY, WIDE_TILE = 4096, 768  # above MANY rows wide tiles are faster by 2 to 7%
FEW = 1 << 14  # numbers that are summed in one step


def sigmoid_pairs(
    c: Sides,  # (n, d), (m, d)
    pairs: Pairs,
    t: Tensor,  # ()
    b: Tensor | None,  # ()
    *,
    start: Tensor | None = None,  # ()
    tile: int | None = None,
) -> tuple[Tensor, Tensor]:  # (), or (n,) if pairs.per_row; ()
    """Return the weighted mean cost of all pairs, and b.

    Rows `(h, n, d)` of h heads have the same pairs; there is one value, and one solved b, per head.

    Args:
        c: both sides of the pairs, in any order.
        pairs: their targets and weights, and what the sum is divided by.
        t: scalar that multiplies the similarity.
        b: scalar bias; None: solved such that the weighted mean of σ(a) is Σ w q / Σ w.
        start: a guess of the solved b, which saves time and does not change the result.
        tile: side of a tile; affects speed and memory, not the result. Default: chosen by size.
    """
    labels_only = pairs.by_label and not traced(c.rows)
    small = c.rows.shape[-2] <= TILE and c.references is None and not pairs.gather
    if labels_only and small and tile is None and reads_are_free(c.rows):
        return _whole(c.rows, pairs, t, b, start)
    if c.rows.dim() == 3:
        return _per_head(c, pairs, t, b, start, tile)
    if not labels_only:
        return _in_bands(c, pairs, t, b, start)
    layout = pairs.layout
    queries, others = layout.arrange(*c)
    include_self = pairs.self_weight > 0
    if b is None:
        b = solve_sorted_bias(
            queries, others, layout, t.detach(), include_self=include_self, start=start
        )
        if layout.joined:
            first = 0 if layout.group is None else dist.get_global_rank(layout.group, 0)
            dist.broadcast(b, first, group=layout.group)
    if tile is None and _use_triton(queries, others):
        from scs_supcon.kernels.triton_sigmoid import triton_sigmoid

        weights = pair_weights(*layout.count_on_device(include_self), pairs.divide_by)
        return triton_sigmoid(queries, others, layout, t, b, weights, include_self), b
    if tile is None:
        tile = TILE if len(queries) <= MANY else WIDE_TILE
    weights = pair_weights(*layout.count(include_self), pairs.divide_by)
    loss: Tensor = _TiledPairs.apply(queries, others, t, b, layout, weights, include_self, tile)
    return loss, b


def _use_triton(queries: Tensor, others: Tensor | None) -> bool:
    """Return whether Triton's kernel is used: on CUDA, unless $SCS_TRITON is 0 or it fails."""
    if not queries.is_cuda or os.environ.get("SCS_TRITON") == "0" or find_spec("triton") is None:
        return False
    from scs_supcon.kernels.triton_sigmoid import supported, works

    return supported(queries, others) and works(queries.device)


def _per_head(
    c: Sides,
    pairs: Pairs,
    t: Tensor,
    b: Tensor | None,
    start: Tensor | None,
    tile: int | None = None,
) -> tuple[Tensor, Tensor]:
    results = []
    for k, rows in enumerate(c.rows):
        references = None if c.references is None else c.references[k]
        given, guess = (x if x is None or x.numel() == 1 else x[k] for x in (b, start))
        sides = Sides(rows, references)
        results.append(sigmoid_pairs(sides, pairs, t, given, start=guess, tile=tile))
    losses, biases = zip(*results, strict=True)
    return torch.stack(losses), torch.stack(biases)


def _in_bands(
    c: Sides, pairs: Pairs, t: Tensor, b: Tensor | None, start: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return the loss from targets and weights of pairs, with a gradient by autograd."""
    x, y = c.rows, pairs.join(*c)
    t = t.reshape(())  # a scalar does not change the type of a product
    with full_precision(x):
        if b is None:
            b = solve_banded_bias(x.detach(), y.detach(), pairs, t.detach(), start)
        b = b.reshape(())
        total, positive = pairs.totals(x.device)
        attract, repel = (w.to(x.dtype) for w in pair_weights(total, positive, pairs.divide_by))

        def cost(rows: slice) -> Tensor:
            a = t * (x[rows] @ y.T) - b
            q, w = pairs.targets(rows)
            costs = sigmoid_cost(a, q if q.dtype == torch.bool else q.to(a.dtype), attract, repel)
            return (costs if w is None else costs * w.to(a.dtype)).sum(1, dtype=wide(a))

        values = pairs.over_rows(cost, x).to(x.dtype)
    return (values * pairs.rows if pairs.per_row else values.sum()), b


def _whole(
    c: Tensor, pairs: Pairs, t: Tensor, b: Tensor | None, start: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return the loss of a small batch `(n, d)` or `(h, n, d)`: one tile, rows in any order."""
    labels = pairs.labels
    assert labels is not None
    same = labels[:, None] == labels
    excluded = 0 if pairs.self_weight else len(labels)
    total = same.numel() - excluded
    # The mean over all pairs does not depend on the number of positive pairs.
    positive = 0 if b is not None and pairs.divide_by == "all" else int(same.sum()) - excluded
    with full_precision(c), torch.no_grad():
        logits = torch.matmul(c, c.mT).mul_(float(t))
        if b is None:
            weights = None
            if excluded:
                weights = (~_diagonal(same)).to(logits.dtype) / max(total, 1)
            b = _solve_each(logits, positive, total, weights, start)
        logits.sub_(float(b) if b.numel() == 1 else b[:, None, None])
    sizes = pair_weights(total, positive, pairs.divide_by)
    loss: Tensor = _WholePairs.apply(c, t, b, logits, same, sizes, pairs)
    return loss, b


def _solve_each(
    logits: Tensor, positive: int, total: int, weights: Tensor | None, start: Tensor | None
) -> Tensor:
    """Return the solved bias of `(n, n)` logits, or of each head of `(h, n, n)`."""
    if logits.dim() == 2:
        return solve(logits, positive, total, weights, start)
    starts = [None] * len(logits) if start is None else start.expand(len(logits))
    pieces = zip(logits, starts, strict=True)
    return torch.stack([solve(x, positive, total, weights, guess) for x, guess in pieces])


def cost_and_slope(
    x: Tensor, cost: Tensor, negate: Callable[[Tensor], object], weigh: Callable[[Tensor], object]
) -> None:
    """Write the costs of logits x to `cost`, and overwrite x with ζ; both weighted.

    Args:
        x: logits a.
        cost: of the same shape.
        negate: changes the sign of positive pairs in place.
        weigh: multiplies by the weights of pairs in place.
    """
    negate(x)  # the argument of softplus is a, or −a for positive pairs
    torch.ops.aten.softplus.out(x, 1, softplus_threshold(x), out=cost)
    negate(x.sigmoid_())
    weigh(cost)
    weigh(x)


class _WholePairs(torch.autograd.Function):
    """The loss of logits of a small batch, which are overwritten."""

    @staticmethod
    def forward(
        ctx: Any,
        c: Tensor,
        t: Tensor,
        b: Tensor,
        x: Tensor,
        same: Tensor,
        weights: tuple[float, float],
        pairs: Pairs,
    ) -> Tensor:
        attract, repel = weights
        sign = torch.where(same, -1.0, 1.0).to(x.dtype)

        def weigh(values: Tensor) -> None:
            if not pairs.self_weight:
                values.masked_fill_(_diagonal(same), 0)
            if attract != repel:
                values.mul_(torch.where(same, x.new_tensor(attract / repel), x.new_tensor(1)))

        cost = torch.empty_like(x)
        cost_and_slope(x, cost, lambda values: values.mul_(sign), weigh)
        need_c, need_t, need_b, *_ = ctx.needs_input_grad
        by_c = by_t = by_b = None
        if need_c or need_t:
            with full_precision(c):
                by_c = torch.matmul(x, c)
            by_t = _totals(c * by_c).mul_(repel) if need_t else None
            by_c.mul_(2 * float(t) * repel)
        if need_b:
            by_b = _totals(x).mul_(-repel)
        ctx.save_for_backward(c, t, b, by_c, by_t, by_b)
        ctx.pairs = pairs
        return _totals(cost).mul_(repel).to(c.dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        c, t, b, by_c, by_t, by_b = ctx.saved_tensors
        needs = ctx.needs_input_grad[:3]
        if torch.is_grad_enabled():  # create_graph=True
            return *_differentiable_gradients((c, t, b), needs, ctx.pairs, grad), *[None] * 4
        need_c, need_t, need_b = needs
        return (
            scale_gradient(by_c, grad) if need_c else None,
            sum_to(by_t * grad, t) if need_t else None,
            sum_to(by_b * grad, b) if need_b else None,
            *[None] * 4,
        )


def _differentiable_gradients(
    inputs: tuple[Tensor, Tensor, Tensor], needs: tuple[bool, ...], pairs: Pairs, grad: Tensor
) -> list[Tensor | None]:
    """Return the gradients by c, t and b as functions of them, for second derivatives."""
    c, t, b = inputs
    heads = [(c, b)] if c.dim() == 2 else list(zip(c, b.expand(len(c)), strict=True))
    values = [_in_bands(Sides(rows), pairs, t, bias)[0] for rows, bias in heads]
    wanted = [x for x, need in zip(inputs, needs, strict=True) if need]
    gradients = iter(torch.autograd.grad(values, wanted, list(grad.view(-1)), create_graph=True))
    return [next(gradients) if need else None for need in needs]


def _diagonal(same: Tensor) -> Tensor:
    return torch.eye(len(same), dtype=torch.bool, device=same.device)


class _TiledPairs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        queries: Tensor,
        references: Tensor | None,
        t: Tensor,
        b: Tensor,
        layout: Layout,
        weights: tuple[float, float],
        include_self: bool,
        tile: int,
    ) -> Tensor:
        sums = _TileSums(queries, references, layout, float(t), float(b), weights, include_self)
        sums.prepare(tile, *ctx.needs_input_grad[:4])
        with full_precision(queries):
            for piece in tiles(layout, tile):
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
            sum_to(by_t * grad, t) if need_t else None,
            sum_to(by_b * grad, b) if need_b else None,
            *[None] * 4,
        )


class _TileSums:
    """The cost and its gradients, summed tile by tile."""

    def __init__(
        self,
        queries: Tensor,
        references: Tensor | None,
        layout: Layout,
        t: float,
        b: float,
        weights: tuple[float, float],
        include_self: bool,
    ) -> None:
        self.queries = queries
        self.references = queries if references is None else references
        self.layout, self.t, self.b = layout, t, b
        self.weights, self.include_self = weights, include_self
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
        # Whether log(1 − σ(a)) is accurate for all logits.
        largest = abs(self.t) * longest(queries) * longest(references) - self.b
        self.safe = largest <= SAFE_LOGIT

    def add(self, tile: Tile) -> None:
        """Add the pairs of a tile."""
        q, r = self.queries[tile.rows], self.references[tile.columns]
        x = self.logits[: len(q) * len(r)].view(len(q), len(r))
        torch.addmm(self.minus_b, q, r.T, alpha=self.t, out=x)
        _, scale = self.weights
        twice = 2 if self.layout.symmetric and not tile.diagonal else 1
        negatives_only = tile.same is None and self.safe
        cost = self._cost_of_negatives(x) if negatives_only else self._cost(x, tile)
        self.cost.add_(cost, alpha=scale * twice)
        if self.grad_queries is None:
            return
        if self.need_b:
            self.by_b.sub_(_total(x), alpha=scale * twice)
        self.grad_queries[tile.rows].addmm_(x, r, alpha=scale)
        if twice == 2:
            self.grad_queries[tile.columns].addmm_(x.T, q, alpha=scale)
        elif self.grad_references is not None:
            self.grad_references[tile.columns].addmm_(x.T, q, alpha=scale)

    def finish(self) -> None:
        """Sum over processes, and scale Σ_v ζ_uv c_v to the gradient."""
        if self.grad_queries is not None and self.need_t:
            self.by_t.add_(_inner_product(self.queries, self.grad_queries))
        if self.layout.joined:
            totals = torch.stack([self.cost, self.by_t, self.by_b])
            dist.all_reduce(totals, group=self.layout.group)
            self.cost, self.by_t, self.by_b = totals.unbind()
        if self.grad_queries is not None:
            self.grad_queries.mul_(2 * self.t if self.layout.one_set else self.t)
        if self.grad_references is not None:
            self.grad_references.mul_(self.t)

    def _cost(self, x: Tensor, tile: Tile) -> Tensor:
        """Return the cost of a tile with logits x, and overwrite x with ζ, both weighted."""
        cost = self.costs[: x.numel()].view_as(x)
        same = self._same_class(tile)
        itself = None if self.include_self else self._self_pairs(tile)
        cost_and_slope(
            x,
            cost,
            lambda values: _negate_positives(values, tile, same),
            lambda values: self._weigh(values, tile, same, itself),
        )
        return _total(cost)

    def _cost_of_negatives(self, x: Tensor) -> Tensor:
        """As `_cost` for negative pairs only: softplus(a) = −log(1 − σ(a)) saves an exponential."""
        costs = self.costs[: x.numel()].view_as(x)
        torch.neg(x.sigmoid_(), out=costs).log1p_()
        return _total(costs).neg_()

    def _same_class(self, tile: Tile) -> Tensor | None:
        """Return 1 for same-class pairs and 0 for others where a tile holds both, else None."""
        if tile.same is None or tile.uniform:
            return None
        across = self.layout.rows.labels[tile.rows][tile.same[0], None]
        down = self.layout.right.labels[tile.columns][None, tile.same[1]]
        return (across == down).to(self.queries.dtype)

    def _self_pairs(self, tile: Tile) -> tuple[Tensor, Tensor] | None:
        """Return the positions of pairs (u, u) in the tile, if there can be any."""
        if tile.diagonal:
            index = torch.arange(tile.rows.stop - tile.rows.start, device=self.queries.device)
            return index, index
        return self.layout.right.self_pairs(tile)

    def _weigh(
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


def _total(x: Tensor) -> Tensor:
    """Return the sum in float64; rows of large tiles are first summed in their precision."""
    return (x if x.numel() <= FEW else x.sum(1)).sum(dtype=wide(x))


def _totals(x: Tensor) -> Tensor:
    """As `_total`, of each matrix in x."""
    if x.numel() <= FEW:
        return x.sum((-2, -1), dtype=wide(x))
    return x.sum(-1).sum(-1, dtype=wide(x))


def _inner_product(x: Tensor, y: Tensor, chunk: int = 8192) -> Tensor:
    """Return Σ_u x_u·y_u in float64, without allocating a third matrix of this size."""
    if len(x) <= chunk:
        return _total(x * y)
    return _inner_product(x[:chunk], y[:chunk]) + _inner_product(x[chunk:], y[chunk:])
