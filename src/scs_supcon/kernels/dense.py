"""The formulas of the pair losses in plain torch, with whole matrices.

`scs_loss` is the loss of this package on one screen. The other functions compute small batches and
whatever `torch.compile` traces. Gradients are computed by autograd.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from scs_supcon.kernels.autograd import full_precision, traced

FEW_ROWS = 64  # up to this size a second product costs less than a gradient in Python (measured)


def scs_loss(
    c: Tensor,  # (n, C)
    s: Tensor,  # (n, S)
    same: Tensor,  # (n, n)
    t: float | Tensor,  # ()
    b: float | Tensor,  # ()
    beta: float,
) -> tuple[Tensor, Tensor]:  # (), ()
    """Return the contrast and the style term of SCS-SupCon.

        a_uv = t c_u·c_v − b

        Σ_uv softplus(∓a_uv) / number of positive pairs,   −β mean_u mean_{v positive} ‖s_u − s_v‖

    Args:
        c: `(n, C)` unit rows of the common field.
        s: `(n, S)` unit rows of the style field.
        same: `(n, n)`, whether two rows have the same class.
        t: temperature.
        b: bias; the decision boundary is b/t.
        beta: β.
    """
    a = t * (c @ c.T) - b
    contrast = softplus(torch.where(same, -a, a)).sum() / same.sum()
    style = (torch.cdist(s, s) * same).sum(1) / (same.sum(1) - 1).clamp_min(1)
    return contrast, -beta * style.mean()


def sigmoid_cost(
    a: Tensor,  # (n, m)
    q: Tensor,  # (n, m)
    attract: float | Tensor = 1.0,  # ()
    repel: float | Tensor = 1.0,  # ()
) -> Tensor:  # (n, m)
    """Return the costs of pairs: the binary cross-entropy of σ(a) and the targets.

    Args:
        a: logits.
        q: targets, booleans or numbers in [0, 1].
        attract: weight of the positive part.
        repel: weight of the negative part.
    """
    if q.dtype == torch.bool:
        return softplus(torch.where(q, -a, a)) * torch.where(q, attract, repel).to(a.dtype)
    return attract * q * softplus(-a) + repel * (1 - q) * softplus(a)


def softplus(x: Tensor) -> Tensor:
    """Return log(1 + exp(x))."""
    return F.softplus(x, threshold=softplus_threshold(x))


def softplus_threshold(x: Tensor) -> float:
    """Return where log(1 + exp(x)) is x; torch's default is too small for float64."""
    return 40.0 if x.dtype == torch.float64 else 20.0


def dense_softmax(
    x: Tensor,  # (n, d)
    labels: Tensor,  # (n,)
    temperature: float,
) -> Tensor:  # ()
    """Return the sum over rows of −log softmax, averaged over the positives of each row."""
    positive = positives(labels).to(x.dtype)
    weight = positive / positive.sum(1, keepdim=True).clamp(min=1)
    logits = similarities(x) / temperature
    log_p = logits.fill_diagonal_(-1e30).log_softmax(1)  # −inf × 0 would be NaN
    return -(log_p * weight).sum()


def dense_distance(
    style: Tensor,  # (n, d)
    labels: Tensor,  # (n,)
) -> Tensor:  # ()
    """Return the sum over rows of the mean distance to positives, from a list of positive pairs."""
    u, v, weight = positive_pairs(labels, style.dtype)
    # A Gram matrix would be inaccurate: two views of an image are near-duplicates.
    distance = torch.linalg.vector_norm(style.index_select(0, u) - style.index_select(0, v), dim=1)
    return torch.dot(distance, weight)


def positive_pairs(labels: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Return (u, v, weight) of each positive pair u < v; the weight is 2 / |P_u|."""
    same = labels[:, None] == labels
    u, v = same.triu(1).nonzero().unbind(1)
    return u, v, (2 / (same.sum(1, dtype=dtype) - 1)).index_select(0, u)


def similarities(x: Tensor) -> Tensor:  # (n, d) -> (n, n)
    """Return x xᵀ; autocast is ignored. The gradient of many rows needs one product, not two."""
    if x.shape[0] <= FEW_ROWS and not torch.is_autocast_enabled(x.device.type):
        return x @ x.T
    if traced(x):
        with full_precision(x):
            return x @ x.T
    product: Tensor = _Similarities.apply(x)
    return product


class _Similarities(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        with full_precision(x):
            return x @ x.T

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        with full_precision(x):
            product: Tensor = (grad + grad.T) @ x
        return product


def positives(labels: Tensor) -> Tensor:  # (n,) -> (n, n)
    """Return the `(n, n)` mask of positive pairs: two different rows of one class."""
    return (labels[:, None] == labels).fill_diagonal_(False)
