"""The sigmoid pair loss: every pair judged "same" or "different" by its similarity.

    a_uv = t c_u·c_v − b,   cost = softplus(−a) for pairs of one class, softplus(a) for the others

Value and gradient come from one pass over the tiles. With ζ_uv = ∂cost/∂a = −σ(−a) or σ(a):

    ∂/∂c_u = 2t Σ_v ζ_uv c_v,   ∂/∂t = Σ_u c_u·Σ_v ζ_uv c_v,   ∂/∂b = −Σ_uv ζ_uv

each times the pair's weight. Memory is O(n·d + tile²), and nothing is ever found by subtracting
large sums, so a loss of 1e-20 has as many right digits as a loss of 1.
"""

from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor

from scs_supcon.autograd import only_once, times
from scs_supcon.pairs.rows import TILE, Rows, Tile, same_class_pairs, tiles

Weighting = Literal["all", "balanced", "positives"]


def sigmoid_pairs(  # noqa: PLR0913
    queries: Tensor,
    rows: Rows,
    t: Tensor,
    b: Tensor,
    *,
    references: Tensor | None = None,
    columns: Rows | None = None,
    weighting: Weighting = "all",
    include_self: bool = True,
    tile: int = TILE,
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
    everyone = columns if columns is not None and columns.own is not None else rows
    weights = _weights(everyone, columns, weighting, include_self)
    job = _Job(rows, columns, weights, include_self, tile)
    result: Tensor = _SigmoidPairs.apply(queries, references, t, b, job)
    return result


@dataclass(frozen=True)
class _Job:
    rows: Rows
    columns: Rows | None
    weights: tuple[float, float]  # of a same-class pair, of another pair
    include_self: bool
    tile: int

    @property
    def joined(self) -> bool:
        return self.columns is not None and self.columns.own is not None


def _weights(
    rows: Rows, columns: Rows | None, weighting: Weighting, include_self: bool
) -> tuple[float, float]:
    apart = columns is not None and columns.own is None
    needed = weighting != "all"
    positive = same_class_pairs(rows, columns if apart else None) if needed else 0
    total = len(rows) * (len(columns) if apart and columns is not None else len(rows))
    if not include_self and not apart:
        positive, total = positive - len(rows) * needed, total - len(rows)
    if weighting == "balanced":
        return 0.5 / max(positive, 1), 0.5 / max(total - positive, 1)
    divisor = max(positive if weighting == "positives" else total, 1)
    return 1 / divisor, 1 / divisor


class _SigmoidPairs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, queries: Tensor, references: Tensor | None, t: Tensor, b: Tensor, job: _Job
    ) -> Tensor:
        need = ctx.needs_input_grad
        sums = _Sums(queries, references, float(t), float(b), job, any(need))
        with torch.autocast(queries.device.type, enabled=False):
            for tile in tiles(job.rows, job.columns, job.tile):
                sums.add(tile)
        totals = sums.totals
        if any(need):
            totals[2] = _inner(queries, sums.grad_queries)
        if job.joined:
            dist.all_reduce(totals)
        if any(need):
            symmetric = references is None or job.joined
            sums.grad_queries.mul_(2 * float(t) if symmetric else float(t))
            if sums.grad_references is not None:
                sums.grad_references.mul_(float(t))
            ctx.save_for_backward(sums.grad_queries, sums.grad_references, totals)
            ctx.scalars = (t, b)
        return totals[0].to(queries.dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        only_once()
        grad_queries, grad_references, totals = ctx.saved_tensors
        t, b = ctx.scalars
        need_q, need_r, need_t, need_b, _ = ctx.needs_input_grad
        grad64 = grad.double()
        return (
            times(grad_queries, grad) if need_q else None,
            times(grad_references, grad) if need_r else None,
            (totals[2] * grad64).to(t) if need_t else None,
            (-totals[1] * grad64).to(b) if need_b else None,
            None,
        )


class _Sums:
    """What the pass over the tiles collects: totals = (Σ cost, Σ ζ, Σ ζ c_u·c_v), and Σ_v ζ c_v."""

    def __init__(
        self,
        queries: Tensor,
        references: Tensor | None,
        t: float,
        b: float,
        job: _Job,
        with_gradient: bool,
    ) -> None:
        self.queries = queries
        self.references = queries if references is None else references
        self.t = t
        self.minus_b = queries.new_full((1,), -b)
        self.job = job
        self.with_gradient = with_gradient
        self.totals = torch.zeros(3, dtype=torch.float64, device=queries.device)
        self.grad_queries = torch.zeros_like(queries) if with_gradient else queries
        own = references is not None and references.requires_grad and with_gradient
        self.grad_references = torch.zeros_like(self.references) if own else None
        columns = job.rows if job.columns is None else job.columns
        area = min(job.tile, len(queries)) * min(job.tile, len(columns))
        self.logits = queries.new_empty(area)
        self.costs = queries.new_empty(area)
        # F.softplus turns linear at its threshold: 20 leaves 2e-9, too much for float64.
        self.threshold = 40.0 if queries.dtype == torch.float64 else 20.0

    def add(self, tile: Tile) -> None:
        q, r = self.queries[tile.rows], self.references[tile.columns]
        x = self.logits[: len(q) * len(r)].view(len(q), len(r))
        costs = self.costs[: len(q) * len(r)].view(len(q), len(r))
        torch.addmm(self.minus_b, q, r.T, alpha=self.t, out=x)
        positive, negative = self.job.weights
        scale = negative or positive
        same = self._same(tile)
        _flip(x, tile, same)  # the argument of softplus is a, or −a for classmates
        torch.ops.aten.softplus.out(x, 1, self.threshold, out=costs)
        own = None if self.job.include_self else self._self_pairs(tile)
        twice = 2 if self.job.columns is None and not tile.diagonal else 1
        self._finish(costs, tile, same, own)
        self.totals[0].add_(_total(costs), alpha=scale * twice)
        if not self.with_gradient:
            return
        x.sigmoid_()
        _flip(x, tile, same)  # now x is ζ
        self._finish(x, tile, same, own)
        self.totals[1].add_(_total(x), alpha=scale * twice)
        self.grad_queries[tile.rows].addmm_(x, r, alpha=scale)
        if twice == 2:
            self.grad_queries[tile.columns].addmm_(x.T, q, alpha=scale)
        elif self.grad_references is not None:
            self.grad_references[tile.columns].addmm_(x.T, q, alpha=scale)

    def _same(self, tile: Tile) -> Tensor | None:
        """1 for classmates, 0 for others, where a tile has both side by side."""
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
        if tile.same is None or positive == negative or not negative:
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
    """Rows in the working precision, their total in float64."""
    return x.sum(1).sum(dtype=torch.float64)


def _inner(x: Tensor, y: Tensor, chunk: int = 8192) -> Tensor:
    """Σ_u x_u·y_u in float64, without a third matrix of their size."""
    total = x.new_zeros((), dtype=torch.float64)
    for k in range(0, len(x), chunk):
        total += _total(x[k : k + chunk] * y[k : k + chunk])
    return total
