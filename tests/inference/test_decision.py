"""Probabilities, bars and added classes against their formulas spelt out."""

import math

import pytest
import torch

from scs_supcon.inference.classifier import LinearClassifier
from scs_supcon.inference.decision import DecisionRule, make_decision_rule, tightness

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


def judge(boundary: float | None = 0.5) -> DecisionRule:
    return make_decision_rule(classifier(), clusters(80), clusters(40, seed=1), "common", boundary)


def unit(row: list[float]) -> list[float]:
    length = math.sqrt(sum(v * v for v in row))
    return [v / length for v in row]


def dot(a: list[float], b: list[float]) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))


def test_tightness_is_the_mean_similarity_of_different_members() -> None:
    rows, labels = clusters(22)
    units = [unit(row) for row in rows.double().tolist()]
    found = tightness(torch.tensor(units, dtype=torch.float64), labels, 5)
    for c in range(4):
        members = [u for u, y in zip(units, labels.tolist(), strict=True) if y == c]
        pairs = [dot(a, b) for i, a in enumerate(members) for j, b in enumerate(members) if i != j]
        assert float(found[c]) == pytest.approx(sum(pairs) / len(pairs), rel=1e-12)
    assert found[4].isnan()


def test_without_added_classes_the_classifier_alone_decides() -> None:
    rows, _ = clusters(10, seed=2)
    torch.testing.assert_close(
        judge().judge(rows).probabilities, classifier().probabilities(rows), rtol=0, atol=0
    )


def test_none_of_these_means_below_the_threshold_for_every_class() -> None:
    held = judge(boundary=0.6)
    rows = torch.cat([clusters(40, seed=3)[0], -torch.ones(1, DIM), torch.zeros(1, DIM)])
    found = held.judge(rows)
    for i, row in enumerate(rows.double().tolist()):
        u = unit(row) if any(row) else row
        similarities = [dot(u, mean) for mean in held.means.tolist()]
        assert float(found.similarity[i]) == pytest.approx(max(similarities), abs=1e-12)
        assert int(found.nearest[i]) == similarities.index(max(similarities))
        assert bool(found.none_of_these[i]) == (max(similarities) < 0.6)
    assert found.none_of_these[-2:].all()
    assert not found.none_of_these[:-2].all()


def test_without_a_boundary_one_validation_image_in_twenty_is_turned_away() -> None:
    val = clusters(200, seed=1, noise=0.6)
    held = make_decision_rule(classifier(), clusters(80), val, "common", None)
    assert float(held.judge(val[0]).none_of_these.double().mean()) == pytest.approx(0.05)


def test_features_are_centred_before_their_direction_counts() -> None:
    train, val = clusters(80), clusters(40, seed=1)
    far = torch.full((DIM,), 100.0)
    shifted = make_decision_rule(
        classifier(), (train[0] + far, train[1]), (val[0] + far, val[1]), "features", None
    )
    here = make_decision_rule(classifier(), train, val, "features", None)
    rows, _ = clusters(10, seed=2)
    torch.testing.assert_close(
        shifted.judge(rows + far).similarity, here.judge(rows).similarity, rtol=1e-4, atol=1e-5
    )


def test_an_added_class_shares_probability_by_its_closeness() -> None:
    held = judge()
    members = torch.nn.functional.normalize(
        torch.eye(DIM)[[4] * 7] + 0.4 * clusters(7, seed=4)[0], dim=1
    ).double()
    more = held.with_class(members)
    rows = torch.cat([clusters(6, seed=5)[0], members[:2].float()])
    found = more.judge(rows).probabilities
    before = held.judge(rows).probabilities
    for i, row in enumerate(rows.double().tolist()):
        u = unit(row)
        weights = [
            math.exp(more.sharpness * (dot(u, mean) - q / 2))
            for mean, q in zip(more.means.tolist(), more.tightness.tolist(), strict=True)
        ]
        share = weights[4] / sum(weights)
        assert float(found[i, 4]) == pytest.approx(share, rel=1e-9)
        for c in range(4):
            assert float(found[i, c]) == pytest.approx((1 - share) * float(before[i, c]), rel=1e-9)
    assert (found[-2:].argmax(1) == 4).all()


def test_a_loose_added_class_has_a_lower_bar() -> None:
    held = judge(boundary=0.6)
    usual = float(held.tightness.mean())
    loose = torch.tensor([[0.0, 0, 0, 0, 1, 0], [0, 0, 0, 0, 0.6, 0.8]], dtype=torch.float64)
    more = held.with_class(loose)
    assert more.bars[:4].tolist() == [0.6] * 4
    assert float(more.tightness[4]) == pytest.approx(0.6)
    assert float(more.bars[4]) == pytest.approx(0.6 * 0.6 / usual)
    tight = held.with_class(torch.eye(DIM, dtype=torch.float64)[[5, 5, 5]])
    assert float(tight.bars[4]) == 0.6


def test_a_single_image_counts_as_usually_tight() -> None:
    held = judge()
    more = held.with_class(torch.eye(DIM, dtype=torch.float64)[5:])
    assert float(more.tightness[4]) == pytest.approx(float(held.tightness.mean()))


def test_a_boundary_below_zero_is_the_bar_of_every_class() -> None:
    more = judge(boundary=-0.2).with_class(torch.eye(DIM, dtype=torch.float64)[4:])
    assert more.bars.tolist() == [-0.2] * 5


def test_classes_with_one_image_are_no_trouble() -> None:
    rows, labels = clusters(4)
    found = make_decision_rule(classifier(), (rows, labels), (rows, labels), "common", None)
    assert found.tightness.isfinite().all()
    assert found.judge(rows).probabilities.isfinite().all()
