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


def test_scores_agree_with_scikit_learn(digits) -> None:
    rows, labels = digits
    result = linear.fit(rows, labels, 10)
    x, y = rows.numpy(), labels.numpy()
    within = x - np.stack([x[y == c].mean(0) for c in range(10)])[y]
    covariance, _ = ledoit_wolf(within, assume_centered=True)
    expected_model = LinearDiscriminantAnalysis(
        solver="lsqr", covariance_estimator=Fixed(covariance)
    )
    expected = expected_model.fit(x, y).predict_proba(x)
    torch.testing.assert_close(
        result.scores(rows).softmax(1), torch.tensor(expected), rtol=1e-6, atol=1e-9
    )


class Fixed:
    """A fixed covariance as an estimator of scikit-learn."""

    def __init__(self, covariance: np.ndarray) -> None:
        self.covariance_ = covariance

    def fit(self, rows: np.ndarray) -> "Fixed":
        return self

    def get_params(self, deep: bool = True) -> dict[str, object]:
        return {"covariance": self.covariance_}


def test_rows_can_be_removed_from_the_sums(digits) -> None:
    rows, labels = digits
    removed = torch.arange(len(rows)) % 5 == 0
    total = linear.moments(rows, labels, 10)
    means = total.sums / total.counts[:, None]
    remaining = total - linear.moments(rows[removed], labels[removed], 10, means)
    result = linear.from_moments(remaining).scores(rows[removed]).softmax(1)
    expected = linear.fit(rows[~removed], labels[~removed], 10).scores(rows[removed]).softmax(1)
    # The shrinkage is measured about the means of all rows, which differ slightly.
    torch.testing.assert_close(result, expected, rtol=0, atol=0.01)


def test_new_images_are_classified(digits) -> None:
    rows, labels = digits
    scores = linear.fit(rows[:1200], labels[:1200], 10).scores(rows[1200:])
    assert (scores.argmax(1) == labels[1200:]).double().mean() > 0.9


def test_few_rows_and_equal_rows_can_be_fitted() -> None:
    rows, labels = torch.randn(6, 40), torch.tensor([0, 0, 1, 1, 2, 2])
    assert torch.equal(linear.fit(rows, labels, 3).scores(rows).argmax(1), labels)
    equal = torch.eye(3)[labels]
    assert torch.equal(linear.fit(equal, labels, 3).scores(equal).argmax(1), labels)
    same = linear.fit(torch.ones(4, 3), torch.tensor([0, 0, 0, 1]), 2).scores(torch.ones(1, 3))
    assert same.softmax(1)[0].tolist() == pytest.approx([0.75, 0.25])


def test_a_class_without_rows_is_never_predicted() -> None:
    rows, labels = torch.randn(9, 4), torch.tensor([0, 2, 0, 2, 0, 2, 0, 2, 0])
    scores = linear.fit(rows, labels, 4).scores(rows)
    assert torch.isinf(scores[:, [1, 3]]).all()
    assert torch.isfinite(scores[:, [0, 2]]).all()


def test_chunks_change_nothing(digits, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, labels = digits
    whole = linear.fit(rows, labels, 10)
    monkeypatch.setattr(linear, "CHUNK", 100)
    torch.testing.assert_close(linear.fit(rows, labels, 10).weight, whole.weight)


def test_an_indefinite_covariance_is_shrunk_further() -> None:
    covariance = torch.diag(torch.tensor([1.0, 1.0, -1e-3], dtype=torch.float64))
    factor = linear._shrunk_cholesky(covariance, torch.tensor(1.0), 1e-6)
    assert factor.isfinite().all()
    assert (factor.diagonal() > 0).all()


def test_duplicated_rows_far_from_the_origin_can_be_fitted() -> None:
    torch.manual_seed(0)
    distinct = 1e4 + torch.randn(4, 60)
    rows, labels = distinct.repeat(5, 1), torch.tensor([0, 0, 1, 1]).repeat(5)
    scores = linear.fit(rows, labels, 2).scores(rows)
    assert scores.isfinite().all()
