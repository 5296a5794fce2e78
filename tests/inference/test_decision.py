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
    fit_pairs,
    in_passes,
    pair_similarities,
    scale_parts,
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


def log_likelihood(t: float, b: float, pairs: list[tuple[float, bool]]) -> float:
    return -sum(math.log1p(math.exp(-(t * r - b) if same else t * r - b)) for r, same in pairs)


def test_t_and_b_of_pairs_maximise_the_likelihood() -> None:
    same = torch.arange(300) % 3 == 0
    similarities = 0.4 * same + 0.3 * torch.randn(300, dtype=torch.float64)
    t, b = fit_pairs(similarities, same)
    low, high = float(similarities.min()), float(similarities.max())
    pairs = list(zip(similarities.tolist(), same.tolist(), strict=True))
    pairs += [(low, False), (low, True), (high, False), (high, True)]
    best = log_likelihood(t, b, pairs)
    for step in (1e-3, 1e-1, 1.0):
        for dt, db in [(step, 0), (-step, 0), (0, step), (0, -step), (step, step), (-step, -step)]:
            assert log_likelihood(t + dt, b + db, pairs) < best
    assert t > 0
    assert 0 < b / t < 1


def test_separable_pairs_have_a_finite_boundary_between_them() -> None:
    similarities = torch.tensor([0.1, 0.2, 0.3, 0.8, 0.9, 0.95], dtype=torch.float64)
    t, b = fit_pairs(similarities, similarities > 0.5)
    assert 0 < t < 1e3
    assert 0.3 < b / t < 0.8


@pytest.mark.parametrize("same", [True, False])
def test_pairs_of_one_kind_say_nothing_about_the_boundary(same: bool) -> None:
    similarities = torch.linspace(0.1, 0.9, 50, dtype=torch.float64)
    assert fit_pairs(similarities, torch.full((50,), same)) == (10.0, 5.0)


def test_similar_pairs_are_never_less_likely_of_one_class() -> None:
    similarities = torch.linspace(-1, 1, 40, dtype=torch.float64)
    t, b = fit_pairs(similarities, similarities < -0.5)
    assert 0 < t < 0.01
    share = (10 + 2) / (40 + 4)  # with the four pairs of the prior
    assert 1 / (1 + math.exp(b)) == pytest.approx(share, abs=1e-3)


def test_equal_similarities_give_finite_values() -> None:
    t, b = fit_pairs(torch.full((8,), 0.5, dtype=torch.float64), torch.arange(8) % 2 == 0)
    assert math.isfinite(t)
    assert math.isfinite(b)
    assert 1 / (1 + math.exp(b - 0.5 * t)) == pytest.approx(0.5, abs=1e-6)


@pytest.mark.parametrize("images", [0, 1])
def test_without_pairs_the_boundary_is_a_half(images: int) -> None:
    rows = torch.ones(images, 3, dtype=torch.float64)
    t, b = fit_pairs(*pair_similarities(rows, torch.zeros(images, dtype=torch.long)))
    assert b / t == 0.5


def test_every_pair_is_compared_once() -> None:
    rows, labels = clusters(9)
    similarities, same = pair_similarities(rows, labels)
    expected = [(i, j) for i in range(9) for j in range(i + 1, 9)]
    assert len(similarities) == len(expected)
    for k, (i, j) in enumerate(expected):
        assert float(similarities[k]) == pytest.approx(dot(rows[i].tolist(), rows[j].tolist()))
        assert bool(same[k]) == (labels[i] == labels[j])


@pytest.mark.parametrize("by_class", [True, False])
def test_pairs_of_many_images_are_of_all_classes(by_class: bool) -> None:
    """Whether a folder orders images by class or a table alternates them."""
    labels = torch.arange(3).repeat_interleave(30) if by_class else torch.arange(90) % 3
    rows = torch.eye(3, dtype=torch.float64)[labels]
    similarities, same = pair_similarities(rows, labels, max_images=15)
    assert len(same) == 15 * 14 / 2
    assert 0.2 < float(same.double().mean()) < 0.5
    assert torch.equal(similarities, same.double())
    again, _ = pair_similarities(rows, labels, max_images=15)
    assert torch.equal(again, similarities)


def test_the_parts_of_a_mean_get_the_length_of_the_parts_of_rows() -> None:
    rows = torch.tensor([[0.6, 0.0, 0.0, 0.8], [0.0, 0.6, 0.8, 0.0]], dtype=torch.float64)
    mean = scale_parts(rows.mean(0, keepdim=True), rows, (2, 2))[0]
    assert mean.tolist() == pytest.approx([v * math.sqrt(0.5) for v in (0.6, 0.6, 0.8, 0.8)])
    assert torch.equal(scale_parts(rows, rows, ()), rows)


def test_all_thresholds_can_be_shifted_or_replaced() -> None:
    fitted = rule().with_class(torch.eye(DIM, dtype=torch.float64)[4:5].repeat(3, 1))
    shifted = fitted.shifted(0.1)
    torch.testing.assert_close(shifted.thresholds, fitted.thresholds + 0.1)
    assert shifted.threshold == fitted.threshold + 0.1
    same = fitted.with_threshold(0.3)
    assert same.thresholds.tolist() == [0.3] * 5
    assert fitted.thresholds.tolist() != same.thresholds.tolist(), "the rule itself is unchanged"
    for threshold in (-1.5, 2.0, math.nan):
        with pytest.raises(UserError, match="between −1 and 1"):
            fitted.with_threshold(threshold)
