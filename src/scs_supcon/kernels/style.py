"""Losses on the style field: it describes the image, and not the class.

*Instance loss*, over pairs u ≠ v of one class. The two views of one image are positive, two images
of the class are negative:

    a_uv = t s_u·s_v − b
    L = (Σ_positive softplus(−a_uv) + Σ_negative softplus(a_uv)) / number of positive pairs

b is solved at every step, such that the mean of σ(a) is the share of positive pairs, and has no
gradient. Images of other classes are never compared, so the class does not help to lower the loss.
Classes with a single image in the batch are skipped. Value and gradient come from one pass over
blocks of classes of similar size, so the cost is that of the same-class pairs.

The class does not help, but nothing forbids it. *Scatter ratio* of n rows of K classes:

    tr S_b / tr S_t − (K − 1) / (n − 1),    S_b = Σ_c n_c (μ_c − μ)(μ_c − μ)ᵀ,  S_t = S_b + S_w

It is 0 in expectation for a style field that is independent of the class.

*Variance floor* of a field with D columns, against a constant field:

    Σ_j max(0, 1/√D − σ_j),    σ_j = √(var_j + 1e-6)

*Correlation of the fields*, against a copy of the common field, ρ_jk of style column j and common
column k, without gradient for the common field:

    (1/D) Σ_jk ρ_jk²
"""

import math
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from scs_supcon.kernels.autograd import forbid_double_backward, full_precision, scale_gradient, wide
from scs_supcon.kernels.bias import EXACT_PAIRS, solve_bias
from scs_supcon.kernels.distances import PIECE, Block, class_blocks
from scs_supcon.kernels.gather import Group, arrange_pairs, gather_rows, several_processes
from scs_supcon.kernels.layout import PairLabels, SortedLabels

EPSILON = 1e-6  # added to variances


class InstanceLoss(NamedTuple):
    """The instance loss, its solved bias, and the numbers of ordered pairs of all processes."""

    loss: Tensor
    b: float
    positive: int
    negative: int


def instance_loss(
    style: Tensor,
    labels: Tensor,
    image_ids: Tensor,
    t: float,
    *,
    gather: bool = False,
    group: Group = None,
    piece: int | None = None,
) -> InstanceLoss:
    """Return the instance loss; 0 without positive or without negative pairs.

    Args:
        style: `(n, d)` rows, in any order.
        labels: `(n,)`.
        image_ids: `(n,)` integers; views of one image have the same.
        t: multiplies the similarity.
        gather: pair the rows with those of all processes. The value is then the same on all
            processes.
        group: the processes; default: all.
        piece: pairs held in memory at once; affects speed and memory, not the result.
    """
    gather = gather and several_processes(group)
    keep, positive, negative = _count(labels, image_ids, gather, group)
    if not positive or not negative:
        return InstanceLoss(style.sum() * 0, 0.0, positive, negative)
    style, labels, image_ids = style[keep], labels[keep], image_ids[keep]
    queries, others, pairs = arrange_pairs(style, labels, gather=gather, group=group)
    ids, other_ids, _ = arrange_pairs(image_ids[:, None], labels, gather=gather, group=group)
    images = ids[:, 0], (ids if other_ids is None else other_ids)[:, 0]
    with full_precision(style):
        b = _solve(queries if others is None else others, images[1], pairs, t)
    loss: Tensor = _InstancePairs.apply(
        queries, others, pairs, images, (t, b, 1 / positive), piece or PIECE
    )
    return InstanceLoss(loss, b, positive, negative)


def scatter_ratio(style: Tensor, labels: Tensor) -> Tensor:
    """Return the scatter ratio of rows `(n, d)`; 0 for one class, or if all rows are equal."""
    n = len(style)
    classes, index = torch.unique(labels, return_inverse=True)
    centred = style - style.sum(0) / max(n, 1)
    total = centred.square().sum()
    if len(classes) < 2 or not float(total.detach()):
        return style.sum() * 0
    sums = style.new_zeros(len(classes), style.shape[1]).index_add(0, index, centred)
    counts = torch.bincount(index)[:, None].to(style)
    return (sums.square() / counts).sum() / total - (len(classes) - 1) / (n - 1)


def variance_floor(style: Tensor) -> Tensor:
    """Return how far the standard deviations of the columns are below 1/√D, summed."""
    n, width = style.shape
    variance = (style - style.sum(0) / max(n, 1)).square().sum(0) / max(n, 1)
    return (1 / math.sqrt(width) - (variance + EPSILON).sqrt()).clamp_min(0).sum()


