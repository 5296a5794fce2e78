"""Suspected label errors."""

import math

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from scs_supcon.evaluation.label_errors import out_of_fold, stratified_folds, suspected_labels
from scs_supcon.evaluation.record import LabelError


def suspects(
    p: torch.Tensor, labels: torch.Tensor, max_errors: int = 60
) -> list[tuple[int, int, LabelError]]:
    """Return row, suggested class and record of each suspected label."""
    rows, classes = list(map(str, range(len(labels)))), list(map(str, range(p.shape[1])))
    errors = suspected_labels(p, labels, rows, classes, max_errors)
    return [(int(error.image), int(error.suggested), error) for error in errors]


def flip_labels(labels: torch.Tensor, share: float, classes: int) -> tuple[torch.Tensor, set[int]]:
    """Return labels of which a share is wrong, and the rows of the wrong labels."""
    draw = np.random.default_rng(1)
    rows = draw.choice(len(labels), int(share * len(labels)), replace=False)
    changed = labels.clone()
    changed[rows] = (
        labels[rows] + torch.from_numpy(draw.integers(1, classes, len(rows)))
    ) % classes
    return changed, set(rows.tolist())


@pytest.fixture(scope="module")
def digits() -> tuple[torch.Tensor, torch.Tensor]:
    pixels, labels = load_digits(return_X_y=True)
    return torch.tensor(pixels, dtype=torch.float32), torch.tensor(labels)


def test_most_flipped_labels_are_found_and_corrected(digits) -> None:
    rows, truth = digits
    labels, wrong = flip_labels(truth, 0.05, 10)
    suspected = suspects(out_of_fold(rows, labels, 10), labels, max_errors=len(wrong))
    hits = [(row, suggested) for row, suggested, _ in suspected if row in wrong]
    assert len(hits) >= 0.7 * len(wrong), "recall"
    assert len(hits) >= 0.85 * len(suspected), "precision"
    assert np.mean([suggested == int(truth[row]) for row, suggested in hits]) > 0.95
    assert sum(row in wrong for row, _, _ in suspected[:60]) >= 57, "most suspicious first"


def test_correct_labels_of_easy_images_are_not_suspected(digits) -> None:
    rows, labels = digits
    assert len(suspects(out_of_fold(rows, labels, 10), labels)) < 0.02 * len(labels)


def reference(p: list[list[float]], labels: list[int]) -> list[tuple[int, int]]:
    """Confident learning in plain loops: suspicious rows and suggested classes, by their gap."""
    thresholds = {}
    for c in range(len(p[0])):
        probabilities = [row[c] for row, label in zip(p, labels, strict=True) if label == c]
        thresholds[c] = sum(probabilities) / len(probabilities) if probabilities else math.inf
    suspected = []
    for i, (row, label) in enumerate(zip(p, labels, strict=True)):
        rivals = [c for c in range(len(row)) if c != label and row[c] >= thresholds[c]]
        if row[label] < thresholds[label] and rivals:
            best = max(rivals, key=lambda c: row[c])
            if row[best] > row[label]:
                suspected.append((row[label] - row[best], i, best))
    return [(i, best) for _, i, best in sorted(suspected)]


@pytest.mark.parametrize("seed", range(3))
def test_suspected_labels_agree_with_the_reference(seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    p = (2 * torch.randn(60, 5, generator=draw, dtype=torch.float64)).softmax(1)
    labels = torch.randint(0, 4, (60,), generator=draw)
    suspected = suspects(p, labels)
    expected = reference(p.tolist(), labels.tolist())
    assert expected
    assert [(row, suggested) for row, suggested, _ in suspected] == expected
    for row, suggested, error in suspected:
        assert error.label_probability == float(p[row, labels[row]])
        assert error.suggested_probability == float(p[row, suggested])
    assert suspects(p, labels, max_errors=2) == suspected[:2]


def test_folds_are_stratified() -> None:
    labels = torch.tensor([0] * 50 + [1] * 23 + [2] * 4)
    fold_of = stratified_folds(labels, 5, seed=0)
    assert np.ptp(np.bincount(fold_of)) <= 1
    for label in range(3):
        counts = np.bincount(fold_of[labels == label], minlength=5)
        assert np.ptp(counts) <= 1
    assert torch.equal(fold_of, stratified_folds(labels, 5, seed=0))
    assert not torch.equal(fold_of, stratified_folds(labels, 5, seed=1))


def test_no_image_is_predicted_by_a_classifier_fitted_to_it() -> None:
    """On pure noise, a classifier fitted to an image would favour its label."""
    draw = torch.Generator().manual_seed(0)
    rows = torch.randn(200, 150, generator=draw)
    labels = torch.arange(200) % 2
    p = out_of_fold(rows, labels, 2)
    assert p[torch.arange(200), labels].mean() == pytest.approx(0.5, abs=0.05)
    assert torch.allclose(p.sum(1), torch.ones(200, dtype=torch.float64))


def test_a_class_with_one_image_gets_finite_probabilities() -> None:
    rows = torch.randn(11, 3)
    labels = torch.tensor([0, 1] * 5 + [2])
    p = out_of_fold(rows, labels, 4)
    assert torch.isfinite(p).all()


def test_label_errors_have_names_and_probabilities() -> None:
    p = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.95, 0.05], [0.1, 0.9]], dtype=torch.float64)
    labels = torch.tensor([0, 0, 1, 1])
    assert suspected_labels(p, labels, list("abcd"), ("cat", "dog")) == (
        LabelError(
            image="c",
            label="dog",
            suggested="cat",
            label_probability=0.05,
            suggested_probability=0.95,
        ),
    )
