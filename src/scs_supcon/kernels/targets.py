"""Pair losses with a target and a weight for every pair.

    q_uv ∈ [0, 1]: how much a pair should count as "same",   w_uv ≥ 0: the weight of the pair

Mined pairs, a memory of past batches, weights of samples and classes, multi-label targets: all are
such matrices. A pair (u, v) costs

    w_uv [ q_uv softplus(−a⁺_uv) + (1 − q_uv) softplus(a⁻_uv) ]

    a⁺_uv = t (c_u·c_v − m) − b,   a⁻_uv = t c_u·c_v − b

Rows are computed in chunks, which the backward pass computes again, so that memory is O(CHUNK).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from scs_supcon.kernels.autograd import forbid_double_backward, full_precision, wide
from scs_supcon.kernels.bias import EXACT_PAIRS, solve_bias
from scs_supcon.kernels.dense import Weighting, softplus
from scs_supcon.kernels.soft import in_chunks, row_chunks

CHUNK = 1 << 21  # pairs held in memory
LISTED = 1 << 22  # numbers in the differences of listed pairs


@dataclass(frozen=True)
class PairTargets:
    """Targets and weights of all pairs of n rows and m references.

    Attributes:
        shape: (n, m).
        target: returns q `(k, m)` of k rows, given their indices; booleans, or numbers in [0, 1].
        weight: returns w `(k, m)`, booleans or numbers; None if all are 1.
        one_set: whether the references are the rows themselves.
        hard: whether q is boolean and w, except for pairs (u, u), 0 or 1.
    """

    shape: tuple[int, int]
    target: Callable[[Tensor], Tensor]
    weight: Callable[[Tensor], Tensor | None]
    one_set: bool = True
    hard: bool = False

    def of(self, rows: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor | None]:
        """Return q and w of some rows; w as numbers."""
        w = self.weight(rows)
        return self.target(rows), None if w is None else w.to(dtype)

    @torch.no_grad()
    def totals(self, device: torch.device, chunk: int = CHUNK) -> tuple[Tensor, Tensor]:
        """Return Σ w and Σ w q, in float64 if possible."""
        total = torch.zeros(2, dtype=wide(device), device=device)
        for rows in row_chunks(self.shape, chunk, device):
            q, w = self.target(rows), self.weight(rows)
            total[0] += q.numel() if w is None else w.sum(dtype=total.dtype)
            if w is None:
                total[1] += q.sum(dtype=total.dtype)
            elif w.dtype == q.dtype == torch.bool:
                total[1] += (w & q).sum()
            else:
                total[1] += (w.to(total.dtype) * q).sum()
        return total[0], total[1]


def targeted_sigmoid_loss(
    queries: Tensor,
    references: Tensor,
    targets: PairTargets,
    t: Tensor,
    b: Tensor | None,
    *,
    weighting: Weighting = "all",
    margin: float = 0.0,
    mean: bool = False,
    chunk: int = CHUNK,
) -> tuple[Tensor, Tensor]:
    """Return the loss of each row `(n,)`, whose mean is the loss, and b.

    Args:
        queries: `(n, d)` rows.
        references: `(m, d)`; may be the rows themselves.
        targets: q and w.
        t: scalar that multiplies the similarity.
        b: scalar bias; None: solved such that the weighted mean of σ(a) is Σ w q / Σ w.
        weighting: "all": the sum is divided by Σ w. "positives": by Σ w q. "balanced": half of the
            positive part divided by Σ w q plus half of the negative part divided by Σ w (1 − q). A
            divisor of 0 counts as 1.
        margin: m.
        mean: return the mean instead of the loss of each row. It takes less time and memory.
        chunk: pairs held in memory at once; affects memory, not the result.
    """
    n = len(queries)
    with full_precision(queries):
        total, positive = targets.totals(queries.device, chunk)
        if b is None:
            b = t.new_tensor(_solve(queries, references, targets, float(t.detach()), margin))
        attract, repel = (w.to(queries.dtype) for w in _weights(total, positive, weighting))

        if mean and targets.hard:
            loss: Tensor = _HardPairs.apply(
                queries, references, t, b, targets, attract, repel, weighting, margin, chunk
            )
            return loss, b

        def cost(rows: Tensor) -> Tensor:
            r = queries.index_select(0, rows) @ references.T
            q, w = targets.of(rows, r.dtype)
            if q.dtype == torch.bool:
                a = t * (torch.where(q, r - margin, r) if margin else r) - b
                costs = softplus(torch.where(q, -a, a)) * torch.where(q, attract, repel)
            else:
                q = q.to(r.dtype)
                costs = softplus(b - t * (r - margin)) * q * attract
                costs = costs + softplus(t * r - b) * (1 - q) * repel
            if w is not None:
                costs = costs * w
            return costs.sum(1, dtype=wide(costs))

        sums = [
            in_chunks(cost, rows, n) for rows in row_chunks(targets.shape, chunk, queries.device)
        ]
        values = torch.cat(sums).to(queries.dtype)
        return (values.sum() if mean else values * n), b


class _HardPairs(torch.autograd.Function):
    """The sigmoid loss of pairs that are positive or negative; see `kernels.sigmoid`."""

    @staticmethod
    def forward(
        ctx: Any,
        queries: Tensor,
        references: Tensor,
        t: Tensor,
        b: Tensor,
        targets: PairTargets,
        attract: Tensor,
        repel: Tensor,
        weighting: Weighting,
        margin: float,
        chunk: int,
    ) -> Tensor:
        by_queries, by_references = torch.zeros_like(queries), torch.zeros_like(references)
        exact = wide(queries)
        total = torch.zeros(3, dtype=exact, device=queries.device)  # value, by t, by b
        scale, threshold = t.to(queries), 40.0 if queries.dtype == torch.float64 else 20.0
        for rows in row_chunks(targets.shape, chunk, queries.device):
            c = queries.index_select(0, rows)
            q, w = targets.of(rows, c.dtype)
            x = torch.addmm(-b.to(c).reshape(1), c * scale, references.T)
            if margin:
                x.sub_(q * (scale * margin))
            sign = torch.where(q, -1.0, 1.0).to(c.dtype)
            x.mul_(sign)
            cost = torch.nn.functional.softplus(x, threshold=threshold)
            zeta = x.sigmoid_().mul_(sign)
            if w is not None:
                cost.mul_(w)
                zeta.mul_(w)
            if weighting == "balanced":
                weights = torch.where(q, attract, repel)
                cost.mul_(weights)
                zeta.mul_(weights)
            total[0] += cost.sum(1).sum(dtype=exact)
            product = zeta @ references
            total[1] += (c * product).sum(dtype=exact)
            if margin:
                total[1] -= margin * (zeta * q).sum(dtype=exact)
            total[2] -= zeta.sum(1).sum(dtype=exact)
            by_queries.index_copy_(0, rows, product * scale)
            if ctx.needs_input_grad[1]:
                by_references.addmm_(zeta.T, c * scale)
        if weighting != "balanced":
            total, by_queries, by_references = (
                x * attract.to(x) for x in (total, by_queries, by_references)
            )
        ctx.save_for_backward(by_queries, by_references, total)
        ctx.scalars = t, b
        return total[0].to(queries.dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        forbid_double_backward()
        by_queries, by_references, total = ctx.saved_tensors
        t, b = ctx.scalars
        need_queries, need_references, need_t, need_b, *_ = ctx.needs_input_grad
        return (
            by_queries * grad if need_queries else None,
            by_references * grad if need_references else None,
            (total[1] * grad).to(t) if need_t else None,
            (total[2] * grad).to(b) if need_b else None,
            *[None] * 6,
        )


def targeted_softmax_loss(
    x: Tensor,
    references: Tensor,
    targets: PairTargets,
    temperature: float,
    weights: Tensor | None = None,
    *,
    mean: bool = False,
    chunk: int = CHUNK,
) -> Tensor:
    """Return the InfoNCE loss of each row `(n,)`, times its weight; 0 for rows without positives.

        log Σ_v exp(x_u·x_v/τ) over pairs with w > 0 − Σ_v w q x_u·x_v/τ / Σ_v w q

    A pair (u, u) never counts if the references are the rows themselves. The weights of rows have a
    mean of 1. With `mean`, the mean over rows is returned, which takes less time and memory.
    """
    n = len(x)
    if mean and targets.hard:
        with full_precision(x):
            loss: Tensor = _HardSoftmax.apply(
                x, references, targets, 1 / temperature, weights, chunk
            )
            return loss

    def losses(rows: Tensor) -> Tensor:
        logits = x.index_select(0, rows) @ references.T / temperature
        q, w = targets.of(rows, logits.dtype)
        q = q.to(logits.dtype) if w is None else w * q
        excluded = None if w is None else w == 0
        if targets.one_set:
            itself = _self_pairs(rows, n)
            q = q.masked_fill(itself, 0)
            excluded = itself if excluded is None else excluded | itself
        if excluded is not None:
            logits = logits.masked_fill(excluded, -1e30)  # −inf × 0 would be NaN
        share = q.sum(1, keepdim=True)
        positive = (logits * (q / torch.where(share > 0, share, 1))).sum(1)
        return torch.where(share[:, 0] > 0, logits.logsumexp(1) - positive, 0)

    with full_precision(x):
        chunks = row_chunks(targets.shape, chunk, x.device)
        values = torch.cat([in_chunks(losses, rows, n) for rows in chunks])
    values = values if weights is None else values * weights
    return values.sum() / max(n, 1) if mean else values


class _HardSoftmax(torch.autograd.Function):
    """The mean InfoNCE loss of pairs that are positive or negative; see `kernels.softmax`."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        references: Tensor,
        targets: PairTargets,
        scale: float,
        weights: Tensor | None,
        chunk: int,
    ) -> Tensor:
        n = max(len(x), 1)
        by_x, by_references = torch.zeros_like(x), torch.zeros_like(references)
        total = torch.zeros((), dtype=wide(x), device=x.device)
        for rows in row_chunks(targets.shape, chunk, x.device):
            z = x.index_select(0, rows)
            q, w = targets.target(rows), targets.weight(rows)
            logits = torch.mm(z * scale, references.T)
            if w is not None:
                kept = w if w.dtype == torch.bool else w > 0
                q = q & kept
                logits.masked_fill_(~kept, -torch.inf)
            if targets.one_set:
                itself = _self_pairs(rows, targets.shape[1])
                q = q & ~itself
                logits.masked_fill_(itself, -torch.inf)
            count = q.sum(1)
            share = torch.where(count > 0, 1 / (n * count.clamp_min(1)), 0).to(x.dtype)
            omega = (count > 0).to(x.dtype) / n
            if weights is not None:
                omega, share = omega * weights[rows], share * weights[rows]
            log_z = logits.logsumexp(1).masked_fill(count == 0, 0)
            positive = torch.where(q, logits, 0).sum(1, dtype=total.dtype)
            total += (log_z.to(total.dtype) * omega - positive * share).sum()
            p = logits.sub_(log_z[:, None]).exp_().mul_(omega[:, None])
            p.sub_(q * share[:, None])
            by_x.index_copy_(0, rows, p @ references)
            if ctx.needs_input_grad[1]:
                by_references.addmm_(p.T, z)
        ctx.save_for_backward(by_x.mul_(scale), by_references.mul_(scale))
        return total.to(x.dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        forbid_double_backward()
        by_x, by_references = ctx.saved_tensors
        return (
            by_x * grad if ctx.needs_input_grad[0] else None,
            by_references * grad if ctx.needs_input_grad[1] else None,
            *[None] * 4,
        )


def targeted_style_distance(
    style: Tensor, references: Tensor, targets: PairTargets, *, chunk: int = CHUNK
) -> Tensor:
    """Return the mean distance of each row `(n,)` to its positives, weighted by w q.

    A row without positives has 0. A pair (u, u) never counts if the references are the rows.
    """
    n = len(style)

    def listed(rows: Tensor) -> Tensor:
        q, w = targets.target(rows), targets.weight(rows)
        if w is not None:
            q = q & (w if w.dtype == torch.bool else w > 0)
        if targets.one_set:
            q = q & ~_self_pairs(rows, n)
        u, v = q.nonzero().unbind(1)
        # In pieces: their number is that of the positive pairs, which may be all.
        sums = style.new_zeros(len(rows))
        for piece in torch.split(torch.arange(len(u), device=u.device), LISTED // style.shape[1]):
            i, j = u[piece], v[piece]
            gap = style.index_select(0, rows[i]) - references.index_select(0, j)
            sums = sums.index_add(0, i, torch.linalg.vector_norm(gap, dim=1))
        return sums / q.sum(1).clamp_min(1)

    def distances(rows: Tensor) -> Tensor:
        if targets.hard:
            return listed(rows)
        q, w = targets.of(rows, style.dtype)
        q = q.to(style.dtype) if w is None else w * q
        if targets.one_set:
            q = q.masked_fill(_self_pairs(rows, n), 0)
        share = q.sum(1, keepdim=True)
        weights = q / torch.where(share > 0, share, 1)
        u, v = weights.nonzero().unbind(1)
        if len(u) * style.shape[1] <= LISTED:  # most often few pairs are positive
            gap = style.index_select(0, rows[u]) - references.index_select(0, v)
            parts = torch.linalg.vector_norm(gap, dim=1) * weights[u, v]
            sums: Tensor = parts.new_zeros(len(rows)).index_add(0, u, parts)
            return sums
        # A Gram matrix would be inaccurate: two views of an image are near-duplicates.
        exact = "donot_use_mm_for_euclid_dist"
        distance = torch.cdist(style.index_select(0, rows), references, compute_mode=exact)
        return (distance * weights).sum(1)

    with full_precision(style):
        return torch.cat(
            [
                in_chunks(distances, rows, n)
                for rows in row_chunks(targets.shape, chunk, style.device)
            ]
        )


def _weights(total: Tensor, positive: Tensor, weighting: Weighting) -> tuple[Tensor, Tensor]:
    """Return the weights of the positive and of the negative part."""

    def inverse(x: Tensor) -> Tensor:
        return 1 / torch.where(x > 0, x, 1)

    if weighting == "balanced":
        return 0.5 * inverse(positive), 0.5 * inverse(total - positive)
    both = inverse(positive if weighting == "positives" else total)
    return both, both


@torch.no_grad()
def _solve(
    queries: Tensor, references: Tensor, targets: PairTargets, t: float, margin: float
) -> float:
    """Return the bias; above 2^20 pairs it is solved on evenly spaced rows."""
    n, m = targets.shape
    count = max(min(n, EXACT_PAIRS // max(m, 1)), min(n, 1))
    rows = torch.arange(count, device=queries.device) * n // max(count, 1)
    logits = queries[rows] * t @ references.T
    q, w = targets.target(rows), targets.weight(rows)
    if q.dtype == torch.bool and (w is None or w.dtype == torch.bool):
        if margin:
            logits.sub_(q * (t * margin))
        kept = logits if w is None else logits[w]
        return solve_bias(kept, float((q if w is None else q & w).sum()))
    q = q.to(wide(logits))
    w = torch.ones_like(q) if w is None else w.to(q.dtype)
    total, positive = float(w.sum()), float((w * q).sum())
    if not total:
        return 0.0
    # Half a pair of mean weight stands for the pair that keeps the share away from 0 and 1.
    unit = total / float((w > 0).sum())
    both, shares = logits, w
    if margin:
        both = torch.stack([logits - t * margin, logits])
        shares = torch.stack([w * q, w * (1 - q)])
    counted = shares > 0
    values, weights = both[counted], (shares[counted] / total).to(both.dtype)
    return solve_bias(values, positive / unit, total / unit, weights)


def _self_pairs(rows: Tensor, n: int) -> Tensor:
    return rows[:, None] == torch.arange(n, device=rows.device)


def label_targets(
    labels: Tensor, *, weights: Tensor | None = None, include_self: bool = True
) -> PairTargets:
    """Return targets from labels: q = 1 for equal labels, w_uv = ω_u ω_v for weights ω of rows.

    In the sigmoid loss an integer weight k counts a row like k equal rows.
    """
    return _of_rows(labels, lambda rows: labels[rows, None] == labels, weights, include_self)


def multi_label_targets(
    multi_hot: Tensor, *, weights: Tensor | None = None, include_self: bool = True
) -> PairTargets:
    """Return targets from sets of labels: q is the Jaccard index, |A ∩ B| / |A ∪ B|.

    Two rows without labels have q = 0.

    Args:
        multi_hot: `(n, K)` with 1 for each label of a row.
        weights: `(n,)` weights of rows.
        include_self: whether pairs (u, u) count.
    """
    y = multi_hot.to(wide(multi_hot))
    sizes = y.sum(1)

    def target(rows: Tensor) -> Tensor:
        common = y[rows] @ y.T
        union = sizes[rows, None] + sizes - common
        return common / union.clamp_min(1)

    return _of_rows(multi_hot, target, weights, include_self)


def matrix_targets(
    q: Tensor, w: Tensor | None = None, *, weights: Tensor | None = None, include_self: bool = True
) -> PairTargets:
    """Return targets from matrices `(n, n)` of q and, if not all are 1, of w."""
    return _of_rows(q, lambda rows: q[rows], weights, include_self, w)


def listed_targets(
    shape: tuple[int, int],
    positives: tuple[Tensor, Tensor],
    negatives: tuple[Tensor, Tensor],
    *,
    one_set: bool,
    self_weight: float = 0.0,
) -> PairTargets:
    """Return targets in which only listed pairs count, each once.

    Args:
        shape: numbers of rows and references.
        positives: indices of rows, indices of references.
        negatives: indices of rows, indices of references.
        one_set: whether the references are the rows themselves.
        self_weight: weight of pairs (u, u) if the references are the rows themselves.
    """
    positive = torch.zeros(shape, dtype=torch.bool, device=positives[0].device)
    positive[positives] = True
    kept = positive.clone()
    kept[negatives] = True
    if not one_set:
        every = bool(kept.all())  # as without a miner: masks would take a third of the time
        return PairTargets(
            shape,
            lambda rows: positive[rows],
            lambda rows: None if every else kept[rows],
            one_set=False,
            hard=True,
        )
    positive.fill_diagonal_(True)

    def weight(rows: Tensor) -> Tensor:
        return kept[rows].to(wide(kept)).masked_fill(_self_pairs(rows, shape[0]), self_weight)

    return PairTargets(shape, lambda rows: positive[rows], weight, hard=True)


def _of_rows(
    like: Tensor,
    target: Callable[[Tensor], Tensor],
    weights: Tensor | None,
    include_self: bool,
    w: Tensor | None = None,
) -> PairTargets:
    n = len(like)

    def weight(rows: Tensor) -> Tensor | None:
        result = None if w is None else w[rows]
        if weights is not None:
            products = weights[rows, None] * weights
            result = products if result is None else result * products
        if include_self:
            return result
        others = ~_self_pairs(rows, n)
        return others if result is None else result * others

    return PairTargets((n, n), target, weight)
