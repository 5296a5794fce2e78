"""MixUp and CutMix: mix the images of a batch, and their labels in the same proportion."""

import math

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from scs_supcon.methods import Batch


def mix_batch(
    batch: Batch,
    classes: int,
    *,
    mixup: float,
    cutmix: float,
    key: tuple[int, ...],
) -> Batch:
    """Mix each image of a batch with another one, and return the batch with soft labels.

        MixUp:   x' = λx + (1 − λ)x̃
        CutMix:  x' = x with a rectangle of x̃, 1 − λ of the area
        both:    p' = λp + (1 − λ)p̃

    λ ~ Beta(α, α), mirrored to λ ≥ 1/2, so that `labels` holds the larger part of each image. All
    views of an image have the same partner, λ and rectangle, so that they have the same label. With
    several processes, each mixes the images of its own part of the batch.

    Args:
        batch: images (views · B, 3, height, width), or features (views · B, d).
        classes: number of classes.
        mixup: α of MixUp; 0 means never.
        cutmix: α of CutMix; 0 means never. If both are set, each batch uses one of them.
        key: numbers that determine the random numbers: seed, epoch and number of the batch.
    """
    rng = np.random.default_rng(key)
    cut = cutmix > 0 and (mixup == 0 or rng.random() < 0.5)
    alpha = cutmix if cut else mixup
    share = float(rng.beta(alpha, alpha))
    share = max(share, 1 - share)
    partner = torch.from_numpy(rng.permutation(len(batch.labels))).to(batch.images.device)
    views = batch.images.view(-1, len(batch.labels), *batch.images.shape[1:])
    if cut:
        mixed, share = _paste(views, partner, share, rng)
    else:
        mixed = torch.lerp(views[:, partner], views, share)
    own = F.one_hot(batch.labels, classes).to(torch.float32)
    soft = torch.lerp(own[partner], own, share)
    return Batch(mixed.flatten(0, 1), batch.labels, batch.indices, soft)


def _paste(
    views: Tensor, partner: Tensor, share: float, rng: np.random.Generator
) -> tuple[Tensor, float]:
    """Return views with a rectangle of their partners, and the share that is their own.

    The rectangle may cross the border; what lies outside is lost.
    """
    height, width = views.shape[-2:]
    side = math.sqrt(1 - share)
    top, bottom = _interval(height, side, rng)
    left, right = _interval(width, side, rng)
    mixed = views.clone()
    mixed[..., top:bottom, left:right] = views[:, partner][..., top:bottom, left:right]
    return mixed, 1 - (bottom - top) * (right - left) / (height * width)


def _interval(length: int, share: float, rng: np.random.Generator) -> tuple[int, int]:
    """Return start and end of an interval with a random centre, cut to [0, length]."""
    size, centre = round(length * share), int(rng.integers(length))
    start = centre - size // 2
    return max(0, start), min(length, start + size)
