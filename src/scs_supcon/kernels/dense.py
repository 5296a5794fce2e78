"""The formulas of the pair losses in plain torch, with whole matrices.

These functions compute small batches and document the tiled kernels. Rows may be in any order;
gradients are computed by autograd.
"""

from typing import Any, Literal, TypeVar

import torch
from torch import Tensor
from torch.nn import functional as F

from scs_supcon.kernels.autograd import full_precision, reads_are_free, traced, wide
from scs_supcon.kernels.bias import solve_bias, solve_bias_on_device

FEW_ROWS = 64  # up to this size a second product costs less than a gradient in Python (measured)

Weighting = Literal["all", "balanced", "positives"]
Number = TypeVar("Number", float, Tensor)


def dense_sigmoid_loss(
    common: Tensor,
    labels: Tensor,
    t: Tensor,
    b: Tensor | None,
    *,
    weighting: Weighting = "all",
    include_self: bool = True,
    margin: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """Return `sigmoid_pair_loss`, computed with whole matrices."""
    logits = t * similarities(common)
    same = labels[:, None] == labels
    if margin:
        logits = torch.where(same, logits - t * margin, logits)
    excluded = 0 if include_self else len(labels)
    if not reads_are_free(common):
        total, positive = t.new_tensor(same.numel() - excluded), same.sum() - excluded
        if b is None:
            others = None if include_self else (~_diagonal(labels)).to(logits) / total.to(logits)
            flat = None if others is None else others.flatten()
            b = solve_bias_on_device(logits.detach(), positive, total, flat).to(t)
        return _weighted_cost(logits, same, b, total, positive, weighting, include_self), b
    count = same.numel() - excluded
    # The mean over all pairs does not depend on the number of positive pairs.
    positives = 0 if b is not None and weighting == "all" else int(same.sum()) - excluded
    if b is None:
        counted = logits.detach() if include_self else logits.detach()[~_diagonal(labels)]
        b = t.new_tensor(solve_bias(counted, positives))
    return _weighted_cost(logits, same, b, count, positives, weighting, include_self), b


def _weighted_cost(
    logits: Tensor,
    same: Tensor,
    b: Tensor,
    total: Number,
    positive: Number,
    weighting: Weighting,
    include_self: bool,
) -> Tensor:
    cost = softplus((logits - b) * torch.where(same, -1.0, 1.0))
    if not include_self:
        cost = cost.masked_fill(_diagonal(same), 0)
    weight_same, weight = pair_weights(total, positive, weighting)
    if weighting == "balanced":
        cost = torch.where(same, cost * (weight_same / weight), cost)
    result: Tensor = cost.sum() * weight
    return result.to(cost.dtype)


def dense_softmax_loss(x: Tensor, labels: Tensor, temperature: float) -> Tensor:
    """Return `softmax_pair_loss`, computed with whole matrices."""
    positive = positives(labels).to(x.dtype)
    weight = positive / positive.sum(1, keepdim=True).clamp(min=1)
    logits = similarities(x) / temperature
    log_p = logits.masked_fill(_diagonal(labels), -1e30).log_softmax(1)  # −inf × 0 would be NaN
    return -(log_p * weight).sum() / max(len(x), 1)


def dense_style_distance(style: Tensor, labels: Tensor) -> Tensor:
    """Return `style_distance`, computed from a list of all positive pairs."""
    same = labels[:, None] == labels
    if traced(style):
        return _traced_style_distance(style, same)
    u, v = same.triu(1).nonzero().unbind(1)
    # A Gram matrix would be inaccurate: two views of an image are near-duplicates.
    distance = torch.linalg.vector_norm(style.index_select(0, u) - style.index_select(0, v), dim=1)
    weight = (2 / max(style.shape[0], 1)) / (same.sum(1, dtype=style.dtype) - 1)
    return torch.dot(distance, weight.index_select(0, u))


def _traced_style_distance(style: Tensor, same: Tensor) -> Tensor:
    """Return the distance from a matrix of all differences: lists have no fixed length."""
    square = (style[:, None] - style).square().sum(2)
    zero = square == 0  # has no gradient
    distance = torch.where(zero, 0, torch.where(zero, 1, square).sqrt()) * same
    count = same.sum(1) - 1
    return (distance.sum(1) / count.clamp_min(1)).sum() / max(len(style), 1)


def similarities(x: Tensor) -> Tensor:
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


def positives(labels: Tensor) -> Tensor:
    """Return the `(n, n)` mask of positive pairs: two different rows of one class."""
    return (labels[:, None] == labels).fill_diagonal_(False)


def _diagonal(labels: Tensor) -> Tensor:
    return torch.eye(len(labels), dtype=torch.bool, device=labels.device)


def softplus(x: Tensor) -> Tensor:
    """Return log(1 + exp(x)); the error of torch's default threshold is too large in float64."""
    return F.softplus(x, threshold=40.0 if x.dtype == torch.float64 else 20.0)


def pair_weights(total: Number, positive: Number, weighting: Weighting) -> tuple[Number, Number]:
    """Return the weights of a same-class pair and of a different-class pair."""
    if weighting == "balanced":
        return 0.5 / _at_least_one(positive), 0.5 / _at_least_one(total - positive)
    weight = 1 / _at_least_one(positive if weighting == "positives" else total)
    return weight, weight


def _at_least_one(x: Number) -> Number:
    return x.to(wide(x)).clamp_min(1) if isinstance(x, Tensor) else max(x, 1)
