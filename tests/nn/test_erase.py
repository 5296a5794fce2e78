import pytest
import torch
from torch import Tensor, nn

from scs_supcon.errors import UserError
from scs_supcon.evaluation.leakage import purity
from scs_supcon.nn.erase import ErasedLinear, Erasure, can_erase, fit_erased, fit_erasure
from scs_supcon.nn.head import Projection, ProjectionHeads, fit_style, unit


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


@pytest.mark.parametrize("shrinkage", [1e-3, 0.1, 1.0])
def test_the_erasure_equals_the_reference(shrinkage: float) -> None:
    features, labels = blobs()
    erased = fit_erasure(features, labels, 3, shrinkage)(features)
    expected = reference(features, labels, 3, shrinkage).float()
    torch.testing.assert_close(erased, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("shrinkage", [1e-3, 0.1, 1.0])
def test_no_linear_classifier_is_better_than_a_constant(shrinkage: float) -> None:
    features, labels = blobs()
    erasure = fit_erasure(features, labels, 3, shrinkage).double()
    erased = erasure(features.double())
    means = torch.stack([erased[labels == c].mean(0) for c in range(3)])
    torch.testing.assert_close(means, means[:1].expand(3, -1), rtol=0, atol=1e-4)
    assert explained_by(features, labels) > 0.5
    assert explained_by(erased, labels) < 1e-6


def test_the_rank_is_the_number_of_classes_minus_1() -> None:
    features, labels = blobs(classes=4)
    assert fit_erasure(features, labels, 4).rank == 3
    assert fit_erasure(features, labels, 9).rank == 3  # five classes without an image


def test_erasing_twice_is_erasing_once() -> None:
    features, labels = blobs()
    erasure = fit_erasure(features, labels, 3).double()
    once = erasure(features.double())
    torch.testing.assert_close(erasure(once), once, rtol=0, atol=1e-4)


def test_classes_with_equal_means_leave_the_features_unchanged() -> None:
    features, labels = blobs()
    for c in range(3):
        features[labels == c] -= features[labels == c].mean(0)
    erasure = fit_erasure(features, labels, 3)
    between = (erasure(features) - features).norm() / features.norm()
    assert between < 1e-5


def test_class_means_are_erased_in_the_evaluation_view_and_in_random_views() -> None:
    features, labels = blobs(n=80, width=12)
    noise = torch.randn(80, 2, 12, generator=torch.Generator().manual_seed(1))
    views = torch.cat([features[:, None], 0.5 * features[:, None] + noise], 1)
    erasure = fit_erasure(views, labels, 3).double()
    assert erasure.rank == 4
    erased = erasure(views.double())
    for kind in (erased[:, 0], erased[:, 1:].mean(1)):
        means = torch.stack([kind[labels == c].mean(0) for c in range(3)])
        torch.testing.assert_close(means, means[:1].expand(3, -1), rtol=0, atol=1e-4)


def test_only_the_means_of_all_views_are_erased_if_there_are_too_many_classes() -> None:
    features, labels = blobs(classes=3)
    assert fit_erasure(features.view(20, 3, 7), labels[:20], 3).rank == 2


def test_one_class_and_constant_features_and_no_images_are_left_alone() -> None:
    features, labels = blobs()
    assert fit_erasure(features, torch.zeros_like(labels), 1).rank == 0
    assert fit_erasure(torch.ones(6, 4), torch.arange(6) % 2, 2).rank == 0
    empty = fit_erasure(torch.ones(0, 4), torch.zeros(0, dtype=torch.long), 2)
    assert torch.equal(empty(features[:, :4]), features[:, :4])


def test_too_many_classes_are_an_error() -> None:
    features, labels = blobs(classes=5)
    assert can_erase(4, 7) and not can_erase(5, 7)
    with pytest.raises(UserError, match="at most 4 classes leave half of the directions"):
        fit_erasure(features, labels, 5)
    with pytest.raises(UserError, match="shrinkage must be above 0"):
        fit_erasure(*blobs(), 3, 0.0)


def test_the_state_has_the_rank_of_the_fit() -> None:
    features, labels = blobs()
    erasure = fit_erasure(features, labels, 3)
    loaded = Erasure(7)
    assert torch.equal(loaded(features), features)
    loaded.load_state_dict(erasure.state_dict())
    assert torch.equal(loaded(features), erasure(features))


def test_a_projection_takes_style_from_erased_features() -> None:
    features, labels = blobs()
    head = Projection(7, 6, centre=True, erased_dim=2)
    assert fit_erased(head, features[:, None], labels, 3) == 2
    assert head.style is not None and head.style.erasure.rank == 2
    common = head.layers(features)
    style = head.style.layer(head.style.erasure(features))
    torch.testing.assert_close(head(features), head.centre(torch.cat([common, style], 1)))
    again = Projection(7, 6, centre=True, erased_dim=2)
    again.load_state_dict(head.state_dict())
    assert torch.equal(again.eval()(features), head.eval()(features))


def test_an_erased_style_field_does_not_see_the_class_means() -> None:
    features, labels = blobs()
    head = Projection(7, 6, erased_dim=2).eval()
    fit_erased(head, features[:, None], labels, 3)
    assert head.style is not None
    shift = head.style.erasure.left[:, 0]  # a direction in which the classes differ
    moved = head(features + 10 * shift)
    assert not torch.allclose(moved[:, :4], head(features)[:, :4], atol=1e-2)
    torch.testing.assert_close(moved[:, 4:], head(features)[:, 4:], rtol=0, atol=1e-3)


def test_the_layer_starts_at_the_principal_directions_of_the_erased_features() -> None:
    features, labels = blobs(width=9)
    style = ErasedLinear(9, 4)
    fit_erased(style, features[:, None], labels, 3)
    rows = style(features).detach().double()
    torch.testing.assert_close(rows.mean(0), torch.zeros(4).double(), rtol=0, atol=1e-4)
    erased = style.erasure(features).double()
    spectrum = torch.linalg.svdvals(erased - erased.mean(0))
    torch.testing.assert_close(torch.linalg.norm(rows, dim=0), spectrum[:4], rtol=1e-4, atol=1e-4)


def test_more_columns_than_directions_keep_their_random_start() -> None:
    features, labels = blobs(width=9)
    torch.manual_seed(3)
    style, other = ErasedLinear(9, 20), ErasedLinear(9, 20)
    other.load_state_dict(style.state_dict())
    fit_erased(style, features[:, None], labels, 3)
    assert torch.equal(style.layer.weight[7:], other.layer.weight[7:])
    assert not torch.equal(style.layer.weight[:7], other.layer.weight[:7])


def test_by_variance_a_column_has_the_squared_deviation_of_its_direction() -> None:
    features, labels = blobs(width=9)
    features = features.double()
    plain, scaled = ErasedLinear(9, 9).double(), ErasedLinear(9, 9).double()
    fit_erased(plain, features[:, None], labels, 3)
    fit_erased(scaled, features[:, None], labels, 3, by_variance=True)
    deviations = plain(features).std(0)[:7]  # 2 of the 9 directions are erased
    rows = scaled(features)
    torch.testing.assert_close(rows.std(0)[:7], deviations**2 / deviations[0])
    similarity = torch.corrcoef(torch.cat([plain(features)[:, :7], rows[:, :7]], 1).T)[:7, 7:]
    torch.testing.assert_close(similarity, torch.eye(7).to(similarity), rtol=0, atol=1e-3)
    assert torch.equal(rows[:, 7:], torch.zeros_like(rows[:, 7:])), "no direction is left"


def test_by_variance_the_directions_are_dealt_out_in_turn() -> None:
    features, labels = blobs(width=9)
    features = features.double()
    one = ErasedLinear(9, 6).double()
    pair = torch.nn.ModuleList([ErasedLinear(9, 3).double(), ErasedLinear(9, 3).double()])
    for module in (one, pair):
        fit_erased(module, features[:, None], labels, 3, by_variance=True)
    first, second = (head(features) for head in pair)
    torch.testing.assert_close(first, one(features)[:, 0::2])
    torch.testing.assert_close(second, one(features)[:, 1::2])


def test_projections_without_scales_have_different_directions() -> None:
    features, labels = blobs(width=9)
    one = ErasedLinear(9, 6)
    pair = nn.ModuleList([ErasedLinear(9, 3), ErasedLinear(9, 3)])
    for module in (one, pair):
        fit_erased(module, features[:, None], labels, 3)
    torch.testing.assert_close(torch.cat([head(features) for head in pair], 1), one(features))
    for row in one.layer.weight:
        assert row[row.abs().argmax()] > 0, "the sign of a direction is fixed"


def test_large_sets_are_summed_in_parts_and_further_columns_ignored(monkeypatch) -> None:
    features, labels = blobs(width=9)
    views = torch.stack([features, features + 0.1 * torch.randn(60, 9)], 1)
    whole, parts = ErasedLinear(9, 4), ErasedLinear(9, 4)
    fit_erased(whole, views, labels, 3)
    monkeypatch.setattr("scs_supcon.nn.erase.ROWS", 7)
    fit_erased(parts, torch.cat([views, torch.randn(60, 2, 5)], 2), labels, 3)
    torch.testing.assert_close(parts(features), whole(features), rtol=1e-4, atol=1e-4)


def test_projections_without_erasure_and_too_many_classes_erase_nothing() -> None:
    features, labels = blobs(classes=5)
    assert fit_erased(Projection(7, 6), features[:, None], labels, 5) == 0
    head = Projection(7, 6, erased_dim=2)
    assert fit_erased(head, features[:, None], labels, 5) == 0
    assert head.style is not None
    assert torch.equal(head.style.erasure(features), features)
    assert fit_erased(head, features[:0, None], labels[:0], 5) == 0


def test_the_style_of_a_trained_projection_is_fitted_again() -> None:
    features, labels = blobs(width=12)
    head = Projection(12, 6, centre=True, erased_dim=3)
    head(features)  # updates the statistics
    common = head.eval()(features)[:, :3]
    assert fit_style(head, features.view(60, 1, 12), labels, 3) == 2
    rows = head.eval()(features)[:, 3:]
    torch.testing.assert_close(rows.mean(0), torch.zeros(3), rtol=0, atol=1e-4)
    layer = ErasedLinear(12, 3)
    fit_erased(layer, features[:, None], labels, 3, by_variance=True)
    deviations = layer(features).std(0, correction=0)
    torch.testing.assert_close(
        rows.std(0, correction=0), deviations / deviations[0], rtol=1e-3, atol=1e-3
    )
    assert torch.equal(head(features)[:, :3], common)
    assert fit_style(Projection(12, 6), features[:, None], labels, 3) == 0
    assert fit_style(head, features[:0, None], labels[:0], 3) == 0


def test_the_style_of_several_heads_is_fitted_together() -> None:
    features, labels = blobs(width=12)
    heads = ProjectionHeads(Projection(12, 6, centre=True, erased_dim=3) for _ in range(2))
    heads(features)
    common = heads.eval()(features)[..., :3]
    assert fit_style(heads, features[:, None], labels, 3) == 2
    rows = heads(features)
    assert torch.equal(rows[..., :3], common)
    one = ErasedLinear(12, 6)
    fit_erased(one, features[:, None], labels, 3, by_variance=True)
    expected = one(features).T.corrcoef()[0::2, 0::2]
    torch.testing.assert_close(rows[:, 0, 3:].T.corrcoef(), expected, rtol=1e-3, atol=1e-3)
    assert not torch.allclose(rows[:, 0, 3:], rows[:, 1, 3:])


@pytest.mark.parametrize("value", [0.0, 0.1, 1.0])
def test_equal_features_have_no_style(value: float) -> None:
    features, labels = torch.full((12, 3, 8), value), torch.arange(12) % 3
    head = Projection(8, 6, centre=True, erased_dim=3)
    fit_style(head, features, labels, 3)
    style = head.eval()(features[:, 0])[:, 3:].detach()
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
    head = Projection(16, 18, centre=True, erased_dim=12)
    fit_style(head, views, labels, 3)
    scaled = head.eval()(views.flatten(0, 1))[:, 6:].detach()
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


def test_the_projection_is_that_of_erased_features() -> None:
    torch.manual_seed(0)
    features, labels = blobs()
    layer = ErasedLinear(features.shape[1], 3).double()
    layer.erasure.load_state_dict(fit_erasure(features, labels, 3).state_dict())
    assert layer.erasure.rank == 2
    rows = features.double().requires_grad_()
    expected = layer.layer(layer.erasure(rows))
    torch.testing.assert_close(layer(rows), expected, rtol=0, atol=1e-12)
    inputs = (rows, layer.layer.weight, layer.layer.bias)
    gradients = [torch.autograd.grad(y.square().sum(), inputs) for y in (layer(rows), expected)]
    for ours, plain in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, plain, rtol=1e-9, atol=1e-9)
