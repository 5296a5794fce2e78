"""SCS-SupCon of a small batch as one step.

In a small batch the sums over pairs cost less than the steps around them: sorting, splitting and
normalising, each with a backward pass of its own. Here all is one step, nothing is sorted, and the
similarities serve both the solving of b and the loss. The sums themselves are those of `pairs`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from scs_supcon.kernels.autograd import full_precision, only_once, times
from scs_supcon.kernels.bias import solve_square_bias
from scs_supcon.kernels.distances import masked_distances
from scs_supcon.kernels.layout import TILE, Rows, Tile
from scs_supcon.kernels.sigmoid import Job, Sums, Weighting, pair_weights
from scs_supcon.nn.head import to_unit, unit_gradient

MOST_ROWS = TILE  # one tile holds all pairs; up to there this way is no slower, measured


@dataclass(frozen=True)
class Reading:
    """What `judge_at_once` has to know of the loss besides t and b."""

    width: int  # columns of the common field
    style: float  # what the mean style distance is multiplied by
    weighting: Weighting
    include_self: bool


def judge_at_once(
    embeddings: Tensor, labels: Tensor, t: Tensor, b: Tensor | None, reading: Reading
) -> tuple[Tensor, Tensor, float]:
    """Return (weighted mean cost of all pairs, mean style distance times its weight, b).

    Args:
        embeddings: `(n, d)` rows in any order, their fields not yet of unit length.
        labels: `(n,)`.
        t: scalar that multiplies the similarity.
        b: scalar bias; None: solved.
        reading: the rest.
    """
    learns = torch.is_grad_enabled()
    need = [learns and x is not None and x.requires_grad for x in (embeddings, None, t, b)]
    with torch.no_grad(), full_precision(embeddings):
        found = _judge(embeddings, labels, float(t), None if b is None else float(b), reading, need)
    contrast, style = _Found.apply(embeddings, t, b, found)
    return contrast, style, found.sums.job.b


@dataclass(frozen=True)
class _Values:
    sums: Sums
    distance: Tensor
    common: tuple[Tensor, Tensor]  # unit rows, and the lengths they had
    style: tuple[Tensor, Tensor]
    style_gradient: Tensor


def _judge(
    x: Tensor,
    labels: Tensor,
    t: float,
    b: float | None,
    reading: Reading,
    need: Sequence[bool],
) -> _Values:
    n = len(x)
    same = labels[:, None] == labels
    mates = same.sum(1, dtype=torch.float64)
    positive = int(mates.sum())
    common, style = to_unit(x[:, : reading.width]), to_unit(x[:, reading.width :])
    logits = torch.mm(common[0] * t, common[0].T)
    if b is None:
        b = solve_square_bias(logits, positive, reading.include_self)
    own = 0 if reading.include_self else n
    weights = pair_weights(n * n - own, positive - own, reading.weighting)
    known = logits, same.to(x.dtype)
    sums = Sums(
        common[0],
        None,
        Job(Rows(labels), None, t, b, weights, reading.include_self, n, known),
        need,
    )
    everything = slice(0, n)
    sums.add(Tile(everything, everything, True, (everything, everything), False))
    sums.close()
    if reading.style:
        found = masked_distances(style[0], same, mates, reading.style)
        return _Values(sums, found[0], common, style, found[1])
    return _Values(sums, torch.zeros_like(sums.cost), common, style, torch.zeros_like(style[0]))


class _Found(torch.autograd.Function):
    """Gives what was found its place in the graph."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, t: Tensor, b: Tensor | None, found: _Values
    ) -> tuple[Tensor, Tensor]:
        ctx.scalars, ctx.found = (t, b), found
        return found.sums.cost.to(x.dtype), found.distance.to(x.dtype)

    @staticmethod
    def backward(
        ctx: Any, grad_contrast: Tensor, grad_distance: Tensor
    ) -> tuple[Tensor | None, ...]:
        only_once()
        found: _Values = ctx.found
        sums, (t, b) = found.sums, ctx.scalars
        need_x, need_t, need_b, _ = ctx.needs_input_grad
        by_x = None
        if need_x and sums.grad_queries is not None:
            by_common = unit_gradient(times(sums.grad_queries, grad_contrast), *found.common)
            by_style = unit_gradient(times(found.style_gradient, grad_distance), *found.style)
            by_x = torch.cat([by_common, by_style], 1)
        return (
            by_x,
            (sums.by_t * grad_contrast).to(t) if need_t else None,
            (sums.by_b * grad_contrast).to(b) if need_b else None,
            None,
        )
