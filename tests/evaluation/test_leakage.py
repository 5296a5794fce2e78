"""Leakage of synthetic fields with a known answer."""

import math

import pytest
import torch

from scs_supcon.evaluation.leakage import (
    Reference,
    effective_rank,
    linear_accuracy,
    measure_leakage,
    network_accuracy,
    purity,
    read_factor,
    variance_explained,
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


def test_all_probes_stay_at_chance_without_the_class_and_find_it_with_the_class() -> None:
    without = measure_leakage(fields(800, 0, 0), fields(400, 0, 1), 4, None)
    leaking = measure_leakage(fields(800, 1, 0), fields(400, 1, 1), 4, None)
    assert without is not None and leaking is not None
    for name in ("class_from_style_knn", "class_from_style_mlp"):
        assert getattr(without, name) == pytest.approx(0.25, abs=0.08)
        assert getattr(leaking, name) > 0.9
    assert without.style_purity == pytest.approx(0, abs=0.06)
    assert leaking.style_purity is not None and leaking.style_purity > 0.9
    assert without.excess == pytest.approx(0, abs=0.1)
    assert leaking.excess == pytest.approx(1, abs=0.1)


def test_a_network_finds_what_a_linear_classifier_cannot() -> None:
    """The class is the sign of a product."""
    draw = torch.Generator().manual_seed(0)
    rows = torch.randn(600, 2, generator=draw, dtype=torch.float64)
    labels = (rows[:, 0] * rows[:, 1] > 0).long()
    halves = rows[:400], labels[:400], rows[400:], labels[400:]
    assert linear_accuracy(*halves, 2) < 0.65
    accuracy = network_accuracy(*halves)
    assert accuracy is not None and accuracy > 0.85
    assert network_accuracy(rows, torch.zeros_like(labels), rows, labels) is None


def test_purity_equals_the_reference() -> None:
    draw = torch.Generator().manual_seed(0)
    rows = unit(torch.randn(12, 3, generator=draw, dtype=torch.float64))
    labels = torch.arange(12) % 3
    same = 0
    for u in range(12):
        others = sorted((v for v in range(12) if v != u), key=lambda v: -float(rows[u] @ rows[v]))
        same += sum(int(labels[v] == labels[u]) for v in others[:4])
    chance = 3 / 11
    expected = (same / 48 - chance) / (1 - chance)
    assert purity(rows, labels, 4) == pytest.approx(expected, rel=1e-12)
    assert purity(torch.eye(3)[labels], labels, 3) == 1
    assert purity(rows, torch.zeros_like(labels)) is None
    assert purity(rows, torch.arange(12)) is None


def test_variance_explained_by_a_linear_function_of_style() -> None:
    draw = torch.Generator().manual_seed(0)

    def rows(n: int) -> torch.Tensor:
        return torch.randn(n, 8, generator=draw, dtype=torch.float64)

    labels, test_labels = torch.arange(300) % 3, torch.arange(90) % 3
    style, test_style = rows(300), rows(90)
    mixing, class_part = rows(8), 10 * rows(3)
    features, test_features = style @ mixing, test_style @ mixing
    train = style, features + class_part[labels], labels
    evaluated = test_style, test_features + class_part[test_labels], test_labels
    explained = variance_explained(train, evaluated)
    assert explained is not None and explained > 0.99, "class means do not count"
    half = variance_explained((style[:, :4], *train[1:]), (test_style[:, :4], *evaluated[1:]))
    assert half is not None and 0.2 < half < 0.8
    nothing = variance_explained((rows(300), *train[1:]), (rows(90), *evaluated[1:]))
    assert nothing is not None and nothing < 0.05
    assert variance_explained(train, (test_style, torch.zeros(90, 8), test_labels)) is None


def test_factors_are_read_from_0_to_1() -> None:
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(400, 5, generator=draw, dtype=torch.float64)
    number, category = 2 * x[:, 0] + 1, (x[:, 1] > 0).long()
    parts = x[:300], x[300:]
    assert read_factor(parts, (number[:300], number[300:])) > 0.99
    assert read_factor(parts, (category[:300], category[300:])) > 0.8
    other = torch.randn(400, generator=draw, dtype=torch.float64)
    assert read_factor(parts, (other[:300], other[300:])) < 0.1


def test_factors_and_variance_are_part_of_the_record() -> None:
    train, evaluated = fields(200, 0, 0), fields(100, 0, 1)
    reference = Reference(
        (train[1], evaluated[1]), {"first column": (train[1][:, 0], evaluated[1][:, 0])}
    )
    result = measure_leakage(train, evaluated, 4, None, reference)
    assert result is not None and result.variance_explained is not None
    assert result.variance_explained > 0.95
    (factor,) = result.factors
    assert factor.name == "first column"
    assert factor.from_style > 0.95
    assert factor.from_common < 0.5
    assert factor.from_features == factor.from_style
