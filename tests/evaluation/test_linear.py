"""The closed-form classifier against scikit-learn's linear discriminant."""

import numpy as np
import pytest
import torch
from sklearn.covariance import ledoit_wolf
from sklearn.datasets import load_digits
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

from scs_supcon.evaluation import linear


@pytest.fixture(scope="module")
def digits() -> tuple[torch.Tensor, torch.Tensor]:
    pixels, labels = load_digits(return_X_y=True)
    return torch.tensor(pixels - pixels.mean(0)), torch.tensor(labels)


def test_scores_are_those_of_fishers_discriminant(digits) -> None:
    rows, labels = digits
    found = linear.fit(rows, labels, 10)
    x, y = rows.numpy(), labels.numpy()
    within = x - np.stack([x[y == c].mean(0) for c in range(10)])[y]
    covariance, _ = ledoit_wolf(within, assume_centered=True)
    peer = LinearDiscriminantAnalysis(solver="lsqr", covariance_estimator=Fixed(covariance))
    expected = peer.fit(x, y).predict_proba(x)
    torch.testing.assert_close(
        found.scores(rows).softmax(1), torch.tensor(expected), rtol=1e-6, atol=1e-9
    )


class Fixed:
    """A covariance found elsewhere, in the way scikit-learn asks for it, class by class."""

    def __init__(self, covariance: np.ndarray) -> None:
        self.covariance_ = covariance

    def fit(self, rows: np.ndarray) -> "Fixed":
        return self

    def get_params(self, deep: bool = True) -> dict[str, object]:
        return {"covariance": self.covariance_}


def test_taking_rows_away_is_never_having_had_them(digits) -> None:
    rows, labels = digits
    held = torch.arange(len(rows)) % 5 == 0
    everything = linear.moments(rows, labels, 10)
    means = everything.sums / everything.counts[:, None]
    less = everything - linear.moments(rows[held], labels[held], 10, means)
    found = linear.from_moments(less).scores(rows[held]).softmax(1)
    alone = linear.fit(rows[~held], labels[~held], 10).scores(rows[held]).softmax(1)
    # The shrinkage is measured about the means of all rows, a little off.
    torch.testing.assert_close(found, alone, rtol=0, atol=0.01)


def test_it_tells_new_images_apart(digits) -> None:
    rows, labels = digits
    scores = linear.fit(rows[:1200], labels[:1200], 10).scores(rows[1200:])
    assert (scores.argmax(1) == labels[1200:]).double().mean() > 0.9


def test_few_rows_of_many_columns_and_rows_all_alike_are_no_error() -> None:
    rows, labels = torch.randn(6, 40), torch.tensor([0, 0, 1, 1, 2, 2])
    assert torch.equal(linear.fit(rows, labels, 3).scores(rows).argmax(1), labels)
    alike = torch.eye(3)[labels]
    assert torch.equal(linear.fit(alike, labels, 3).scores(alike).argmax(1), labels)
    same = linear.fit(torch.ones(4, 3), torch.tensor([0, 0, 0, 1]), 2).scores(torch.ones(1, 3))
    assert same.softmax(1)[0].tolist() == pytest.approx([0.75, 0.25])


def test_a_class_without_rows_is_never_named() -> None:
    rows, labels = torch.randn(9, 4), torch.tensor([0, 2, 0, 2, 0, 2, 0, 2, 0])
    scores = linear.fit(rows, labels, 4).scores(rows)
    assert torch.isinf(scores[:, [1, 3]]).all()
    assert torch.isfinite(scores[:, [0, 2]]).all()


def test_chunks_change_nothing(digits, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, labels = digits
    whole = linear.fit(rows, labels, 10)
    monkeypatch.setattr(linear, "CHUNK", 100)
    torch.testing.assert_close(linear.fit(rows, labels, 10).weight, whole.weight)
