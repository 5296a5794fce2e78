"""Decisions against their formulas in plain loops."""

import math

import pytest
import torch

from scs_supcon.errors import UserError
from scs_supcon.inference.classifier import LinearClassifier
from scs_supcon.inference.decision import (
    ROWS,
    DecisionRule,
    ProbeInputs,
    fit_decision_rule,
    in_passes,
    within_class_similarity,
)
from scs_supcon.nn.head import Projection, fields
from scs_supcon.recipe import HeadRecipe

DIM = 6


def clusters(
    n: int, classes: int = 4, seed: int = 0, noise: float = 0.3
) -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(seed)
    labels = torch.arange(n) % classes
    return torch.eye(DIM)[labels] + noise * torch.randn(n, DIM, generator=draw), labels


def classifier(classes: int = 4) -> LinearClassifier:
    weight = 5 * torch.eye(classes, DIM, dtype=torch.float64)
    return LinearClassifier(weight, torch.zeros(classes, dtype=torch.float64), 1.5)


def rule(threshold: float | None = None) -> DecisionRule:
    """Return a fitted rule, with another threshold for all classes if one is given."""
    fitted = fit(clusters(80), clusters(40, seed=1))
    if threshold is None:
        return fitted
    return DecisionRule(
        classifier(),
        centre=fitted.centre,
        means=fitted.means,
        within_class_similarity=fitted.within_class_similarity,
        prototype_scale=fitted.prototype_scale,
        threshold=threshold,
    )


def fit(train, val, probe_input="common") -> DecisionRule:
    return fit_decision_rule(classifier(), train=train, val=val, probe_input=probe_input)


def unit(row: list[float]) -> list[float]:
    length = math.sqrt(sum(v * v for v in row))
    return [v / length for v in row]


def dot(a: list[float], b: list[float]) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))


def test_within_class_similarity_is_the_mean_over_pairs() -> None:
    rows, labels = clusters(22)
    units = [unit(row) for row in rows.double().tolist()]
    result = within_class_similarity(torch.tensor(units, dtype=torch.float64), labels, 5)
    for c in range(4):
        rows_of_class = [u for u, y in zip(units, labels.tolist(), strict=True) if y == c]
        pairs = [
            dot(a, b)
            for i, a in enumerate(rows_of_class)
            for j, b in enumerate(rows_of_class)
            if i != j
        ]
        assert float(result[c]) == pytest.approx(sum(pairs) / len(pairs), rel=1e-12)
    assert result[4].isnan()


def test_without_added_classes_the_probabilities_are_those_of_the_classifier() -> None:
    rows, _ = clusters(10, seed=2)
    torch.testing.assert_close(
        rule()(rows.double()).probabilities, classifier().probabilities(rows), rtol=0, atol=0
    )


def test_unknown_means_below_the_threshold_of_every_class() -> None:
    fitted = rule(0.6)
    rows = torch.cat([clusters(40, seed=3)[0], -torch.ones(1, DIM), torch.zeros(1, DIM)])
    result = fitted(rows.double())
    for i, row in enumerate(rows.double().tolist()):
        u = unit(row) if any(row) else row
        similarities = [dot(u, mean) for mean in fitted.means.tolist()]
        assert float(result.similarity[i]) == pytest.approx(max(similarities), abs=1e-12)
        assert int(result.nearest[i]) == similarities.index(max(similarities))
        assert bool(result.unknown[i]) == (max(similarities) < 0.6)
    assert result.unknown[-2:].all()
    assert not result.unknown[:-2].all()


def test_5_percent_of_the_validation_images_are_rejected() -> None:
    val = clusters(200, seed=1, noise=0.6)
    fitted = fit(clusters(80), val)
    assert float(fitted(val[0].double()).unknown.double().mean()) == pytest.approx(0.05)


def test_features_are_centred() -> None:
    train, val = clusters(80), clusters(40, seed=1)
    far = torch.full((DIM,), 100.0)
    shifted = fit((train[0] + far, train[1]), (val[0] + far, val[1]), "features")
    unshifted = fit(train, val, "features")
    rows, _ = clusters(10, seed=2)
    torch.testing.assert_close(
        shifted((rows + far).double()).similarity,
        unshifted(rows.double()).similarity,
        rtol=1e-4,
        atol=1e-5,
    )


