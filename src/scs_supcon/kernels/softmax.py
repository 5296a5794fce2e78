"""The InfoNCE pair loss (SupCon's "out" form) by streaming log-sum-exps.

    L = (1/n) Σ_i [ log Σ_{a≠i} exp(x_i·x_a/τ) − (1/|P_i|) Σ_{p∈P_i} x_i·x_p/τ ]   where P_i ≠ ∅

The second sum needs no pairs: Σ_p x_i·x_p = x_i·(S_{y_i} − x_i) with class sums S. The first is one
pass over the tiles; with p_uv = exp(x_u·x_v/τ)/Z_u a second pass gives the gradient

    ∂/∂x_u = (1/nτ) [ Σ_v (p_uv + p_vu) x_v − 2 (S_{y_u} − x_u)/|P_u| ]

where rows without classmates contribute no p. Memory is O(n·d + tile²). Rows that fit into one
tile need no second pass: their p are kept.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from scs_supcon.kernels.autograd import full_precision, only_once, times
from scs_supcon.kernels.layout import TILE, Rows, Tile, longest, members, tiles

# exp(−80) is still a normal float32: below that spread one shift serves every row.
SAFE_SPREAD = 80.0
NEVER = -1e30  # a logit whose exponential is 0, and which times 0 is 0
CHUNK = 4096  # rows whose class sums are held at once


def softmax_pairs(
    queries: Tensor,
    rows: Rows,
    temperature: float,
    *,
    references: Tensor | None = None,
    columns: Rows | None = None,
    tile: int = TILE,
) -> Tensor:
    """Return the mean over queries of −log softmax, averaged over each one's classmates.

    Queries that fit into one tile, without references, may come in any order.
    A query without classmates adds 0 and counts in the mean. Arguments as in `sigmoid_pairs`;
    references apart from the queries hold no row's own pair. In float32 a value far below 1 has the
    rounding of its logits, about 1e-7/τ, as it has in any form that subtracts them.
    """
    job = _Job(rows, columns, 1 / temperature, tile)
    result: Tensor = _SoftmaxPairs.apply(queries, references, job)
    return result


@dataclass(frozen=True)
class _Job:
    rows: Rows
    columns: Rows | None
    scale: float
    tile: int

    @property
    def joined(self) -> bool:
        return self.columns is not None and self.columns.own is not None

    @property
    def itself(self) -> bool:
        return self.columns is None or self.joined


class _SoftmaxPairs(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, queries: Tensor, references: Tensor | None, job: _Job) -> Tensor:
        with full_precision(queries):
            return _forward(ctx, queries, references, job)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        only_once()
        queries, references = ctx.saved_tensors
        need = ctx.needs_input_grad
        own = times(queries, grad) if need[0] else None
        return own, times(references, grad) if need[1] else None, None


def _forward(ctx: Any, queries: Tensor, references: Tensor | None, job: _Job) -> Tensor:
    if job.columns is None and len(queries) <= job.tile:
        total, grad = _one_tile(queries, job.rows.labels, job.scale, ctx.needs_input_grad[0])
        ctx.save_for_backward(grad, None)
        return total.to(queries.dtype)
    others = queries if references is None else references
    columns = job.rows if job.columns is None else job.columns
    found = members(job.rows.labels, columns)
    classmates = found - 1 if job.itself else found
    n = len(columns) if job.itself else len(queries)
    alone = classmates == 0
    walk = _Walk(queries, others, job)
    log_z = walk.log_sum_exp()
    toward = _Toward(queries, others, job, columns, classmates)
    own = log_z - job.scale * toward.inner()
    total = own.masked_fill(alone, 0).sum() / max(n, 1)
    if job.joined:
        dist.all_reduce(total)
    if any(ctx.needs_input_grad):
        log_z = log_z.masked_fill(alone, torch.inf)  # p = 0 for rows that have no loss
        grad, grad_others = walk.pull(log_z, ctx.needs_input_grad[1])
        toward.take_from(grad, 2 if job.itself else 1)
        if grad_others is not None:
            shares = queries / classmates.clamp_min(1)[:, None]
            sums, place = _class_sums(shares, job.rows, columns.labels)
            grad_others.sub_(sums[place]).mul_(job.scale / max(n, 1))
        ctx.save_for_backward(grad.mul_(job.scale / max(n, 1)), grad_others)
    return total.to(queries.dtype)


def _one_tile(x: Tensor, labels: Tensor, scale: float, need: bool) -> tuple[Tensor, Tensor | None]:
    """(L, its gradient if needed) of a few rows in any order, with whole matrices."""
    n = max(len(x), 1)
    same = (labels[:, None] == labels).fill_diagonal_(False)
    mates = same.sum(1, keepdim=True, dtype=x.dtype)
    share = same / mates.clamp(min=1)
    log_p = torch.mm(x * scale, x.T).fill_diagonal_(NEVER).log_softmax(1)
    total = torch.mul(log_p, share).sum(dtype=torch.float64)
    if not need:
        return -total / n, None
    slope = log_p.exp_().mul_(mates.clamp_(max=1)).sub_(share)  # nothing of rows without a loss
    return -total / n, torch.mm(slope + slope.T, x).mul_(scale / n)


class _Toward:
    """(Σ over classmates)/|P| of each row, in float64: it is subtracted from the log-sum-exp.

    Only a chunk of rows is ever held; the class sums are all that is kept.
    """

    def __init__(
        self, queries: Tensor, others: Tensor, job: _Job, columns: Rows, classmates: Tensor
    ) -> None:
        self.queries, self.itself, self.classmates = queries, job.itself, classmates
        self.sums, self.place = _class_sums(others, columns, job.rows.labels)

    def _chunks(self) -> Iterator[tuple[slice, Tensor]]:
        for k in range(0, len(self.queries), CHUNK):
            part = slice(k, k + CHUNK)
            toward = self.sums[self.place[part]]
            if self.itself:
                toward -= self.queries[part]
            mates = self.classmates[part, None]
            yield part, toward.div_(mates.clamp_min(1)).masked_fill_(mates == 0, 0)

    def inner(self) -> Tensor:
        """Its inner product with each query."""
        own = torch.zeros(len(self.queries), dtype=torch.float64, device=self.queries.device)
        for part, toward in self._chunks():
            own[part] = toward.mul_(self.queries[part]).sum(1)
        return own

    def take_from(self, grad: Tensor, times: int) -> None:
        for part, toward in self._chunks():
            grad[part] -= toward.mul_(times)


def _class_sums(x: Tensor, rows: Rows, labels: Tensor) -> tuple[Tensor, Tensor]:
    """(float64 sums of the rows of each class and a last row of zeros, where each label's is)."""
    classes, counts = rows.counts
    number = torch.repeat_interleave(torch.arange(len(classes), device=x.device), counts)
    sums = torch.zeros(len(classes) + 1, x.shape[1], dtype=torch.float64, device=x.device)
    for k in range(0, len(x), CHUNK):
        sums.index_add_(0, number[k : k + CHUNK], x[k : k + CHUNK].double())
    if not len(classes):
        return sums, torch.zeros_like(labels)
    place = torch.searchsorted(classes, labels).clamp_max(len(classes) - 1)
    return sums, torch.where(classes[place] == labels, place, len(classes))


class _Walk:
    """The passes over the tiles.

    Where no logit is far from the largest possible one, all exponentials share one shift;
    elsewhere (tiny temperatures, unbounded rows) a first pass finds each row's own maximum.
    """

    def __init__(self, queries: Tensor, others: Tensor, job: _Job) -> None:
        self.queries, self.others, self.job = queries, others, job
        self.symmetric = job.columns is None
        self.buffer = queries.new_empty(min(job.tile, len(queries)) * min(job.tile, len(others)))
        most = longest(queries) * longest(others) * job.scale  # no |logit| is above this
        self.shift = most if 2 * most <= SAFE_SPREAD else None

    def log_sum_exp(self) -> Tensor:
        """log Σ_v exp(logit_uv) for each query, in float64."""
        sums = torch.zeros(len(self.queries), dtype=torch.float64, device=self.queries.device)
        if self.shift is None:
            return self._careful_log_sum_exp(sums)
        for tile in tiles(self.job.rows, self.job.columns, self.job.tile):
            e = self._logits(tile, self.shift).exp_()
            sums[tile.rows] += e.sum(1)
            if self.symmetric and not tile.diagonal:
                sums[tile.columns] += e.sum(0)
        return sums.log_().add_(self.shift)

    def _careful_log_sum_exp(self, sums: Tensor) -> Tensor:
        best = self._maxima()
        for tile in tiles(self.job.rows, self.job.columns, self.job.tile):
            x = self._logits(tile, 0.0)
            sums[tile.rows] += torch.exp(x - best[tile.rows, None]).sum(1)
            if self.symmetric and not tile.diagonal:
                sums[tile.columns] += torch.exp(x - best[None, tile.columns]).sum(0)
        return sums.log_().add_(best)

    def _maxima(self) -> Tensor:
        best = torch.full_like(self.queries[:, 0], -torch.inf)
        for tile in tiles(self.job.rows, self.job.columns, self.job.tile):
            x = self._logits(tile, 0.0)
            best[tile.rows] = torch.maximum(best[tile.rows], x.amax(1))
            if self.symmetric and not tile.diagonal:
                best[tile.columns] = torch.maximum(best[tile.columns], x.amax(0))
        return best.masked_fill(best.isinf(), 0)

    def pull(self, log_z: Tensor, both: bool) -> tuple[Tensor, Tensor | None]:
        """Σ_v (p_uv + p_vu) x_v for each query; for references apart Σ_v p_uv x_v, and theirs."""
        grad = torch.zeros_like(self.queries)
        grad_others = torch.zeros_like(self.others) if both else None
        seen = self._log_z_of_columns(log_z).to(grad.dtype)
        log_z = log_z.to(grad.dtype)
        for tile in tiles(self.job.rows, self.job.columns, self.job.tile):
            p = self._chances(tile, log_z[tile.rows, None], seen[None, tile.columns])
            grad[tile.rows].addmm_(p, self.others[tile.columns])
            if self.symmetric and not tile.diagonal:
                grad[tile.columns].addmm_(p.T, self.queries[tile.rows])
            elif grad_others is not None:
                grad_others[tile.columns].addmm_(p.T, self.queries[tile.rows])
        return grad, grad_others

    def _chances(self, tile: Tile, row: Tensor, column: Tensor) -> Tensor:
        """p_uv + p_vu (p_uv alone where references stand apart) of a tile."""
        if self.shift is None:
            x = self._logits(tile, 0.0)
            p = torch.exp(x - row)
            return p.add_(torch.exp(x - column)) if self.job.itself else p
        weight = torch.exp(self.shift - row)
        if self.job.itself:
            weight = weight + torch.exp(self.shift - column)
        return self._logits(tile, self.shift).exp_().mul_(weight)

    def _log_z_of_columns(self, log_z: Tensor) -> Tensor:
        if self.job.columns is None or self.job.columns.own is None:
            return log_z if self.symmetric else log_z.new_zeros(len(self.others))
        full = log_z.new_zeros(len(self.others))
        full[self.job.columns.own] = log_z
        dist.all_reduce(full)
        return full

    def _logits(self, tile: Tile, shift: float) -> Tensor:
        """Logits of a tile less the shift; −inf for a row's own pair."""
        q, r = self.queries[tile.rows], self.others[tile.columns]
        x = self.buffer[: len(q) * len(r)].view(len(q), len(r))
        torch.addmm(q.new_full((1,), -shift), q, r.T, alpha=self.job.scale, out=x)
        if tile.diagonal:
            x.fill_diagonal_(-torch.inf)
        elif self.job.columns is not None:
            own = self.job.columns.place(tile)
            if own is not None:
                x[own] = -torch.inf
        return x
