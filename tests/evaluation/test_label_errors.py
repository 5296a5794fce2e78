"""Wrong labels are found, right ones mostly left alone."""

import math

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from scs_supcon.evaluation.label_errors import deal, described, out_of_fold, suspects


def flipped(labels: torch.Tensor, share: float, classes: int) -> tuple[torch.Tensor, set[int]]:
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


def test_most_flipped_labels_are_found_and_put_right(digits) -> None:
    rows, truth = digits
    labels, wrong = flipped(truth, 0.05, 10)
    found = suspects(out_of_fold(rows, labels, 10), labels, most=len(wrong))
    hits = [one for one in found if one.row in wrong]
    assert len(hits) >= 0.7 * len(wrong), "of those flipped"
    assert len(hits) >= 0.85 * len(found), "of those named"
    right = [one.suggested == truth[one.row] for one in hits]
    assert np.mean(right) > 0.95
    first = found[:60]
    assert sum(one.row in wrong for one in first) >= 57, "the most suspicious come first"


def test_right_labels_of_easy_images_are_left_alone(digits) -> None:
    rows, labels = digits
    assert len(suspects(out_of_fold(rows, labels, 10), labels)) < 0.02 * len(labels)


def reference(p: list[list[float]], labels: list[int]) -> list[tuple[int, int]]:
    """Confident learning spelt out: suspicious rows and what is suggested, by their gap."""
    bars = {}
    for c in range(len(p[0])):
        own = [row[c] for row, label in zip(p, labels, strict=True) if label == c]
        bars[c] = sum(own) / len(own) if own else math.inf
    found = []
    for i, (row, label) in enumerate(zip(p, labels, strict=True)):
        rivals = [c for c in range(len(row)) if c != label and row[c] >= bars[c]]
        if row[label] < bars[label] and rivals:
            best = max(rivals, key=lambda c: row[c])
            if row[best] > row[label]:
                found.append((row[label] - row[best], i, best))
    return [(i, best) for _, i, best in sorted(found)]


@pytest.mark.parametrize("seed", range(3))
def test_the_rule_is_confident_learning(seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    p = (2 * torch.randn(60, 5, generator=draw, dtype=torch.float64)).softmax(1)
    labels = torch.randint(0, 4, (60,), generator=draw)
    found = suspects(p, labels)
    expected = reference(p.tolist(), labels.tolist())
    assert [(one.row, one.suggested) for one in found] == expected
    assert expected
    for one in found:
        assert one.own_probability == float(p[one.row, labels[one.row]])
        assert one.suggested_probability == float(p[one.row, one.suggested])
    assert suspects(p, labels, most=2) == found[:2]


def test_folds_are_even_and_hold_the_classes_in_proportion() -> None:
    labels = torch.tensor([0] * 50 + [1] * 23 + [2] * 4)
    fold_of = deal(labels, 5, seed=0)
    assert np.ptp(np.bincount(fold_of)) <= 1
    for label in range(3):
        counts = np.bincount(fold_of[labels == label], minlength=5)
        assert np.ptp(counts) <= 1
    assert torch.equal(fold_of, deal(labels, 5, seed=0))
    assert not torch.equal(fold_of, deal(labels, 5, seed=1))


def test_nobody_is_judged_by_a_classifier_that_saw_it() -> None:
    """Noise cannot be told from noise: were a row seen, its own label would be favoured."""
    draw = torch.Generator().manual_seed(0)
    rows = torch.randn(200, 150, generator=draw)
    labels = torch.arange(200) % 2
    p = out_of_fold(rows, labels, 2)
    assert p[torch.arange(200), labels].mean() == pytest.approx(0.5, abs=0.05)
    assert torch.allclose(p.sum(1), torch.ones(200, dtype=torch.float64))


def test_a_class_with_one_image_is_judged_all_the_same() -> None:
    rows = torch.randn(11, 3)
    labels = torch.tensor([0, 1] * 5 + [2])
    p = out_of_fold(rows, labels, 4)
    assert torch.isfinite(p).all()


def test_suspects_are_described_by_name() -> None:
    p = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.95, 0.05], [0.1, 0.9]], dtype=torch.float64)
    labels = torch.tensor([0, 0, 1, 1])
    assert described(suspects(p, labels), list("abcd"), labels, ("cat", "dog")) == [
        {
            "name": "c",
            "label": "dog",
            "suggested": "cat",
            "own_probability": 0.05,
            "suggested_probability": 0.95,
        }
    ]
