"""Maps: neighbours stay neighbours, the same every time, within the frame."""

import numpy as np
import pytest

from scs_supcon.report.maps import lay_out


def clusters(count, dim=8):
    rng = np.random.default_rng(1)
    labels = np.arange(count) % 3
    rows = rng.normal(size=(3, dim))[labels] + 0.1 * rng.normal(size=(count, dim))
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32), labels


@pytest.mark.parametrize("count", [9, 60])
def test_classmates_lie_together(count):
    vectors, labels = clusters(count)
    places = lay_out(vectors)
    assert places.shape == (count, 2)
    assert places.min() >= -1e-6
    assert places.max() <= 1 + 1e-6
    for at in range(count):
        gaps = np.linalg.norm(places - places[at], axis=1)
        gaps[at] = np.inf
        assert labels[gaps.argmin()] == labels[at]


def test_the_same_vectors_give_the_same_map():
    vectors, _ = clusters(40)
    assert np.array_equal(lay_out(vectors), lay_out(vectors))


@pytest.mark.parametrize("count", [0, 1, 2])
def test_almost_nothing_has_a_map_too(count):
    places = lay_out(np.eye(2, dtype=np.float32)[:count])
    assert places.shape == (count, 2)
    assert np.isfinite(places).all()


def test_one_and_the_same_vector_lies_in_the_middle():
    assert lay_out(np.ones((5, 4), np.float32)) == pytest.approx(np.full((5, 2), 0.5))
