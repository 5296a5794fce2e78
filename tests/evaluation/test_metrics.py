"""Metrics against their definitions, scikit-learn and torchmetrics."""

import math

import numpy as np
import pytest
import torch
from sklearn.metrics import log_loss, top_k_accuracy_score
from sklearn.neighbors import KNeighborsClassifier, NearestCentroid
from torchmetrics.functional.classification import (
    multiclass_accuracy,
    multiclass_calibration_error,
    multiclass_f1_score,
)

from scs_supcon.evaluation import metrics
from scs_supcon.inference.decision import class_means

CLASSES = 7


def predictions(n: int = 400, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Make probabilities of an overconfident classifier and labels without the last classes."""
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


def test_top_k_agrees_with_scikit_learn_and_torchmetrics() -> None:
    scores, labels = predictions()
    for k in (1, 3, 5, CLASSES):
        result = metrics.top_k(scores, labels, k)
        expected = (
            top_k_accuracy_score(labels.numpy(), scores.numpy(), k=k, labels=range(CLASSES))
            if k < CLASSES
            else 1.0
        )
        assert result == pytest.approx(expected, abs=1e-12)
        expected = multiclass_accuracy(scores, labels, CLASSES, average="micro", top_k=k)
        assert result == pytest.approx(float(expected), abs=1e-6)


def test_top_k_resolves_ties_in_favour_of_the_first_class() -> None:
    scores = np.array([[0.5, 0.5, 0.0], [0.5, 0.5, 0.0], [0.0, 0.0, 0.0]])
    labels = np.array([0, 1, 2])
    assert metrics.top_k(scores, labels, 1) == pytest.approx(1 / 3)
    assert metrics.top_k(scores, labels, 2) == pytest.approx(2 / 3)
    assert metrics.top_k(scores, labels, 5) == 1.0


def class_score_reference(predicted: list[int], labels: list[int]) -> tuple[float, float]:
    """Macro-F1 and balanced accuracy over the classes present, from their definitions."""
    f1, recall = [], []
    for c in sorted(set(labels)):
        pairs = list(zip(predicted, labels, strict=True))
        correct = sum(p == y == c for p, y in pairs)
        recall.append(correct / labels.count(c))
        f1.append(2 * correct / (labels.count(c) + predicted.count(c)))
    return sum(f1) / len(f1), sum(recall) / len(recall)


def test_macro_f1_and_balanced_accuracy_agree_with_their_definitions() -> None:
    scores, labels = predictions()
    predicted = scores.argmax(1)
    f1, recall = class_score_reference(predicted.tolist(), labels.tolist())
    assert metrics.macro_f1(predicted, labels) == pytest.approx(f1, abs=1e-12)
    assert metrics.macro_f1(predicted.numpy(), labels.numpy()) == pytest.approx(f1, abs=1e-12)
    assert metrics.balanced_accuracy(predicted, labels) == pytest.approx(recall, abs=1e-12)
    present = labels.unique()
    expected = multiclass_f1_score(predicted, labels, CLASSES, average="none")[present].mean()
    assert metrics.macro_f1(predicted, labels) == pytest.approx(float(expected), abs=1e-6)


def test_absent_classes_do_not_count() -> None:
    labels = np.array([0, 0, 4])
    assert metrics.macro_f1(labels, labels) == 1.0
    assert metrics.macro_f1(np.array([0, 1, 4]), labels) == pytest.approx((2 / 3 + 1) / 2)
    assert metrics.balanced_accuracy(np.array([0, 1, 4]), labels) == pytest.approx(0.75)


@pytest.mark.parametrize("bins", [1, 10, 15])
def test_calibration_error_agrees_with_its_definition(bins: int) -> None:
    probabilities, labels = predictions()
    result = metrics.reliability(probabilities, labels, bins).ece
    expected = calibration_reference(probabilities.tolist(), labels.tolist(), bins)
    assert result == pytest.approx(expected, abs=1e-12)
    expected = multiclass_calibration_error(probabilities, labels, CLASSES, n_bins=bins)
    assert result == pytest.approx(float(expected), abs=1e-6)


def test_calibration_error_at_bin_edges() -> None:
    certain = np.eye(3)
    assert metrics.reliability(certain, np.array([0, 1, 2])).ece == 0.0
    assert metrics.reliability(certain, np.array([1, 2, 0])).ece == 1.0
    half = np.array([[0.5, 0.5], [0.5, 0.5]])
    assert metrics.reliability(half, np.array([0, 1]), bins=2).ece == 0.0


def test_negative_log_likelihood_agrees_with_scikit_learn() -> None:
    probabilities, labels = predictions()
    expected = log_loss(labels.numpy(), probabilities.numpy(), labels=range(CLASSES))
    assert metrics.negative_log_likelihood(probabilities, labels) == pytest.approx(
        expected, abs=1e-12
    )
    assert metrics.negative_log_likelihood(np.eye(2), np.array([0, 1])) == 0.0
    assert metrics.negative_log_likelihood(np.eye(2), np.array([1, 1])) == math.inf


@pytest.mark.parametrize(("correct", "n"), [(240, 300), (1, 7), (0, 5), (5, 5), (1, 1)])
def test_the_interval_is_wilsons(correct: int, n: int) -> None:
    flags = np.arange(n) < correct
    low, high = metrics.accuracy_interval(flags)
    z, share = 1.959963984540054, correct / n
    middle = (share + z**2 / (2 * n)) / (1 + z**2 / n)
    reach = z * math.sqrt(share * (1 - share) / n + z**2 / (4 * n**2)) / (1 + z**2 / n)
    assert (low, high) == pytest.approx((max(0, middle - reach), min(1, middle + reach)), abs=1e-12)
    assert 0 <= low < high <= 1
    assert metrics.accuracy_interval(torch.as_tensor(flags)) == (low, high)


def embeddings(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(seed)
    centres = torch.randn(CLASSES, 16, generator=draw)
    train_labels = torch.randint(0, CLASSES, (150,), generator=draw)
    labels = torch.randint(0, CLASSES, (90,), generator=draw)
    train = centres[train_labels] + 1.5 * torch.randn(150, 16, generator=draw)
    queries = centres[labels] + 1.5 * torch.randn(90, 16, generator=draw)
    return train, train_labels, queries, labels


@pytest.mark.parametrize("k", [1, 10, 1000])
def test_knn_agrees_with_scikit_learn(k: int, monkeypatch: pytest.MonkeyPatch) -> None:
    train, train_labels, queries, labels = embeddings()
    expected_model = KNeighborsClassifier(
        min(k, len(train)), metric="cosine", weights=lambda d: np.exp((1 - d) / 0.07)
    ).fit(train.numpy(), train_labels.numpy())
    expected = expected_model.predict_proba(queries.numpy())
    whole = metrics.knn_scores(train, train_labels, queries, k)
    np.testing.assert_allclose(whole / whole.sum(1, keepdim=True), expected, atol=1e-5)
    accuracy = metrics.knn_accuracy(train, train_labels, queries, labels, k)
    assert accuracy == pytest.approx(expected_model.score(queries.numpy(), labels.numpy()))
    monkeypatch.setattr(metrics, "CHUNK", 300)
    in_chunks = metrics.knn_scores(train, train_labels, queries, k)
    torch.testing.assert_close(in_chunks, whole, rtol=1e-4, atol=0)


def test_nearest_mean_agrees_with_scikit_learn() -> None:
    train, train_labels, queries, labels = embeddings()
    lengths = train.norm(dim=1, keepdim=True)
    expected_model = NearestCentroid().fit((train / lengths).numpy(), train_labels.numpy())
    expected = expected_model.score(queries / queries.norm(dim=1, keepdim=True), labels)
    result = metrics.nearest_mean_accuracy(train, train_labels, queries, labels)
    assert result == pytest.approx(expected)
    means = class_means(train, train_labels, CLASSES)
    np.testing.assert_allclose(means, expected_model.centroids_, atol=1e-6)


def test_a_class_without_training_rows_is_never_predicted() -> None:
    train = np.array([[1.0, 0.0], [-1.0, 0.0]])
    queries = np.array([[0.0, 1.0]])
    assert metrics.nearest_mean_accuracy(train, np.array([0, 2]), queries, np.array([1])) == 0.0


def test_chunks_cover_all_rows_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "CHUNK", 100)
    covered = [row for chunk in metrics.chunks(25, 30) for row in range(25)[chunk]]
    assert covered == list(range(25))
    assert all(chunk.stop - chunk.start <= 3 for chunk in metrics.chunks(25, 30))
