"""Pair statistics against scikit-learn and torchmetrics."""

import itertools

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score, roc_curve
from torchmetrics.functional.classification import binary_auroc

from scs_supcon.evaluation import metrics
from scs_supcon.evaluation.pair_roc import pair_statistics
from scs_supcon.nn.head import unit


def rows(n: int = 70, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 4, (n,), generator=draw)
    centres = torch.randn(4, 5, generator=draw)
    return unit(centres[labels] + torch.randn(n, 5, generator=draw)), labels


def pairs(vectors: torch.Tensor, labels: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
    similarity = (vectors @ vectors.T).numpy()
    indices = list(itertools.combinations(range(len(labels)), 2))
    same = np.array([bool(labels[a] == labels[b]) for a, b in indices])
    return same, np.array([similarity[a, b] for a, b in indices])


@pytest.mark.parametrize("chunk", [2**24, 500])
def test_rates_and_auc_agree_with_scikit_learn_and_torchmetrics(
    chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics, "CHUNK", chunk)
    vectors, labels = rows()
    same, similarity = pairs(vectors, labels)
    statistics = pair_statistics(vectors, labels, "boundary", 0.3)
    assert statistics.auc == pytest.approx(roc_auc_score(same, similarity), abs=1e-6)
    peer = binary_auroc(torch.tensor(similarity), torch.tensor(same).long())
    assert statistics.auc == pytest.approx(float(peer), abs=1e-6)
    assert statistics.true_positive_rate == pytest.approx(
        (similarity[same] >= 0.3).mean(), abs=1e-6
    )
    assert statistics.false_positive_rate == pytest.approx(
        (similarity[~same] >= 0.3).mean(), abs=1e-6
    )
    assert statistics.images == 70


def test_ties_count_half() -> None:
    vectors = torch.tensor([[1.0, 0], [1, 0], [0, 1], [0, 1]])
    labels = torch.tensor([0, 0, 0, 1])
    same, similarity = pairs(vectors, labels)
    assert similarity[same].tolist() == [1, 0, 0]
    statistics = pair_statistics(vectors, labels, "boundary", 0.5)
    assert statistics.auc == pytest.approx(roc_auc_score(same, similarity), abs=1e-12)
    assert statistics.auc == pytest.approx((2.5 + 1 + 1) / 9, abs=1e-12)
    assert (statistics.true_positive_rate, statistics.false_positive_rate) == (
        pytest.approx(1 / 3),
        pytest.approx(1 / 3),
    )


def test_the_roc_points_lie_on_the_curve() -> None:
    vectors, labels = rows(100, seed=1)
    same, similarity = pairs(vectors, labels)
    fpr, tpr, _ = roc_curve(same, similarity, drop_intermediate=False)
    points = np.array(pair_statistics(vectors, labels, "boundary", 0.0).roc)
    assert points[0].tolist() == [0, 0]
    assert points[-1].tolist() == [1, 1]
    assert (np.diff(points, axis=0) >= 0).all()
    assert len(points) <= 200
    for x, y in points:
        assert np.abs(fpr - x).min() + np.abs(tpr - y).min() < 2e-3
    area = np.trapezoid(points[:, 1], points[:, 0])
    assert area == pytest.approx(roc_auc_score(same, similarity), abs=0.01)


def test_the_histogram_counts_every_pair_once() -> None:
    vectors, labels = rows()
    same, similarity = pairs(vectors, labels)
    histogram = pair_statistics(vectors, labels, "boundary", 0.0).histogram
    edges = np.array(histogram.edges)
    assert len(edges) == 61
    assert (edges[0], edges[-1]) == (-1, 1)
    assert sum(histogram.same) == same.sum()
    assert sum(histogram.different) == (~same).sum()
    clipped = np.clip(similarity, -1, 1)  # rounding may exceed 1
    expected, _ = np.histogram(clipped[same], edges)
    assert np.abs(np.array(histogram.same) - expected).sum() <= 4, "except values on an edge"


def test_rates_without_pairs_are_none() -> None:
    one_class = pair_statistics(torch.eye(3), torch.zeros(3, dtype=torch.long), "boundary", 0.5)
    assert one_class.auc is None
    assert one_class.true_positive_rate == 0
    assert one_class.false_positive_rate is None
    assert one_class.roc == ()
    alone = pair_statistics(torch.eye(1), torch.zeros(1, dtype=torch.long), "boundary", 0.5)
    assert alone.true_positive_rate is None
    assert sum(alone.histogram.same) == 0


def test_at_most_max_images_are_paired() -> None:
    vectors, labels = rows(200)
    whole = pair_statistics(vectors, labels, "boundary", 0.2)
    half = pair_statistics(vectors, labels, "boundary", 0.2, max_images=100)
    assert half.images == 100
    assert sum(half.histogram.same) + sum(half.histogram.different) == 100 * 99 // 2
    assert half.auc == pytest.approx(whole.auc, abs=0.05)
