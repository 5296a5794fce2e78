"""The sigmoid pair loss: every pair judged "same" or "different" by its similarity.

    a_uv = t c_u·c_v − b,   cost = softplus(−a) for pairs of one class, softplus(a) for the others

Value and gradient come from one pass over the tiles. With ζ_uv = ∂cost/∂a = −σ(−a) or σ(a):

    ∂/∂c_u = 2t Σ_v ζ_uv c_v,   ∂/∂t = Σ_u c_u·Σ_v ζ_uv c_v,   ∂/∂b = −Σ_uv ζ_uv

each times the pair's weight. Memory is O(n·d + tile²), and nothing is ever found by subtracting
large sums, so a loss of 1e-20 has as many right digits as a loss of 1.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor

from scs_supcon.kernels.autograd import full_precision, only_once, times
from scs_supcon.kernels.layout import TILE, Rows, Tile, longest, same_class_pairs, tiles

CALM = 5.0  # up to there softplus by way of σ loses less than the logit's own rounding costs
MANY, WIDE_TILE = 4096, 768  # above so many rows larger products pay off, by 2 to 7 %
FEW = 1 << 14  # numbers that are added in one step

Weighting = Literal["all", "balanced", "positives"]


def sigmoid_pairs(
    queries: Tensor,
    rows: Rows,
    t: Tensor,
    b: Tensor,
    *,
    references: Tensor | None = None,
    columns: Rows | None = None,
    weighting: Weighting = "all",
    include_self: bool = True,
    tile: int | None = None,
) -> Tensor:
    """Return the weighted mean cost of all pairs.

    Args:
        queries: `(n, d)` rows sorted by label.
        rows: their labels.
        t: scalar that multiplies the similarity.
        b: scalar bias.
        references: `(m, d)` other side of the pairs, sorted by label; default: the queries.
            With `columns.own` set they are the rows of all processes, the queries among them,
            and the value and the gradients of t and b are summed over the processes.
        columns: labels of the references.
        weighting: "all": the mean over pairs. "balanced": half the mean over same-class pairs plus
            half the mean over the others; an empty set adds 0. "positives": the sum divided by the
            number of same-class pairs (by 1 if there are none).
        include_self: whether pairs (u, u) count.
        tile: side of a tile; changes speed and memory, not the result.
    """
    if tile is None:
        tile = TILE if len(queries) <= MANY else WIDE_TILE
    weights = _weights(rows, columns, weighting, include_self)
    job = Job(rows, columns, float(t.detach()), float(b.detach()), weights, include_self, tile)
    result: Tensor = _SigmoidPairs.apply(queries, references, t, b, job)
    return result


@dataclass(frozen=True)
class Job:
    rows: Rows
    columns: Rows | None
    t: float
    b: float
    weights: tuple[float, float]  # of a same-class pair, of another pair
    include_self: bool
    tile: int
    # Where all pairs are one tile and known already: t c_u·c_v (overwritten), 1 for classmates.
    known: tuple[Tensor, Tensor] | None = None

    @property
    def joined(self) -> bool:
        return self.columns is not None and self.columns.own is not None


def _weights(
    rows: Rows, columns: Rows | None, weighting: Weighting, include_self: bool
) -> tuple[float, float]:
    joined = columns is not None and columns.own is not None
    left = columns if joined and columns is not None else rows
    right = None if joined else columns
    own = len(left) if right is None and not include_self else 0
    total = len(left) * len(left if right is None else right) - own
    positive = same_class_pairs(left, right) - own if weighting != "all" else 0
    return pair_weights(total, positive, weighting)


def pair_weights(total: int, positive: int, weighting: Weighting) -> tuple[float, float]:
    """Weights of a same-class pair and of another, for so many pairs and positive ones."""
    if weighting == "balanced":
        return 0.5 / max(positive, 1), 0.5 / max(total - positive, 1)
    divisor = max(positive if weighting == "positives" else total, 1)
    return 1 / divisor, 1 / divisor


class _SigmoidPairs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, queries: Tensor, references: Tensor | None, t: Tensor, b: Tensor, job: Job
    ) -> Tensor:
        need = ctx.needs_input_grad
        sums = Sums(queries, references, job, need[:4])
        with full_precision(queries):
            for tile in tiles(job.rows, job.columns, job.tile):
                sums.add(tile)
        sums.close()
        ctx.save_for_backward(sums.grad_queries, sums.grad_references, sums.by_t, sums.by_b)
        ctx.scalars = (t, b)
        return sums.cost.to(queries.dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        only_once()
        grad_queries, grad_references, by_t, by_b = ctx.saved_tensors
        t, b = ctx.scalars
        need_q, need_r, need_t, need_b, _ = ctx.needs_input_grad
        return (
            times(grad_queries, grad) if need_q else None,
            times(grad_references, grad) if need_r else None,
            (by_t * grad).to(t) if need_t else None,
            (by_b * grad).to(b) if need_b else None,
            None,
        )


class Sums:
    """What the pass over the tiles collects: the cost and its gradients.

    Args:
        queries, references: the two sides of the pairs.
        job: how they are judged.
        need: whether queries, references, t and b need a gradient.
    """

    def __init__(
        self, queries: Tensor, references: Tensor | None, job: Job, need: Sequence[bool]
    ) -> None:
        self.queries = queries
        self.references = queries if references is None else references
        self.job = job
        _, _, self.need_t, self.need_b = need
        self.cost = torch.zeros((), dtype=torch.float64, device=queries.device)
        self.by_b = torch.zeros_like(self.cost)
        self.by_t = self.by_b
        self.grad_queries = torch.zeros_like(queries) if any(need) else None
        self.grad_references = torch.zeros_like(self.references) if need[1] else None
        area = min(job.tile, len(queries)) * min(job.tile, len(self.references))
        self.costs = queries.new_empty(area)
        if job.known is None:
            self.minus_b = queries.new_full((1,), -job.b)
            self.logits = queries.new_empty(area)
        # Whether no logit can be so large that 1 − σ has lost its digits; of one tile nobody asks.
        self.calm = area < len(queries) * len(self.references) and (
            abs(job.t) * longest(queries) * longest(self.references) - job.b <= CALM
        )
        # F.softplus turns linear at its threshold: 20 leaves 2e-9, too much for float64.
        self.threshold = 40.0 if queries.dtype == torch.float64 else 20.0

    def add(self, tile: Tile) -> None:
        q, r = self.queries[tile.rows], self.references[tile.columns]
        x = self._logits(q, r)
        _, scale = self.job.weights
        twice = 2 if self.job.columns is None and not tile.diagonal else 1
        calm = tile.same is None and self.calm
        cost = self._judge_negatives(x) if calm else self._judge(x, tile)
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

    def _judge(self, x: Tensor, tile: Tile) -> Tensor:
        """Turn a into ζ, both weighed, and return the total cost."""
        costs = self.costs[: x.numel()].view_as(x)
        same = self._same(tile)
        own = None if self.job.include_self else self._self_pairs(tile)
        _flip(x, tile, same)  # the argument of softplus is a, or −a for classmates
        torch.ops.aten.softplus.out(x, 1, self.threshold, out=costs)
        self._finish(costs, tile, same, own)
        if self.grad_queries is not None:
            x.sigmoid_()
            _flip(x, tile, same)
            self._finish(x, tile, same, own)
        return _total(costs)

    def _judge_negatives(self, x: Tensor) -> Tensor:
        """The same where no pair is of one class: softplus(a) = −log(1 − σ(a)) saves an exp."""
        costs = self.costs[: x.numel()].view_as(x)
        torch.neg(x.sigmoid_(), out=costs).log1p_()
        return _total(costs).neg_()

    def close(self) -> None:
        """After the last tile: add what other processes have, and scale Σ_v ζ_uv c_v."""
        if self.grad_queries is not None and self.need_t:
            self.by_t = _inner(self.queries, self.grad_queries)
        if self.job.joined:
            totals = torch.stack([self.cost, self.by_t, self.by_b])
            dist.all_reduce(totals)
            self.cost, self.by_t, self.by_b = totals.unbind()
        apart = self.job.columns is not None and not self.job.joined
        if self.grad_queries is not None:
            self.grad_queries.mul_(self.job.t if apart else 2 * self.job.t)
        if self.grad_references is not None:
            self.grad_references.mul_(self.job.t)

    def _logits(self, q: Tensor, r: Tensor) -> Tensor:
        if self.job.known is not None:
            return self.job.known[0].sub_(self.job.b)
        x = self.logits[: len(q) * len(r)].view(len(q), len(r))
        return torch.addmm(self.minus_b, q, r.T, alpha=self.job.t, out=x)

    def _same(self, tile: Tile) -> Tensor | None:
        """1 for classmates, 0 for others, where a tile has both side by side."""
        if self.job.known is not None:
            return self.job.known[1]
        if tile.same is None or tile.uniform:
            return None
        columns = self.job.rows if self.job.columns is None else self.job.columns
        across = self.job.rows.labels[tile.rows][tile.same[0], None]
        down = columns.labels[tile.columns][None, tile.same[1]]
        return (across == down).to(self.queries.dtype)

    def _finish(
        self, x: Tensor, tile: Tile, same: Tensor | None, own: tuple[Tensor, Tensor] | None
    ) -> None:
        """Leave out pairs (u, u), and weigh classmates where they weigh otherwise."""
        positive, negative = self.job.weights
        if own is not None:
            x[own] = 0
        if tile.same is None or positive == negative:
            return
        part = x[tile.same]
        if same is None:
            part.mul_(positive / negative)
        else:
            part.copy_(torch.where(same > 0, part * (positive / negative), part))

    def _self_pairs(self, tile: Tile) -> tuple[Tensor, Tensor] | None:
        """Where pairs (u, u) are in this tile."""
        device = self.queries.device
        if tile.diagonal:
            same = torch.arange(tile.rows.stop - tile.rows.start, device=device)
            return same, same
        return None if self.job.columns is None else self.job.columns.place(tile)


def _flip(x: Tensor, tile: Tile, same: Tensor | None) -> None:
    """Change the sign for classmates."""
    if tile.same is None:
        return
    part = x[tile.same]
    if same is None:
        part.neg_()
    else:
        part.addcmul_(part, same, value=-2)  # x − 2x is −x exactly


def _total(x: Tensor) -> Tensor:
    """In float64; of many numbers the rows in the working precision first, which is faster."""
    return (x if x.numel() <= FEW else x.sum(1)).sum(dtype=torch.float64)


def _inner(x: Tensor, y: Tensor, chunk: int = 8192) -> Tensor:
    """Σ_u x_u·y_u in float64, without a third matrix of their size."""
    if len(x) <= chunk:
        return _total(x * y)
    return _inner(x[:chunk], y[:chunk]) + _inner(x[chunk:], y[chunk:])