def field_correlation(common: Tensor, style: Tensor) -> Tensor:
    """Return the mean over style columns of Σ_k ρ_jk²; the common field gets no gradient."""
    n = max(len(style), 1)
    with full_precision(style):
        correlations = _standardise(style).T @ _standardise(common.detach()) / n
    return correlations.square().sum() / style.shape[1]


def _standardise(x: Tensor) -> Tensor:
    n = max(len(x), 1)
    centred = x - x.sum(0) / n
    return centred / (centred.square().sum(0) / n + EPSILON).sqrt()


def _count(
    labels: Tensor, image_ids: Tensor, gather: bool, group: Group
) -> tuple[Tensor, int, int]:
    """Return which rows are of a class with two images or more, and the numbers of their pairs."""
    everywhere, local = [labels, image_ids], slice(None)
    if gather:
        everywhere, local = gather_rows(labels, image_ids, group=group)
    images, image, views = torch.unique(
        torch.stack(everywhere, 1), dim=0, return_inverse=True, return_counts=True
    )
    _, index, per_class = torch.unique(images[:, 0], return_inverse=True, return_counts=True)
    several = per_class[index] > 1
    views = views * several
    rows = torch.zeros_like(per_class).index_add_(0, index, views)
    positive = int((views * (views - 1)).sum())
    negative = int((rows * rows).sum() - (views * views).sum())
    return several[image][local], positive, negative


@torch.no_grad()
def _solve(x: Tensor, images: Tensor, pairs: PairLabels, t: float) -> float:
    """Return the bias of sorted rows x; above 2^20 pairs, from every k-th row."""
    labels = pairs.right.labels
    every = -(-PairLabels(SortedLabels(labels)).count()[1] // EXACT_PAIRS)
    rows = torch.arange(0, len(x), every, device=x.device)
    sampled = PairLabels(SortedLabels(labels[rows]), SortedLabels(labels, rows))
    logits, positive = [], 0
    for block in class_blocks(sampled, EXACT_PAIRS):
        same, valid = _masks(block, sampled, (images[rows], images))
        logits.append((t * _similarities(x[rows], x, block))[valid])
        positive += int((same & valid).sum())
    b = torch.tensor(solve_bias(torch.cat(logits), positive), dtype=wide(x), device=x.device)
    if pairs.joined:
        dist.broadcast(b, group=pairs.group, group_src=0)
    return float(b)


class _InstancePairs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        queries: Tensor,
        references: Tensor | None,
        pairs: PairLabels,
        images: tuple[Tensor, Tensor],
        scalars: tuple[float, float, float],
        piece: int,
    ) -> Tensor:
        t, b, weight = scalars
        others = queries if references is None else references
        total = torch.zeros((), dtype=wide(queries), device=queries.device)
        grad = torch.zeros_like(queries) if ctx.needs_input_grad[0] else None
        with full_precision(queries):
            for block in class_blocks(pairs, piece):
                same, valid = _masks(block, pairs, images)
                sign = torch.where(same, -1.0, 1.0).to(queries.dtype)
                x = sign * (t * _similarities(queries, others, block) - b)
                threshold = 40.0 if x.dtype == torch.float64 else 20.0  # see `dense.softplus`
                cost = torch.nn.functional.softplus(x, threshold=threshold)
                total += (cost * valid).sum(dtype=total.dtype)
                if grad is not None:
                    zeta = x.sigmoid_().mul_(sign).mul_(valid)
                    products = torch.bmm(zeta, others[block.columns])
                    # Each unordered pair occurs in two rows, with the same gradient for both.
                    grad.index_add_(
                        0, block.rows.reshape(-1), products.flatten(0, 1), alpha=2 * t * weight
                    )
        if pairs.joined:
            dist.all_reduce(total, group=pairs.group)
        ctx.save_for_backward(grad)
        return (total * weight).to(queries.dtype)

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        forbid_double_backward()
        (grad,) = ctx.saved_tensors
        return scale_gradient(grad, grad_output), *[None] * 5


def _similarities(queries: Tensor, others: Tensor, block: Block) -> Tensor:
    return torch.bmm(queries[block.rows], others[block.columns].mT)


def _masks(block: Block, pairs: PairLabels, images: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Return which pairs of a block are of one image, and which are neither padding nor (u, u)."""
    rows, columns = block.rows, block.columns
    local = pairs.right.local
    position = rows if local is None else local[rows]
    valid = position[:, :, None] != columns[:, None, :]
    if block.real is not None:
        valid &= block.real
    return images[0][rows][:, :, None] == images[1][columns][:, None, :], valid
