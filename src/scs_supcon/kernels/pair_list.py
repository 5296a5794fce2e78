"""The sigmoid pair loss on listed pairs only, as miners choose them."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from scs_supcon.kernels.autograd import only_once

CHUNK = 1 << 15


def listed_pairs(
    queries: Tensor,
    references: Tensor,
    pairs: tuple[Tensor, Tensor],
    same: Tensor,
    t: Tensor,
    b: Tensor,
) -> Tensor:
    """Return the mean of softplus(∓(t q_u·r_v − b)) over the listed pairs (u, v); 0 for none.

    Args:
        queries: `(n, d)`.
        references: `(m, d)`; may be the queries themselves.
        pairs: (rows of the queries, rows of the references).
        same: which of the pairs are of one class.
        t: scalar that multiplies the similarity.
        b: scalar bias.
    """
    result: Tensor = _ListedPairs.apply(queries, references, t, b, pairs, same)
    return result


class _ListedPairs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        queries: Tensor,
        references: Tensor,
        t: Tensor,
        b: Tensor,
        pairs: tuple[Tensor, Tensor],
        same: Tensor,
    ) -> Tensor:
        totals = torch.zeros(3, dtype=torch.float64, device=queries.device)
        grad_q, grad_r = torch.zeros_like(queries), torch.zeros_like(references)
        threshold = 40.0 if queries.dtype == torch.float64 else 20.0
        divisor = max(len(same), 1)
        for k in range(0, len(same), CHUNK):
            u, v = pairs[0][k : k + CHUNK], pairs[1][k : k + CHUNK]
            q, r = queries[u], references[v]
            similarity = (q * r).sum(1)
            sign = torch.where(same[k : k + CHUNK], -1.0, 1.0).to(q.dtype)
            x = sign * (similarity * t.to(q.dtype) - b.to(q.dtype))
            slope = sign * torch.sigmoid(x)
            totals[0] += F.softplus(x, threshold=threshold).sum(dtype=torch.float64)
            totals[1] += (slope * similarity).sum(dtype=torch.float64)
            totals[2] -= slope.sum(dtype=torch.float64)
            if any(ctx.needs_input_grad):
                push = (slope * (t.to(q.dtype) / divisor))[:, None]
                grad_q.index_add_(0, u, push * r)
                grad_r.index_add_(0, v, push * q)
        totals /= divisor
        ctx.save_for_backward(grad_q, grad_r, totals, t, b)
        return totals[0].to(queries.dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        only_once()
        grad_q, grad_r, totals, t, b = ctx.saved_tensors
        need = ctx.needs_input_grad
        return (
            grad_q * grad if need[0] else None,
            grad_r * grad if need[1] else None,
            (totals[1] * grad.double()).to(t) if need[2] else None,
            (totals[2] * grad.double()).to(b) if need[3] else None,
            None,
            None,
        )
