"""Thresholds of rejection against sorted lists."""

import math

import pytest
import torch

from scs_supcon.errors import UserError
from scs_supcon.inference.rejection import (
    CLASS_IMAGES,
    margin_quantiles,
    rejection_rate,
    rejection_thresholds,
    shift_for_rate,
)


def share_rejected(similarities: torch.Tensor, thresholds: torch.Tensor) -> float:
    return float((similarities < thresholds).all(1).double().mean())


@pytest.mark.parametrize("rate", [0.02, 0.05, 0.2])
@pytest.mark.parametrize(("images", "classes"), [(10, 3), (150, 4), (997, 12)])
def test_the_stated_share_of_held_out_images_is_rejected(
    images: int, classes: int, rate: float
) -> None:
    similarities = torch.randn(images, classes, dtype=torch.float64)
    similarities += torch.linspace(-1, 1, classes)  # classes differ
    _, thresholds = rejection_thresholds(similarities, rate)
    assert abs(share_rejected(similarities, thresholds) - rate) <= 1 / images


def test_classes_with_few_images_share_a_threshold() -> None:
    similarities = torch.randn(3 * (CLASS_IMAGES - 1), 3, dtype=torch.float64) / 10
    similarities += torch.eye(3).repeat(CLASS_IMAGES - 1, 1)
    pooled, thresholds = rejection_thresholds(similarities)
    assert thresholds.tolist() == pytest.approx([pooled] * 3)
    assert pooled == pytest.approx(float(similarities.amax(1).quantile(0.05)))


def test_the_threshold_of_a_class_is_a_mean_weighted_by_its_images() -> None:
    counts = (60, 20, 19)
    labels = torch.arange(3).repeat_interleave(torch.tensor(counts))
    similarities = torch.full((sum(counts), 3), -5.0, dtype=torch.float64)
    scores = (
        torch.rand(sum(counts), dtype=torch.float64) / 10 + torch.tensor([0.9, 0.5, 0.7])[labels]
    )
    similarities[torch.arange(len(labels)), labels] = scores
    pooled, thresholds = rejection_thresholds(similarities)
    expected = [pooled] * 3
    for c in (0, 1):
        own = float(scores[labels == c].quantile(0.05))
        expected[c] = (counts[c] * own + 20 * pooled) / (counts[c] + 20)
    margins = [float(s) - expected[c] for s, c in zip(scores, labels.tolist(), strict=True)]
    shift = float(torch.tensor(margins, dtype=torch.float64).quantile(0.05))
    assert thresholds.tolist() == pytest.approx([value + shift for value in expected])


def test_the_threshold_of_a_single_image_is_its_similarity() -> None:
    pooled, thresholds = rejection_thresholds(torch.tensor([[0.2, 0.7]]))
    assert pooled == pytest.approx(0.7)
    assert thresholds.tolist() == pytest.approx([0.7, 0.7])


def quantile(values: list[float], share: float) -> float:
    """The value at a share of the sorted list, interpolated linearly."""
    ordered = sorted(values)
    position = share * (len(ordered) - 1)
    below = math.floor(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (position - below) * (ordered[above] - ordered[below])


def test_margins_are_quantiles_of_the_largest_margin_of_each_image() -> None:
    torch.manual_seed(0)
    similarities = torch.randn(37, 3, dtype=torch.float64)
    thresholds = torch.tensor([0.1, -0.2, 0.3], dtype=torch.float64)
    largest = [
        max(s - t for s, t in zip(row, thresholds.tolist(), strict=True))
        for row in similarities.tolist()
    ]
    expected = [quantile(largest, percent / 100) for percent in range(101)]
    assert margin_quantiles(similarities, thresholds) == pytest.approx(expected)


MARGINS = tuple(k / 100 - 0.3 for k in range(101))  # −0.3 to 0.7


@pytest.mark.parametrize(
    ("rate", "shift"), [(0.0, -0.3), (0.005, -0.295), (0.3, 0.0), (0.995, 0.695)]
)
def test_shifts_are_interpolated_between_quantiles(rate: float, shift: float) -> None:
    assert shift_for_rate(MARGINS, rate) == pytest.approx(shift)
    shifted = [margin - shift for margin in MARGINS]
    assert rejection_rate(shifted) == pytest.approx(rate, abs=1e-9)


@pytest.mark.parametrize(("margin", "rate"), [(0.5, 0.0), (0.0, 0.0), (-0.5, 1.0)])
def test_all_or_none_can_be_rejected(margin: float, rate: float) -> None:
    assert rejection_rate((margin,) * 101) == rate


def test_a_shift_rejects_the_given_share_of_held_out_images() -> None:
    torch.manual_seed(0)
    similarities = torch.randn(400, 3, dtype=torch.float64) / 5
    _, thresholds = rejection_thresholds(similarities)
    margins = margin_quantiles(similarities, thresholds)
    assert len(margins) == 101
    assert shift_for_rate(margins, 0.05) == pytest.approx(0, abs=1e-12)
    for rate in (0.0, 0.01, 0.2, 0.355, 0.99):
        shift = shift_for_rate(margins, rate)
        rejected = [
            all(row[c] < thresholds[c] + shift for c in range(3)) for row in similarities.tolist()
        ]
        assert sum(rejected) / len(rejected) == pytest.approx(rate, abs=2 / 400)


def test_impossible_rates_are_an_error() -> None:
    for rate in (-0.1, 1.0, 5.0, math.nan):
        with pytest.raises(UserError, match="a share from 0 to 1"):
            shift_for_rate((0.0,) * 101, rate)
    with pytest.raises(UserError, match="older version trained it"):
        shift_for_rate((), 0.1)
