"""The whitened cosine against its formula, with numpy."""

import numpy as np
import pytest
import torch
from torch import Tensor

from scs_supcon.nn.head import unit
from scs_supcon.nn.whitening import fit_whitenings


def blobs(n: int = 60, width: int = 7, classes: int = 3, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Correlated features whose class means differ."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(n) % classes
    mixing = torch.randn(width, width, generator=generator)
    means = 3 * torch.randn(classes, width, generator=generator)
    return torch.randn(n, width, generator=generator) @ mixing + means[labels] + 5, labels


def reference(features: Tensor, labels: Tensor, shrinkage: float) -> np.ndarray:
    """unit(S^(−1/2) (unit(h) − μ)) with S = (1 − γ) S_w + γ (tr S_w / d) I."""
    rows = features.double().numpy()
    rows = np.array([row / np.sqrt((row**2).sum()) for row in rows])
    width, mean = rows.shape[1], rows.mean(0)
    within = np.zeros((width, width))
    for row, label in zip(rows, labels.tolist(), strict=True):
        difference = row - rows[labels.numpy() == label].mean(0)
        within += np.outer(difference, difference) / len(rows)
    shrunk = (1 - shrinkage) * within + shrinkage * np.trace(within) / width * np.eye(width)
    values, vectors = np.linalg.eigh(shrunk)
    whitened = (rows - mean) @ (vectors @ np.diag(values**-0.5) @ vectors.T)
    return whitened / np.sqrt((whitened**2).sum(1, keepdims=True))


@pytest.mark.parametrize("shrinkage", [0.01, 0.45, 1.0])
def test_similarities_equal_the_reference(shrinkage: float) -> None:
    features, labels = blobs()
    (whitening,) = fit_whitenings(features, labels, [shrinkage], 100)
    rows = whitening(features.double())
    expected = reference(features, labels, shrinkage)
    # Equal up to a rotation, which no similarity depends on.
    np.testing.assert_allclose((rows @ rows.T).numpy(), expected @ expected.T, atol=1e-10)
    torch.testing.assert_close(rows.norm(dim=1), torch.ones(len(rows), dtype=torch.float64))


def test_full_shrinkage_only_subtracts_the_mean() -> None:
    features, labels = blobs()
    (whitening,) = fit_whitenings(features, labels, [1.0], 100)
    centred = unit(unit(features.double()) - unit(features.double()).mean(0))
    rows = whitening(features.double())
    torch.testing.assert_close(rows @ rows.T, centred @ centred.T)


@pytest.mark.parametrize("shrinkage", [0.0, 0.2])
def test_fewer_images_than_columns(shrinkage: float) -> None:
    features, labels = blobs(n=8, width=30)
    (whitening,) = fit_whitenings(features, labels, [shrinkage], 100)
    rows = whitening(features.double())
    assert rows.isfinite().all()
    torch.testing.assert_close(rows.norm(dim=1), torch.ones(8, dtype=torch.float64))


@pytest.mark.parametrize("directions", [3, 5, 8])
def test_few_directions_keep_the_nearest_class_mean(directions: int) -> None:
    features, labels = blobs(width=12)
    new = blobs(n=40, width=12, seed=1)[0].double()
    (full,) = fit_whitenings(features, labels, [0.3], 100)
    (short,) = fit_whitenings(features, labels, [0.3], directions)
    assert short.matrix.shape == (12, directions)
    train = features.double()
    means = [
        torch.stack([whitening(train)[labels == c].mean(0) for c in range(3)])
        for whitening in (full, short)
    ]
    projected = full(train) @ full.matrix.pinverse() @ short.matrix  # the means lie inside
    expected = torch.stack([projected[labels == c].mean(0) for c in range(3)])
    similarities = full(new) @ means[0].T
    shorter = short(new) @ expected.T
    # Every row is longer by a positive factor after the other directions are left out.
    factors = shorter / similarities
    assert (factors > 0).all()
    torch.testing.assert_close(factors, factors[:, :1].expand_as(factors), rtol=1e-8, atol=0)


@pytest.mark.parametrize(("n", "classes"), [(8, 4), (12, 3), (20, 10)])
def test_few_images_keep_the_decisions_of_all_directions(n: int, classes: int) -> None:
    """With fewer images than directions, only what the images span is used, once."""
    features, labels = blobs(n=n, width=40, classes=classes)
    new = blobs(n=60, width=40, classes=classes, seed=1)[0].double()
    (full,) = fit_whitenings(features, labels, [0.3], 100)
    (short,) = fit_whitenings(features, labels, [0.3], 30)
    assert short.matrix.shape == (40, n - 1)
    gram = torch.linalg.lstsq(full.matrix, short.matrix).solution
    torch.testing.assert_close(gram.T @ gram, torch.eye(n - 1, dtype=torch.float64))
    nearest = []
    for whitening in (full, short):
        rows = whitening(features.double())
        means = torch.stack([unit(rows[labels == c].mean(0)[None])[0] for c in range(classes)])
        nearest.append((whitening(new) @ means.T).argmax(1))
    assert torch.equal(*nearest)


@pytest.mark.parametrize("directions", [5, 100])
def test_some_rows_at_a_time_give_the_same_whitening(directions: int, monkeypatch) -> None:
    features, labels = blobs(width=12)
    new = blobs(n=40, width=12, seed=1)[0].double()
    (whole,) = fit_whitenings(features, labels, [0.3], directions)
    monkeypatch.setattr("scs_supcon.nn.whitening.ROWS", 7)
    (parts,) = fit_whitenings(features, labels, [0.3], directions)
    torch.testing.assert_close(parts(new) @ parts(new).T, whole(new) @ whole(new).T)


def test_more_classes_than_directions() -> None:
    features, labels = blobs(classes=6)
    (whitening,) = fit_whitenings(features, labels, [0.3], 4)
    assert whitening(features.double()).shape == (60, 4)


@pytest.mark.parametrize("directions", [2, 100])
def test_one_class(directions: int) -> None:
    features, labels = blobs(classes=1)
    (whitening,) = fit_whitenings(features, labels, [0.3], directions)
    assert whitening(features.double()).isfinite().all()


@pytest.mark.parametrize("directions", [2, 100])
def test_identical_images(directions: int) -> None:
    features = torch.ones(6, 5)
    whitenings = fit_whitenings(features, torch.arange(6) % 2, [0.0, 0.5], directions)
    assert len(whitenings) == 2
    for whitening in whitenings:
        assert whitening(features.double()).isfinite().all()
        assert whitening.matrix.shape[1] >= 1


def test_images_that_equal_their_class_mean_are_only_centred() -> None:
    labels = torch.arange(6) % 3
    features = torch.eye(3)[labels]
    (whitening,) = fit_whitenings(features, labels, [0.5], 100)
    rows = whitening(features.double())
    for i in range(6):
        for j in range(6):
            expected = 1.0 if labels[i] == labels[j] else -0.5
            assert float(rows[i] @ rows[j]) == pytest.approx(expected, abs=1e-12)
