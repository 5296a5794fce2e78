"""Scores of the data page against plain loops."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from scs_supcon.server import scores
from scs_supcon.server.scores import RunVectors, place_on_map

KNOWN = np.array([True, True, False, True, True, True, True])
LABELS = np.array([0, 1, -1, 2, 0, -1, 1])


def dot(a, b):
    return sum(x * y for x, y in zip(a.tolist(), b.tolist(), strict=True))


@pytest.fixture
def vectors():
    rows = np.random.default_rng(0).normal(size=(7, 4)).astype(np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    rows[~KNOWN] = 0
    return RunVectors(KNOWN, rows, LABELS)


def test_the_margin_is_the_own_class_minus_the_most_similar_other_one(vectors):
    means = torch.randn(3, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    model = SimpleNamespace(classifier=SimpleNamespace(rule=SimpleNamespace(means=means)))
    result = scores._margins(model, vectors)
    for row, (known, label) in enumerate(zip(KNOWN, LABELS, strict=True)):
        if not known or label < 0:
            assert math.isnan(result[row])
            continue
        similarities = [dot(vectors.common[row], mean) for mean in means]
        own = similarities.pop(label)
        assert result[row] == pytest.approx(own - max(similarities), abs=1e-6)


@pytest.mark.parametrize("rows", [2, 2000])
def test_the_difference_is_that_to_the_most_similar_other_image(vectors, rows, monkeypatch):
    monkeypatch.setattr(scores, "ROWS", rows)
    result = scores._differences(vectors)
    for row in range(7):
        if not KNOWN[row]:
            assert math.isnan(result[row])
            continue
        others = [i for i in range(7) if KNOWN[i] and i != row]
        most = max(dot(vectors.common[row], vectors.common[i]) for i in others)
        assert result[row] == pytest.approx(1 - most, abs=1e-6)


def test_many_images_are_compared_with_a_sample(vectors, monkeypatch):
    exact = scores._differences(vectors)
    monkeypatch.setattr(scores, "REFERENCES", 3)
    sample = scores._differences(vectors)
    assert (sample[KNOWN] >= exact[KNOWN] - 1e-6).all(), "others can only be less similar"
    assert np.isfinite(sample[KNOWN]).all()


def test_images_that_were_not_placed_are_beside_their_most_similar_one(vectors, monkeypatch):
    everywhere = place_on_map(vectors)
    assert [point is not None for point in everywhere] == KNOWN.tolist()
    monkeypatch.setattr(scores, "MAP_IMAGES", 4)
    monkeypatch.setattr(scores, "ROWS", 2)
    points = place_on_map(vectors)
    assert [point is not None for point in points] == KNOWN.tolist()
    known = np.flatnonzero(KNOWN)
    placed = np.sort(np.random.default_rng(0).choice(known, 4, replace=False)).tolist()
    for row in set(known.tolist()) - set(placed):
        nearest = max(placed, key=lambda i: dot(vectors.common[row], vectors.common[i]))
        assert math.dist(points[row], points[nearest]) < 0.03


def test_a_copy_looks_the_same_and_has_the_suggested_label_but_is_suspected_too(monkeypatch):
    """Rows 0 and 1 would exchange their labels; 2, 3 and 4 would pass them on in a circle."""
    monkeypatch.setattr(scores, "ROWS", 1)
    labels = np.array([0, 1, 0, 1, 2, 0, 1, 0, -1])
    suggested = np.array([1, 0, 1, 2, 0, 1, -1, 2, 1])
    places = [0, 0, 1, 1, 1, 2, 2, 3, 0]  # equal places: the same image
    vectors = RunVectors(labels >= 0, np.eye(4, dtype=np.float32)[places], labels)
    # Row 5: the copy with the suggested label is not suspected. Row 7: no copy. Row 8: not known.
    assert scores._copies(vectors, suggested).tolist() == [1, 0, 3, 4, 2, -1, -1, -1, -1]
