"""Metrics against their definitions spelt out, scikit-learn and torchmetrics."""

import math
import warnings

import numpy as np
import pytest
import torch
from scipy.stats import binomtest
from sklearn.metrics import balanced_accuracy_score, f1_score, log_loss, top_k_accuracy_score
from sklearn.neighbors import KNeighborsClassifier, NearestCentroid
from torchmetrics.functional.classification import (
    multiclass_accuracy,
    multiclass_calibration_error,
    multiclass_f1_score,
)

from scs_supcon.evaluation import metrics

CLASSES = 7


def predictions(n: int = 400, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Probabilities of an over-confident classifier, and labels in which class 5 never occurs."""
    draw = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, CLASSES - 2, (n,), generator=draw)
    logits = torch.randn(n, CLASSES, generator=draw, dtype=torch.float64) * 2
    logits[torch.arange(n), labels] += 1
    return logits.softmax(1), labels


def calibration_reference(probabilities: list[list[float]], labels: list[int], bins: int) -> float:
    total = 0.0
    for m in range(1, bins + 1):
        rows = [i for i, row in enumerate(probabilities) if (m - 1) / bins < max(row) <= m / bins]
        if rows:
            accuracy = sum(
                probabilities[i].index(max(probabilities[i])) == labels[i] for i in rows
            ) / len(rows)
            confidence = sum(max(probabilities[i]) for i in rows) / len(rows)
            total += len(rows) / len(labels) * abs(accuracy - confidence)
    return total


def test_top_k_agrees_with_peers() -> None:
    scores, labels = predictions()
    for k in (1, 3, 5, CLASSES):
        found = metrics.top_k(scores, labels, k)
        expected = (
            top_k_accuracy_score(labels.numpy(), scores.numpy(), k=k, labels=range(CLASSES))
            if k < CLASSES
            else 1.0
        )
        assert found == pytest.approx(expected, abs=1e-12)
        peer = multiclass_accuracy(scores, labels, CLASSES, average="micro", top_k=k)
        assert found == pytest.approx(float(peer), abs=1e-6)


def test_top_k_gives_ties_to_the_first_class() -> None:
    scores = np.array([[0.5, 0.5, 0.0], [0.5, 0.5, 0.0], [0.0, 0.0, 0.0]])
    labels = np.array([0, 1, 2])
    assert metrics.top_k(scores, labels, 1) == pytest.approx(1 / 3)
    assert metrics.top_k(scores, labels, 2) == pytest.approx(2 / 3)
    assert metrics.top_k(scores, labels, 5) == 1.0


def test_macro_f1_and_balanced_accuracy_agree_with_peers() -> None:
    scores, labels = predictions()
    predicted = scores.argmax(1)
    present = labels.unique()
    expected = f1_score(labels.numpy(), predicted.numpy(), average="macro", labels=present.numpy())
    assert metrics.macro_f1(predicted, labels) == pytest.approx(expected, abs=1e-12)
    peer = multiclass_f1_score(predicted, labels, CLASSES, average="none")[present].mean()
    assert metrics.macro_f1(predicted.numpy(), labels.numpy()) == pytest.approx(
        float(peer), abs=1e-6
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a predicted class without images: wanted
        expected = balanced_accuracy_score(labels.numpy(), predicted.numpy())
    assert metrics.balanced_accuracy(predicted, labels) == pytest.approx(expected, abs=1e-12)


def test_classes_that_are_not_there_are_left_out_of_macro_f1() -> None:
    labels = np.array([0, 0, 4])
    assert metrics.macro_f1(labels, labels) == 1.0
    assert metrics.macro_f1(np.array([0, 1, 4]), labels) == pytest.approx((2 / 3 + 1) / 2)
    assert metrics.balanced_accuracy(np.array([0, 1, 4]), labels) == pytest.approx(0.75)


@pytest.mark.parametrize("bins", [1, 10, 15])
def test_calibration_error_is_its_definition(bins: int) -> None:
    probabilities, labels = predictions()
    found = metrics.calibration_error(probabilities, labels, bins)
    expected = calibration_reference(probabilities.tolist(), labels.tolist(), bins)
    assert found == pytest.approx(expected, abs=1e-12)
    peer = multiclass_calibration_error(probabilities, labels, CLASSES, n_bins=bins)
    assert found == pytest.approx(float(peer), abs=1e-6)


def test_calibration_error_at_the_edges_of_bins() -> None:
    certain = np.eye(3)
    assert metrics.calibration_error(certain, np.array([0, 1, 2])) == 0.0
    assert metrics.calibration_error(certain, np.array([1, 2, 0])) == 1.0
    half = np.array([[0.5, 0.5], [0.5, 0.5]])
    assert metrics.calibration_error(half, np.array([0, 1]), bins=2) == 0.0


def test_negative_log_likelihood_agrees_with_scikit_learn() -> None:
    probabilities, labels = predictions()
    expected = log_loss(labels.numpy(), probabilities.numpy(), labels=range(CLASSES))
    assert metrics.negative_log_likelihood(probabilities, labels) == pytest.approx(
        expected, abs=1e-12
    )
    assert metrics.negative_log_likelihood(np.eye(2), np.array([0, 1])) == 0.0
    assert metrics.negative_log_likelihood(np.eye(2), np.array([1, 1])) == math.inf


def test_the_summary_holds_each_metric_once() -> None:
    probabilities, labels = predictions()
    found = metrics.summary(probabilities, labels)
    assert list(found) == ["acc1", "acc5", "macro_f1", "balanced_acc", "ece", "nll"]
    assert found == metrics.summary(probabilities.numpy(), labels.numpy())
    assert found["acc1"] == metrics.top_k(probabilities, labels)


@pytest.mark.parametrize(("right", "n"), [(240, 300), (1, 7), (0, 5), (5, 5), (1, 1)])
def test_the_interval_is_wilsons(right: int, n: int) -> None:
    flags = np.arange(n) < right
    expected = binomtest(right, n).proportion_ci(0.95, method="wilson")
    low, high = metrics.accuracy_interval(flags)
    assert (low, high) == pytest.approx((expected.low, expected.high), abs=1e-12)
    assert 0 <= low < high <= 1
    assert metrics.accuracy_interval(torch.as_tensor(flags)) == (low, high)


def embeddings(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(seed)
    centres = torch.randn(CLASSES, 16, generator=draw)
    known_labels = torch.randint(0, CLASSES, (150,), generator=draw)
    labels = torch.randint(0, CLASSES, (90,), generator=draw)
    known = centres[known_labels] + 1.5 * torch.randn(150, 16, generator=draw)
    queries = centres[labels] + 1.5 * torch.randn(90, 16, generator=draw)
    return known, known_labels, queries, labels


@pytest.mark.parametrize("k", [1, 10, 1000])
def test_neighbours_agree_with_scikit_learn(k: int, monkeypatch: pytest.MonkeyPatch) -> None:
    known, known_labels, queries, labels = embeddings()
    peer = KNeighborsClassifier(
        min(k, len(known)), metric="cosine", weights=lambda d: np.exp((1 - d) / 0.07)
    ).fit(known.numpy(), known_labels.numpy())
    expected = peer.predict_proba(queries.numpy())
    whole = metrics.knn_scores(known, known_labels, queries, k)
    np.testing.assert_allclose(whole / whole.sum(1, keepdim=True), expected, atol=1e-5)
    accuracy = metrics.knn_accuracy(known, known_labels, queries, labels, k)
    assert accuracy == pytest.approx(peer.score(queries.numpy(), labels.numpy()))
    monkeypatch.setattr(metrics, "CHUNK", 300)
    in_parts = metrics.knn_scores(known, known_labels, queries, k)
    torch.testing.assert_close(in_parts, whole, rtol=1e-4, atol=0)


def test_the_nearest_mean_agrees_with_scikit_learn() -> None:
    known, known_labels, queries, labels = embeddings()
    lengths = known.norm(dim=1, keepdim=True)
    peer = NearestCentroid().fit((known / lengths).numpy(), known_labels.numpy())
    expected = peer.score(queries / queries.norm(dim=1, keepdim=True), labels)
    found = metrics.nearest_mean_accuracy(known, known_labels, queries, labels)
    assert found == pytest.approx(expected)
    means = metrics.class_means(known, known_labels, CLASSES)
    np.testing.assert_allclose(means, peer.centroids_, atol=1e-6)


def test_a_class_without_known_rows_is_never_the_nearest() -> None:
    known = np.array([[1.0, 0.0], [-1.0, 0.0]])
    queries = np.array([[0.0, 1.0]])
    assert metrics.nearest_mean_accuracy(known, np.array([0, 2]), queries, np.array([1])) == 0.0


def test_counts_by_class_cover_every_class_asked_for() -> None:
    table = metrics.confusion([1, 1, 0], [1, 0, 0], classes=4)
    expected = torch.zeros(4, 4, dtype=torch.float64)
    expected[1, 1] = expected[0, 1] = expected[0, 0] = 1
    assert torch.equal(table, expected)
    assert metrics.confusion([2], [0]).shape == (3, 3)


def test_rows_are_chosen_evenly() -> None:
    assert metrics.evenly_spaced(10, 4).tolist() == [0, 2, 5, 7]
    assert metrics.evenly_spaced(3, 5).tolist() == [0, 1, 2]
    assert metrics.evenly_spaced(0, 5).tolist() == []


def test_chunks_cover_all_rows_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "CHUNK", 100)
    covered = [row for some in metrics.chunks(25, 30) for row in range(25)[some]]
    assert covered == list(range(25))
    assert all(some.stop - some.start <= 3 for some in metrics.chunks(25, 30))
