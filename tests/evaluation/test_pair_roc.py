"""Pairs against loops and scikit-learn."""

import itertools

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score, roc_curve
from torchmetrics.functional.classification import binary_auroc

from scs_supcon.evaluation import metrics
from scs_supcon.evaluation.pair_roc import pair_roc
from scs_supcon.nn.head import unit


def rows(n: int = 70, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 4, (n,), generator=draw)
    centres = torch.randn(4, 5, generator=draw)
    return unit(centres[labels] + torch.randn(n, 5, generator=draw)), labels


def pairs(vectors: torch.Tensor, labels: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
    similar = (vectors @ vectors.T).numpy()
    both = list(itertools.combinations(range(len(labels)), 2))
    same = np.array([bool(labels[a] == labels[b]) for a, b in both])
    return same, np.array([similar[a, b] for a, b in both])


@pytest.mark.parametrize("chunk", [2**24, 500])
def test_rates_and_area_agree_with_peers(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "CHUNK", chunk)
    vectors, labels = rows()
    same, similar = pairs(vectors, labels)
    found = pair_roc(vectors, labels, threshold=0.3)
    assert found["auc"] == pytest.approx(roc_auc_score(same, similar), abs=1e-6)
    peer = binary_auroc(torch.tensor(similar), torch.tensor(same).long())
    assert found["auc"] == pytest.approx(float(peer), abs=1e-6)
    assert found["true_positive_rate"] == pytest.approx((similar[same] >= 0.3).mean(), abs=1e-6)
    assert found["false_positive_rate"] == pytest.approx((similar[~same] >= 0.3).mean(), abs=1e-6)
    assert found["images"] == 70


def test_ties_count_half() -> None:
    vectors = torch.tensor([[1.0, 0], [1, 0], [0, 1], [0, 1]])
    labels = torch.tensor([0, 0, 0, 1])
    same, similar = pairs(vectors, labels)
    assert similar[same].tolist() == [1, 0, 0]
    found = pair_roc(vectors, labels, 0.5)
    assert found["auc"] == pytest.approx(roc_auc_score(same, similar), abs=1e-12)
    assert found["auc"] == pytest.approx((2.5 + 1 + 1) / 9, abs=1e-12)
    assert (found["true_positive_rate"], found["false_positive_rate"]) == (
        pytest.approx(1 / 3),
        pytest.approx(1 / 3),
    )


def test_points_lie_on_the_curve_and_reach_from_end_to_end() -> None:
    vectors, labels = rows(100, seed=1)
    same, similar = pairs(vectors, labels)
    fpr, tpr, _ = roc_curve(same, similar, drop_intermediate=False)
    points = np.array(pair_roc(vectors, labels, 0.0)["roc"])
    assert points[0].tolist() == [0, 0]
    assert points[-1].tolist() == [1, 1]
    assert (np.diff(points, axis=0) >= 0).all()
    assert len(points) <= 200
    for x, y in points:
        assert np.abs(fpr - x).min() + np.abs(tpr - y).min() < 2e-3
    area = np.trapezoid(points[:, 1], points[:, 0])
    assert area == pytest.approx(roc_auc_score(same, similar), abs=0.01)


def test_the_histogram_counts_every_pair_once() -> None:
    vectors, labels = rows()
    same, similar = pairs(vectors, labels)
    found = pair_roc(vectors, labels, 0.0)["histogram"]
    edges = np.array(found["edges"])
    assert len(edges) == 61
    assert (edges[0], edges[-1]) == (-1, 1)
    assert sum(found["same"]) == same.sum()
    assert sum(found["different"]) == (~same).sum()
    nudged = np.clip(similar, -1, 1)  # rounding may put 1 a bit beyond
    expected, _ = np.histogram(nudged[same], edges)
    assert np.abs(np.array(found["same"]) - expected).sum() <= 4, "values on an edge aside"


def test_what_cannot_be_said_is_none() -> None:
    one_class = pair_roc(torch.eye(3), torch.zeros(3, dtype=torch.long), 0.5)
    assert one_class["auc"] is None
    assert one_class["true_positive_rate"] == 0
    assert one_class["false_positive_rate"] is None
    assert one_class["roc"] == []
    alone = pair_roc(torch.eye(1), torch.zeros(1, dtype=torch.long), 0.5)
    assert alone["true_positive_rate"] is None
    assert sum(alone["histogram"]["same"]) == 0


def test_of_many_images_some_are_paired() -> None:
    vectors, labels = rows(200)
    whole, part = pair_roc(vectors, labels, 0.2), pair_roc(vectors, labels, 0.2, images=100)
    assert part["images"] == 100
    assert sum(part["histogram"]["same"]) + sum(part["histogram"]["different"]) == 100 * 99 // 2
    assert part["auc"] == pytest.approx(whole["auc"], abs=0.05)
