"""Colours of a view, changed by one affine map of its three channels.

torchvision's `ColorJitter` changes brightness, contrast, saturation and hue one after the other,
and rounds and clips after each: most of the time a view takes to make. Here the four are one
matrix and one offset, clipped once. Brightness, contrast and saturation are the same maps (without
clipping they can be exchanged, so their order needs no drawing). Hue turns by the same angle, but
about the grey axis: the sum of the channels stays, where HSV keeps the largest and the smallest.
"""

import math

import torch
from torch import Tensor

_LUMA = torch.tensor([0.299, 0.587, 0.114])  # how bright red, green and blue look (ITU-R 601)


def jitter_colours(pixels: Tensor, strength: float) -> Tensor:
    """Vary brightness, contrast and saturation by ± strength, hue by ± strength / 4 of a turn.

    Args:
        pixels: Channels first (3, height, width), from 0 to 1.
        strength: Factors lie in [max(0, 1 − strength), 1 + strength].
    """
    brightness, contrast, saturation, hue = torch.rand(4).tolist()
    low, span = max(0.0, 1 - strength), 1 + strength - max(0.0, 1 - strength)
    return adjust_colours(
        pixels,
        brightness=low + span * brightness,
        contrast=low + span * contrast,
        saturation=low + span * saturation,
        turn=strength / 4 * (2 * hue - 1),
    )


def adjust_colours(
    pixels: Tensor, *, brightness: float, contrast: float, saturation: float, turn: float
) -> Tensor:
    """Scale the light, the distance to the mean grey, the distance to grey, and turn the hue."""
    matrix = (brightness * contrast) * (_saturate(saturation) @ _turn(turn))
    grey = _LUMA @ pixels.mean(dim=(1, 2))
    offset = (brightness * (1 - contrast) * grey).expand(3, 1)
    changed = torch.addmm(offset, matrix, pixels.flatten(1))
    return changed.clamp_(0, 1).view_as(pixels)


def to_grey(pixels: Tensor) -> Tensor:
    """The same light without colour."""
    return (_LUMA @ pixels.flatten(1)).view(1, *pixels.shape[1:]).repeat(3, 1, 1)


def _saturate(factor: float) -> Tensor:
    return factor * torch.eye(3) + (1 - factor) * _LUMA.expand(3, 3)


def _turn(turn: float) -> Tensor:
    """Rotation about (1, 1, 1): hue moves by `turn` of the full circle."""
    cosine, sine = math.cos(2 * math.pi * turn), math.sin(2 * math.pi * turn)
    same, up, down = (
        (1 + 2 * cosine) / 3,
        (1 - cosine) / 3 + sine / math.sqrt(3),
        (1 - cosine) / 3 - sine / math.sqrt(3),
    )
    return torch.tensor([[same, down, up], [up, same, down], [down, up, same]])
