"""The plain formulas, and small batches, give the values and gradients of the tiled kernels."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from pair_batches import Rows, by_label, labelled_rows, scalar
from scs_supcon.kernels import (
    mean_distance,
    positives,
    scs_loss,
    sigmoid_pairs,
    softmax_pairs,
)
from scs_supcon.kernels.dense import (
    dense_distance,
    dense_softmax,
    sigmoid_cost,
    similarities,
    softplus,
)


def gradients(value: Tensor, *leaves: Tensor) -> list[Tensor]:
    grads = torch.autograd.grad(3 * value, leaves, allow_unused=True)
    return [torch.zeros_like(x) if g is None else g for x, g in zip(leaves, grads, strict=True)]


@given(
    labelled_rows(1, 40),
    st.sampled_from(["all", "balanced", "positives"]),
    st.booleans(),
    st.sampled_from([(1.0, 0.3), (10.0, 5.0), (50.0, None), (10.0, None)]),
)
def test_sigmoid_loss_dense_and_tiled(
    batch: Rows, divide_by: Any, include_self: bool, scalars: tuple[float, float | None]
) -> None:
    x, labels = batch
    x.requires_grad_()
    t = scalar(scalars[0], True)
    b = None if scalars[1] is None else scalar(scalars[1], True)
    pairs = by_label(x, labels, divide_by=divide_by, self_weight=float(include_self))
    dense, dense_b = sigmoid_pairs(*pairs, t, b)
    _, solved = sigmoid_pairs(*pairs, t, b, tile=7)
    assert dense_b.item() == pytest.approx(solved.item(), abs=1e-6)
    # A solved b agrees to 1e-6; everything else holds at the same b.
    tiled, _ = sigmoid_pairs(*pairs, t, dense_b, tile=7)
    torch.testing.assert_close(dense, tiled, rtol=1e-11, atol=1e-14)
    leaves = (x, t) if b is None else (x, t, b)
    for one, other in zip(gradients(dense, *leaves), gradients(tiled, *leaves), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)


@given(labelled_rows(1, 40), st.sampled_from([0.05, 0.5]))
def test_softmax_loss_dense_and_tiled(batch: Rows, temperature: float) -> None:
    x, labels = batch
    x.requires_grad_()
    dense = dense_softmax(x, labels, temperature) / len(x)
    tiled = softmax_pairs(*by_label(x, labels), temperature, tile=7)
    torch.testing.assert_close(dense, tiled, rtol=1e-10, atol=1e-13)
    torch.testing.assert_close(*gradients(dense, x), *gradients(tiled, x), rtol=1e-8, atol=1e-11)


@given(labelled_rows(1, 40), st.sampled_from([5, 1 << 19]))
def test_distance_dense_and_tiled(batch: Rows, piece: int) -> None:
    x, labels = batch
    x.requires_grad_()
    dense = dense_distance(x, labels) / len(x)
    tiled = mean_distance(*by_label(x, labels), piece=piece)
    torch.testing.assert_close(dense, tiled, rtol=1e-11, atol=1e-14)
    torch.testing.assert_close(*gradients(dense, x), *gradients(tiled, x), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("gap", [1e-1, 1e-3, 1e-5])
def test_distances_of_near_duplicates_in_float32(gap: float) -> None:
    """Relative error within 4 eps, where a float32 Gram matrix is 35% off."""
    source = torch.Generator().manual_seed(2)
    first = torch.nn.functional.normalize(torch.randn(40, 16, generator=source))
    x = torch.cat([first, first + gap * torch.randn(first.shape, generator=source) / 4])
    labels = torch.arange(40).repeat(2)
    results = []
    for dtype in (torch.float32, torch.float64):
        rows = x.to(dtype, copy=True).requires_grad_()
        value = dense_distance(rows, labels)
        results.append((value.detach().double(), torch.autograd.grad(value, rows)[0].double()))
    (value, grad), (exact, exact_grad) = results
    eps = torch.finfo(torch.float32).eps
    assert abs(value - exact) <= 4 * eps * exact
    assert (grad - exact_grad).abs().max() <= 4 * eps * exact_grad.abs().max()


@pytest.mark.parametrize("rows", [64, 65, 128, 129, 512, 513])
@pytest.mark.parametrize("classes", [2, 90])
def test_nothing_jumps_where_the_path_changes(rows: int, classes: int) -> None:
    x = torch.nn.functional.normalize(torch.randn(rows, 8))
    x.requires_grad_()
    labels = torch.arange(rows) % classes
    pairs, t, b = by_label(x, labels), scalar(10.0), scalar(5.0)
    for one, other in [
        (sigmoid_pairs(*pairs, t, b)[0], sigmoid_pairs(*pairs, t, b, tile=512)[0]),
        (softmax_pairs(*pairs, 0.1), softmax_pairs(*pairs, 0.1, tile=512)),
        (mean_distance(*pairs), mean_distance(*pairs, piece=1 << 19)),
    ]:
        torch.testing.assert_close(one, other, rtol=2e-6, atol=0)
        torch.testing.assert_close(*gradients(one, x), *gradients(other, x), rtol=1e-4, atol=1e-7)


@given(labelled_rows(1, 40))
def test_the_loss_on_one_screen_is_that_of_the_kernels(batch: Rows) -> None:
    x, labels = batch
    x.requires_grad_()
    contrast, style = scs_loss(x, x, labels[:, None] == labels, 3.0, 0.7, beta=0.5)
    divided, pairs = (by_label(x, labels, divide_by=by) for by in ("positives", "all"))
    expected, _ = sigmoid_pairs(*divided, scalar(3.0), scalar(0.7))
    torch.testing.assert_close(contrast, expected, rtol=1e-12, atol=1e-14)
    # Of many rows, `cdist` computes distances from a Gram matrix.
    torch.testing.assert_close(style, -0.5 * mean_distance(*pairs), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(
        *gradients(contrast, x), *gradients(expected, x), rtol=1e-10, atol=1e-13
    )


@pytest.mark.parametrize("a", [-800.0, -45.0, -3.0, 0.0, 0.5, 19.9, 20.1, 39.9, 40.1, 800.0])
@pytest.mark.parametrize("q", [0.0, 0.3, 1.0])
def test_the_cost_of_a_pair(a: float, q: float) -> None:
    positive, negative = (max(x, 0) + math.log1p(math.exp(-abs(x))) for x in (-a, a))
    expected = 2 * q * positive + 3 * (1 - q) * negative
    assert softplus(scalar(a)).item() == pytest.approx(negative, rel=1e-14)
    assert sigmoid_cost(scalar(a), scalar(q), 2.0, 3.0).item() == pytest.approx(expected, rel=1e-14)
    if q != 0.3:
        cost = sigmoid_cost(scalar(a), torch.tensor(bool(q)), 2.0, 3.0)
        assert cost.item() == pytest.approx(expected, rel=1e-14)


@given(labelled_rows())
def test_positives_are_the_other_rows_of_a_class(batch: Rows) -> None:
    labels = batch[1].tolist()
    n = range(len(labels))
    expected = [[labels[u] == labels[v] and u != v for v in n] for u in n]
    assert positives(batch[1]).tolist() == expected


def test_similarities_and_their_gradients() -> None:
    x = torch.randn(5, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(similarities, (x,))
    assert torch.autograd.gradgradcheck(similarities, (x,))