def test_the_probability_of_an_added_class_depends_on_its_closeness() -> None:
    fitted = rule()
    rows_of_class = torch.nn.functional.normalize(
        torch.eye(DIM)[[4] * 7] + 0.4 * clusters(7, seed=4)[0], dim=1
    ).double()
    extended = fitted.with_class(rows_of_class)
    rows = torch.cat([clusters(6, seed=5)[0], rows_of_class[:2].float()])
    result = extended(rows.double()).probabilities
    before = fitted(rows.double()).probabilities
    for i, row in enumerate(rows.double().tolist()):
        u = unit(row)
        weights = [
            math.exp(extended.prototype_scale * (dot(u, mean) - q / 2))
            for mean, q in zip(
                extended.means.tolist(), extended.within_class_similarity.tolist(), strict=True
            )
        ]
        share = weights[4] / sum(weights)
        assert float(result[i, 4]) == pytest.approx(share, rel=1e-9)
        for c in range(4):
            assert float(result[i, c]) == pytest.approx((1 - share) * float(before[i, c]), rel=1e-9)
    assert (result[-2:].argmax(1) == 4).all()


def test_an_added_class_with_a_large_spread_has_a_lower_threshold() -> None:
    fitted = rule(0.6)
    typical = float(fitted.within_class_similarity.mean())
    spread = torch.tensor([[0.0, 0, 0, 0, 1, 0], [0, 0, 0, 0, 0.6, 0.8]], dtype=torch.float64)
    extended = fitted.with_class(spread)
    assert extended.thresholds[:4].tolist() == [0.6] * 4
    assert float(extended.within_class_similarity[4]) == pytest.approx(0.6)
    assert float(extended.thresholds[4]) == pytest.approx(0.6 * 0.6 / typical)
    compact = fitted.with_class(torch.eye(DIM, dtype=torch.float64)[[5, 5, 5]])
    assert float(compact.thresholds[4]) == 0.6


def test_a_class_added_with_one_image_has_average_spread() -> None:
    fitted = rule()
    extended = fitted.with_class(torch.eye(DIM, dtype=torch.float64)[5:])
    assert float(extended.within_class_similarity[4]) == pytest.approx(
        float(fitted.within_class_similarity.mean())
    )


def test_a_negative_threshold_is_that_of_every_class() -> None:
    extended = rule(-0.2).with_class(torch.eye(DIM, dtype=torch.float64)[4:])
    assert extended.thresholds.tolist() == [-0.2] * 5


def test_classes_with_one_image_give_finite_results() -> None:
    rows, labels = clusters(4)
    result = fit((rows, labels), (rows, labels))
    assert result.within_class_similarity.isfinite().all()
    assert result(rows.double()).probabilities.isfinite().all()


WIDTH = 40


def probe_inputs(probe_input="common", overlap: int = 0) -> ProbeInputs:
    torch.manual_seed(0)
    projection = Projection(WIDTH, 24 - overlap, centre=True)
    projection(torch.randn(50, WIDTH))  # sets the running statistics
    head = HeadRecipe(common_dim=16, style_dim=8, overlap=overlap)
    return ProbeInputs(projection.eval(), probe_input, head)


@pytest.mark.parametrize("overlap", [0, 3])
def test_common_and_style_are_the_fields_of_the_head(overlap: int) -> None:
    module = probe_inputs(overlap=overlap)
    features = torch.randn(9, WIDTH, dtype=torch.float64)
    common, style = module(features)
    expected_common, expected_style = fields(module.projection(features), 16, overlap)
    torch.testing.assert_close(common, expected_common, rtol=0, atol=0)
    torch.testing.assert_close(style, expected_style, rtol=0, atol=0)


def test_features_are_used_unchanged() -> None:
    features = torch.randn(9, WIDTH, dtype=torch.float64)
    inputs, style = probe_inputs("features")(features)
    assert torch.equal(inputs, features)
    assert style.shape == (9, 0)


def test_whole_embeddings_have_no_style() -> None:
    module = probe_inputs("embeddings")
    features = torch.randn(9, WIDTH, dtype=torch.float64)
    inputs, style = module(features)
    expected = torch.nn.functional.normalize(module.projection(features))
    torch.testing.assert_close(inputs, expected)
    assert style.shape == (9, 0)


def test_a_common_field_needs_a_projection_head() -> None:
    with pytest.raises(UserError, match="'common' needs a projection head"):
        ProbeInputs(None, "common", HeadRecipe())


@pytest.mark.parametrize("count", [0, 1, ROWS - 1, ROWS, 3 * ROWS + 5])
def test_the_result_of_a_row_does_not_depend_on_the_other_rows(count: int) -> None:
    torch.manual_seed(1)
    module, rows = probe_inputs(), torch.randn(4 * ROWS, WIDTH)
    expected, _ = in_passes(module, rows)
    inputs, style = in_passes(module, rows[7 : 7 + count])
    assert inputs.dtype == torch.float64
    assert torch.equal(inputs, expected[7 : 7 + count])
    assert style.shape == (count, 8)
