"""Leakage of synthetic fields with a known answer."""

import math

import pytest
import torch

from scs_supcon.evaluation.leakage import (
    effective_rank,
    linear_accuracy,
    measure_leakage,
    view_agreement,
)
from scs_supcon.nn.head import unit


def fields(n: int, leak: float, seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Make four classes: separate in common, and in style scaled by `leak`."""
    draw = torch.Generator().manual_seed(seed)
    labels = torch.arange(n) % 4
    noise = torch.randn(n, 12, generator=draw, dtype=torch.float64)
    of_class = 5 * torch.eye(4, 6, dtype=torch.float64)[labels]
    return unit(of_class + noise[:, :6]), unit(leak * of_class + noise[:, 6:]), labels


def test_style_without_the_class_stays_at_chance() -> None:
    result = measure_leakage(fields(800, 0, 0), fields(400, 0, 1), 4, None)
    assert result is not None
    assert result.chance == 0.25
    assert result.class_from_common > 0.95
    assert result.class_from_style == pytest.approx(0.25, abs=0.07)
    assert result.style_dim == 6
    assert result.style_rank == pytest.approx(6, abs=0.1)


def test_style_with_the_class_predicts_it() -> None:
    result = measure_leakage(fields(800, 1, 0), fields(400, 1, 1), 4, None)
    assert result is not None
    assert result.class_from_style > 0.95


def test_chance_is_the_share_of_the_largest_class() -> None:
    common, style, labels = fields(40, 0, 0)
    subset = torch.nonzero((labels == 0) | (torch.arange(40) < 12))[:, 0]
    result = measure_leakage(
        (common, style, labels), (common[subset], style[subset], labels[subset]), 4, None
    )
    assert result is not None
    assert result.chance == pytest.approx(10 / len(subset))


def test_leakage_needs_a_style_field_and_training_images() -> None:
    common, style, labels = fields(12, 0, 0)
    evaluated = common, style, labels
    assert (
        measure_leakage((common, style[:, :0], labels), (common, style[:, :0], labels), 4, None)
        is None
    )
    assert measure_leakage((common[:0], style[:0], labels[:0]), evaluated, 4, None) is None


def test_linear_accuracy_is_measured_on_the_test_rows() -> None:
    rows, labels = torch.eye(3).repeat(4, 1), torch.arange(12) % 3
    assert linear_accuracy(rows, labels, torch.eye(3), torch.tensor([0, 1, 2]), 3) == 1
    assert linear_accuracy(rows, labels, torch.eye(3), torch.tensor([1, 2, 0]), 3) == 0


def test_view_agreement_is_a_mean_over_pairs() -> None:
    draw = torch.Generator().manual_seed(0)
    first, second, third, fourth = (
        unit(torch.randn(9, 4, generator=draw, dtype=torch.float64)) for _ in range(4)
    )
    labels = torch.tensor([0, 0, 0, 1, 1, 2, 2, 2, 3])
    result = view_agreement((third, fourth), (first, second), labels)
    same = [float(first[i] @ second[i]) for i in range(9)]
    same_class = [
        float(first[i] @ second[j])
        for i in range(9)
        for j in range(9)
        if i != j and labels[i] == labels[j]
    ]
    assert result.style_same_image == pytest.approx(math.fsum(same) / 9)
    assert result.style_same_class == pytest.approx(math.fsum(same_class) / len(same_class))
    other = [float(third[i] @ fourth[i]) for i in range(9)]
    assert result.common_same_image == pytest.approx(math.fsum(other) / 9)
    alone = view_agreement((third, fourth), (first, second), torch.arange(9))
    assert alone.style_same_class is None


def test_effective_rank_counts_dimensions() -> None:
    line = torch.linspace(-1, 1, 50)[:, None] * torch.tensor([[1.0, 2.0, 3.0]])
    assert effective_rank(line) == pytest.approx(1)
    assert effective_rank(torch.cat([torch.eye(3), -torch.eye(3)])) == pytest.approx(3)
    uneven = torch.cat([torch.eye(2), -torch.eye(2)]) * torch.tensor([3.0, 1.0])
    p = [0.9, 0.1]
    assert effective_rank(uneven) == pytest.approx(math.exp(-sum(x * math.log(x) for x in p)))
    assert effective_rank(torch.ones(5, 3)) == 0
