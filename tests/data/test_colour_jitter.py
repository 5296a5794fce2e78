import colorsys
import math

import pytest
import torch
from torch import Tensor
from torchvision.transforms.v2 import functional as tv

from scs_supcon.data.colour_jitter import adjust_colours, jitter_colours, to_grey

STILL = {"brightness": 1.0, "contrast": 1.0, "saturation": 1.0, "turn": 0.0}


@pytest.fixture
def pixels() -> Tensor:
    """Mild colours that no small change pushes out of range."""
    return 0.35 + 0.3 * torch.rand(3, 12, 10, generator=torch.Generator().manual_seed(0))


def test_nothing_changed_changes_nothing(pixels: Tensor) -> None:
    torch.testing.assert_close(adjust_colours(pixels, **STILL), pixels)


@pytest.mark.parametrize("factor", [0.7, 1.2])
@pytest.mark.parametrize("what", ["brightness", "contrast", "saturation"])
def test_each_factor_is_torchvisions(pixels: Tensor, what: str, factor: float) -> None:
    theirs = getattr(tv, f"adjust_{what}")(pixels, factor)
    torch.testing.assert_close(
        adjust_colours(pixels, **STILL | {what: factor}), theirs, atol=2e-4, rtol=0
    )


@pytest.mark.parametrize("turn", [-0.1, 0.05, 0.1])
def test_hue_moves_by_the_turn_and_the_sum_of_the_channels_stays(
    pixels: Tensor, turn: float
) -> None:
    turned = adjust_colours(pixels, **STILL | {"turn": turn})
    torch.testing.assert_close(turned.sum(dim=0), pixels.sum(dim=0))
    for before, after in zip(
        pixels.flatten(1).T.tolist(), turned.flatten(1).T.tolist(), strict=True
    ):
        moved = colorsys.rgb_to_hsv(*after)[0] - colorsys.rgb_to_hsv(*before)[0] - turn
        assert abs((moved + 0.5) % 1 - 0.5) < 0.01  # HSV's hue runs round a hexagon, ours a circle


def test_a_third_of_a_turn_makes_red_green(pixels: Tensor) -> None:
    turned = adjust_colours(pixels, **STILL | {"turn": 1 / 3})
    torch.testing.assert_close(turned, pixels[[2, 0, 1]])


def test_together_they_are_the_formula() -> None:
    """Every pixel worked out by hand, one change after the other."""
    pixels = torch.tensor([[0.2, 0.6], [0.5, 0.4], [0.3, 0.7]]).view(3, 1, 2)
    b, c, s, turn = 1.1, 0.8, 1.3, 0.02
    ours = adjust_colours(pixels, brightness=b, contrast=c, saturation=s, turn=turn)
    luma = (0.299, 0.587, 0.114)
    columns = [[float(pixels[channel, 0, x]) for channel in range(3)] for x in range(2)]
    mean_grey = sum(w * sum(p[i] for p in columns) / 2 for i, w in enumerate(luma))
    cosine, sine = math.cos(2 * math.pi * turn), math.sin(2 * math.pi * turn)
    for x, (red, green, blue) in enumerate(columns):
        middle = (red + green + blue) / 3
        cross = [(blue - green), (red - blue), (green - red)]  # (1, 1, 1) × colour
        turned = [
            value * cosine + cross[i] / math.sqrt(3) * sine + middle * (1 - cosine)
            for i, value in enumerate((red, green, blue))
        ]
        grey = sum(w * value for w, value in zip(luma, turned, strict=True))
        for i, value in enumerate(turned):
            expected = c * b * (s * value + (1 - s) * grey) + (1 - c) * b * mean_grey
            assert float(ours[i, 0, x]) == pytest.approx(expected, abs=1e-6)


def test_what_leaves_the_range_is_clipped(pixels: Tensor) -> None:
    bright = adjust_colours(pixels, **STILL | {"brightness": 10.0})
    assert bright.max() == 1
    assert adjust_colours(pixels, **STILL | {"contrast": 50.0}).min() == 0


def test_grey_keeps_the_light(pixels: Tensor) -> None:
    grey = to_grey(pixels)
    assert grey.shape == pixels.shape
    torch.testing.assert_close(grey[0], 0.299 * pixels[0] + 0.587 * pixels[1] + 0.114 * pixels[2])
    assert torch.equal(grey[0], grey[1])
    assert torch.equal(grey[0], grey[2])
    assert grey.is_contiguous()


def test_jitter_spans_its_range() -> None:
    torch.manual_seed(0)
    flat = torch.full((3, 2, 2), 0.5)  # contrast, saturation and hue leave a flat grey alone
    light = torch.stack([jitter_colours(flat, 0.4)[0, 0, 0] for _ in range(400)]) / 0.5
    assert 0.6 - 1e-6 <= light.min() < 0.62
    assert 1.38 < light.max() <= 1.4 + 1e-6
    torch.testing.assert_close(light.mean(), torch.tensor(1.0), atol=0.04, rtol=0)
    assert torch.equal(jitter_colours(flat, 0.0), flat)
