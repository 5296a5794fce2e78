"""The sigmoid pair loss of soft labels, as MixUp and CutMix make them.

    q_uv = p_u·p_v,   the probability that labels drawn from p_u and p_v are equal
    a⁺_uv = t (c_u·c_v − m) − b,   a⁻_uv = t c_u·c_v − b

    cost_uv = q_uv softplus(−a⁺_uv) + (1 − q_uv) softplus(a⁻_uv)

Without a margin m this is the binary cross-entropy of σ(a) and q. For one-hot p it is the cost of
hard labels. Rows are computed in chunks, so that memory is O(n·d + CHUNK).
"""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from scs_supcon.kernels.autograd import full_precision, wide
from scs_supcon.kernels.bias import EXACT_PAIRS, solve_bias
from scs_supcon.kernels.dense import Weighting, pair_weights, softplus

CHUNK = 1 << 22  # pairs held in memory: all of them up to 2,048 rows


def soft_sigmoid_loss(
    common: Tensor,
    probabilities: Tensor,
    t: Tensor,
    b: Tensor | None,
    *,
    weighting: Weighting = "all",
    include_self: bool = True,
    margin: float = 0.0,
    chunk: int = CHUNK,
) -> tuple[Tensor, Tensor]:
    """Return the weighted mean cost of all pairs, and b.

    Args:
        common: `(n, d)` rows.
        probabilities: `(n, K)` probabilities p of the classes; rows sum to 1.
        t: scalar that multiplies the similarity.
        b: scalar bias; None: solved such that the mean of q σ(a⁺) + (1 − q) σ(a⁻) is the mean of q.
            Above 2^20 pairs it is solved on evenly spaced rows and all columns.
        weighting: "all": the mean over pairs. "positives": the sum divided by Σ q. "balanced": half
            of Σ q softplus(−a⁺) / Σ q plus half of Σ (1 − q) softplus(a⁻) / Σ (1 − q). Divisors are
            at least 1.
        include_self: whether pairs (u, u) count.
        margin: m.
        chunk: pairs held in memory at once; affects memory, not the result.
    """
    n = len(common)
    with full_precision(common):
        if b is None:
            b = t.new_tensor(_solve(common, probabilities, float(t.detach()), include_self, margin))
        positive = expected_positives(probabilities, include_self)
        pairs = n * n if include_self else n * (n - 1)
        weights = pair_weights(pairs, positive, weighting)

        def cost(rows: Tensor) -> Tensor:
            r = common.index_select(0, rows) @ common.T
            q = probabilities.index_select(0, rows) @ probabilities.T
            attract = softplus(b - t * (r - margin)) * q * weights[0]
            repel = softplus(t * r - b) * (1 - q) * weights[1]
            both = attract + repel
            if not include_self:
                both = both.masked_fill(_self_pairs(rows, n), 0)
            return both.sum(dtype=wide(both))

        costs = [in_chunks(cost, rows, n) for rows in row_chunks((n, n), chunk, common.device)]
        return torch.stack(costs).sum().to(common.dtype), b


def soft_style_distance(style: Tensor, probabilities: Tensor, *, chunk: int = CHUNK) -> Tensor:
    """Return the mean over rows of the mean distance to the other rows, weighted by q.

        D = (1/n) Σ_u [ Σ_{v≠u} q_uv ‖s_u − s_v‖ / Σ_{v≠u} q_uv ]

    A row that shares no class with another adds 0.
    """
    n = len(style)

    def distances(rows: Tensor) -> Tensor:
        q = probabilities.index_select(0, rows) @ probabilities.T
        q = q.masked_fill(_self_pairs(rows, n), 0)
        total = q.sum(1, keepdim=True)
        weights = torch.where(total > 0, q / total, 0) / n
        # A Gram matrix would be inaccurate: two views of an image are near-duplicates.
        exact = "donot_use_mm_for_euclid_dist"
        distance = torch.cdist(style.index_select(0, rows), style, compute_mode=exact)
        return (distance * weights).sum(dtype=wide(distance))

    with full_precision(style):
        sums = [in_chunks(distances, rows, n) for rows in row_chunks((n, n), chunk, style.device)]
        return torch.stack(sums).sum().to(style.dtype)


def expected_positives(probabilities: Tensor, include_self: bool) -> float:
    """Return Σ q_uv over all pairs: ‖Σ_u p_u‖², minus Σ_u ‖p_u‖² without pairs (u, u)."""
    p = probabilities.detach().to(wide(probabilities))
    positive = float(p.sum(0).square().sum())
    return positive if include_self else positive - float(p.square().sum())


@torch.no_grad()
def _solve(
    common: Tensor, probabilities: Tensor, t: float, include_self: bool, margin: float
) -> float:
    n = len(common)
    count = max(min(n, EXACT_PAIRS // max(n, 1)), min(n, 1))
    rows = torch.arange(count, device=common.device) * n // max(count, 1)
    logits = common[rows] * t @ common.T
    q = probabilities[rows] @ probabilities.T
    if not include_self:
        counted = ~_self_pairs(rows, n)
        logits, q = logits[counted], q[counted]
    positive, pairs = float(q.sum(dtype=wide(q))), q.numel()
    if not margin:
        return solve_bias(logits, positive)
    both = torch.stack([logits - t * margin, logits])
    return solve_bias(both, positive, pairs, (torch.stack([q, 1 - q]) / max(pairs, 1)).flatten())


def row_chunks(shape: tuple[int, int], chunk: int, device: torch.device) -> Iterator[Tensor]:
    """Yield indices of rows that have at most `chunk` pairs; one empty chunk without rows."""
    n, m = shape
    yield from torch.split(torch.arange(n, device=device), max(chunk // max(m, 1), 1))


def in_chunks(compute: Callable[[Tensor], Tensor], rows: Tensor, n: int) -> Tensor:
    """Compute a chunk again in the backward pass, unless it is the only one."""
    result: Tensor = (
        compute(rows) if len(rows) == n else checkpoint(compute, rows, use_reentrant=False)
    )
    return result


def _self_pairs(rows: Tensor, n: int) -> Tensor:
    return rows[:, None] == torch.arange(n, device=rows.device)
