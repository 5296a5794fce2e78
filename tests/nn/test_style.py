import pytest
import torch
from torch import Tensor, nn

from scs_supcon.evaluation.leakage import purity
from scs_supcon.nn.head import Projection, ProjectionHeads, unit
from scs_supcon.nn.style import (
    can_erase,
    erasure,
    feature_moments,
    remove_style,
    style_directions,
    with_style,
)


def blobs(n: int = 60, width: int = 7, classes: int = 3, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Correlated features whose class means differ."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(n) % classes
    mixing = torch.randn(width, width, generator=generator)
    means = 3 * torch.randn(classes, width, generator=generator)
    return torch.randn(n, width, generator=generator) @ mixing + means[labels] + 5, labels


def reference(features: Tensor, labels: Tensor, classes: int, shrinkage: float) -> Tensor:
    """h − W⁻¹ P W (h − μ), step by step in float64."""
    h = features.double()
    n, width = h.shape
    mean = h.mean(0)
    sigma = torch.zeros(width, width, dtype=torch.float64)
    cross = torch.zeros(width, classes, dtype=torch.float64)
    for row, label in zip(h, labels.tolist(), strict=True):
        sigma += torch.outer(row - mean, row - mean) / n
        for c in range(classes):
            share = float((labels == c).double().mean())
            cross[:, c] += (row - mean) * (float(label == c) - share) / n
    sigma = (1 - shrinkage) * sigma + shrinkage * sigma.trace() / width * torch.eye(width)
    values, vectors = torch.linalg.eigh(sigma)
    w = vectors @ torch.diag(values.pow(-0.5)) @ vectors.T
    basis = torch.linalg.svd(w @ cross)[0][:, : torch.linalg.matrix_rank(w @ cross)]
    p = basis @ basis.T
    return torch.stack([row - torch.linalg.inv(w) @ p @ w @ (row - mean) for row in h])


def explained_by(features: Tensor, labels: Tensor) -> float:
    """R² of the best linear prediction of the classes, from what float32 can hold."""
    targets = nn.functional.one_hot(labels).double()
    targets = targets - targets.mean(0)
    rows = features.double() - features.double().mean(0)
    left = targets - rows @ torch.linalg.pinv(rows, rtol=1e-4) @ targets
    return 1 - float(left.square().sum() / targets.square().sum())


def keep(features: Tensor, labels: Tensor, classes: int, shrinkage: float = 0.1) -> Tensor:
    """The erasure of features `(n, width)` or `(n, views, width)`."""
    views = features if features.dim() == 3 else features[:, None]
    return erasure(feature_moments(views, labels, classes), shrinkage)


def erase(features: Tensor, labels: Tensor, classes: int, shrinkage: float = 0.1) -> Tensor:
    """Features without the class, in float64."""
    mean = features.double().flatten(0, -2).mean(0)
    return mean + (features.double() - mean) @ keep(features, labels, classes, shrinkage).T


def rank(features: Tensor, labels: Tensor, classes: int) -> int:
    """Number of erased directions."""
    matrix = keep(features, labels, classes)
    return int(torch.linalg.matrix_rank(torch.eye(len(matrix)) - matrix))


def class_means(rows: Tensor, labels: Tensor) -> Tensor:
    return torch.stack([rows[labels == c].mean(0) for c in labels.unique()])


@pytest.mark.parametrize("shrinkage", [1e-3, 0.1, 1.0])
def test_the_erasure_equals_the_reference(shrinkage: float) -> None:
    features, labels = blobs()
    expected = reference(features, labels, 3, shrinkage)
    torch.testing.assert_close(erase(features, labels, 3, shrinkage), expected)


@pytest.mark.parametrize("shrinkage", [1e-3, 0.1, 1.0])
def test_no_linear_classifier_is_better_than_a_constant(shrinkage: float) -> None:
    features, labels = blobs()
    erased = erase(features, labels, 3, shrinkage)
    means = class_means(erased, labels)
    torch.testing.assert_close(means, means[:1].expand(3, -1))
    assert explained_by(features, labels) > 0.5
    assert explained_by(erased, labels) < 1e-6


def test_the_rank_is_the_number_of_classes_minus_1() -> None:
    features, labels = blobs(classes=4)
    assert rank(features, labels, 4) == 3
    assert rank(features, labels, 9) == 3  # five classes without an image


def test_erasing_twice_is_erasing_once() -> None:
    matrix = keep(*blobs(), 3)
    torch.testing.assert_close(matrix @ matrix, matrix)


def test_classes_with_equal_means_leave_the_features_unchanged() -> None:
    features, labels = blobs()
    features = features.double()
    for c in range(3):
        features[labels == c] -= features[labels == c].mean(0)
    torch.testing.assert_close(erase(features, labels, 3), features)


def test_class_means_are_erased_in_the_evaluation_view_and_in_random_views() -> None:
    features, labels = blobs(n=80, width=12)
    noise = torch.randn(80, 2, 12, generator=torch.Generator().manual_seed(1))
    views = torch.cat([features[:, None], 0.5 * features[:, None] + noise], 1)
    assert rank(views, labels, 3) == 4
    erased = erase(views, labels, 3)
    for kind in (erased[:, 0], erased[:, 1:].mean(1)):
        means = class_means(kind, labels)
        torch.testing.assert_close(means, means[:1].expand(3, -1))


def test_only_the_means_of_all_views_are_erased_if_there_are_too_many_classes() -> None:
    features, labels = blobs(classes=3)
    assert rank(features.view(20, 3, 7), labels[:20], 3) == 2


def test_one_class_and_constant_features_are_left_alone() -> None:
    features, labels = blobs()
    assert rank(features, torch.zeros_like(labels), 1) == 0
    assert rank(torch.ones(6, 4), torch.arange(6) % 2, 2) == 0


def test_half_of_the_directions_are_left() -> None:
    assert can_erase(4, 7)
    assert not can_erase(5, 7)


def test_the_style_field_is_principal_directions_scaled_by_their_variance() -> None:
    features, labels = blobs(width=9)
    weight, bias = style_directions(features[:, None], labels, 3)
    style = features.double() @ weight.T + bias
    torch.testing.assert_close(style.mean(0), torch.zeros(7).double())
    erased = erase(features, labels, 3)
    _, deviations, principal = torch.linalg.svd(erased - erased.mean(0), full_matrices=False)
    assert len(weight) == 7  # 2 of the 9 directions are erased
    plain = (erased - erased.mean(0)) @ principal[:7].T
    expected = plain * deviations[:7] / deviations[0]
    signs = (style * expected).sum(0).sign()
    torch.testing.assert_close(style, expected * signs)


def test_the_sign_of_a_direction_is_fixed() -> None:
    features, labels = blobs(classes=5)  # too many classes: nothing is erased
    weight, _ = style_directions(features[:, None], labels, 5)
    assert len(weight) == 7
    for row in weight:
        assert row[row.abs().argmax()] > 0


def test_large_sets_are_summed_in_parts(monkeypatch) -> None:
    features, labels = blobs(width=9)
    noise = torch.randn(60, 9, generator=torch.Generator().manual_seed(1))
    views = torch.stack([features, features + 0.1 * noise], 1)
    whole = style_directions(views, labels, 3)
    monkeypatch.setattr("scs_supcon.nn.style.ROWS", 7)
    for ours, expected in zip(style_directions(views, labels, 3), whole, strict=True):
        torch.testing.assert_close(ours, expected)


@pytest.mark.parametrize("centre", [False, True])
def test_a_head_gets_a_style_field_after_training(centre: bool) -> None:
    features, labels = blobs(width=12)
    head = Projection(12, 6, centre=centre, fitted_dim=3)
    trainable = [name for name, p in head.named_parameters() if p.requires_grad]
    assert not any("style" in name for name in trainable)
    remove_style(head)
    common = head(features)  # updates the statistics of centring
    assert common.shape == (60, 3)
    common = head.eval()(features)
    fitted = with_style(head, features[:, None], labels, 3, 3)
    weight, bias = style_directions(features[:, None], labels, 3)
    style = (features.double() @ weight.T + bias)[:, :3].float()
    torch.testing.assert_close(fitted(features), torch.cat([common, style], 1), rtol=0, atol=1e-4)
    assert torch.equal(head(features), common), "the head itself is not changed"
    again = Projection(12, 6, centre=centre, fitted_dim=3).eval()
    again.load_state_dict(fitted.state_dict())
    assert torch.equal(again(features), fitted(features))


def test_several_heads_share_the_directions_in_turn() -> None:
    features, labels = blobs(width=12)
    heads = ProjectionHeads(Projection(12, 6, centre=True, fitted_dim=3) for _ in range(2))
    remove_style(heads)
    one = with_style(Projection(12, 3), features[:, None], labels, 3, 6)
    rows = with_style(heads, features[:, None], labels, 3, 3)(features)
    for number in (0, 1):
        torch.testing.assert_close(rows[:, number, 3:], one(features)[:, 3 + number :: 2])


def test_columns_without_a_direction_are_0() -> None:
    features, labels = blobs(width=9)
    style = with_style(Projection(9, 3), features[:, None], labels, 3, 9)(features)[:, 3:]
    assert torch.equal(style[:, 7:], torch.zeros(60, 2))
    assert (style[:, :7].std(0) > 0).all()


@pytest.mark.parametrize("value", [0.0, 0.1, 1.0])
def test_equal_features_have_no_style(value: float) -> None:
    features, labels = torch.full((12, 3, 8), value), torch.arange(12) % 3
    head = with_style(Projection(8, 3), features, labels, 3, 3)
    style = head(features[:, 0])[:, 3:].detach()
    assert torch.isfinite(style).all()
    assert float(style.abs().max()) < 1e-3


def noisy_views(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Four directions of an image, and twelve that differ in every view and vary in one class."""
    labels = torch.arange(300) % 3
    rows = 3 * torch.randn(300, 1, 16, generator=generator).repeat(1, 3, 1)
    rows[:, :, 4:] = torch.randn(300, 3, 12, generator=generator)
    for column in range(4, 16):
        rows[labels != column % 3, :, column] *= 0.1
    return rows, labels


def test_scales_by_variance_hide_the_class_and_keep_views_similar() -> None:
    views, labels = noisy_views(torch.Generator().manual_seed(1))
    head = with_style(Projection(16, 6), views, labels, 3, 12)
    scaled = head(views.flatten(0, 1))[:, 6:].detach()
    equal = scaled / scaled.std(0)
    similarities, purities = [], []
    for style in (scaled, equal):
        fields = unit(style).view(300, 3, 12)
        similarities.append(float((fields[:, 1] * fields[:, 2]).sum(1).mean()))
        purities.append(purity(fields[:, 0], labels))
    assert similarities[0] > 0.9 > similarities[1]
    assert purities[0] is not None
    assert purities[1] is not None
    assert purities[0] < 0.1 < purities[1]
