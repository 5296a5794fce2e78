import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from pair_batches import LargestTensor, Rows, Vectors, labelled_rows
from scs_supcon.kernels import (
    expected_positives,
    sigmoid_pair_loss,
    soft_sigmoid_loss,
    soft_style_distance,
    style_distance,
)


def dot(x: list[float], y: list[float]) -> float:
    return math.fsum(a * b for a, b in zip(x, y, strict=True))


def log1pexp(x: float) -> float:
    return max(x, 0) + math.log1p(math.exp(-abs(x)))


def reference(
    x: Vectors,
    p: Vectors,
    t: float,
    b: float,
    weighting: str = "all",
    include_self: bool = True,
    margin: float = 0.0,
) -> float:
    """Σ_uv q softplus(−a⁺) + (1 − q) softplus(a⁻), each sum divided according to the weighting."""
    attract, repel, positive, pairs = 0.0, 0.0, 0.0, 0
    for u in range(len(x)):
        for v in range(len(x)):
            if u == v and not include_self:
                continue
            q, r = dot(p[u], p[v]), dot(x[u], x[v])
            attract += q * log1pexp(-(t * (r - margin) - b))
            repel += (1 - q) * log1pexp(t * r - b)
            positive, pairs = positive + q, pairs + 1
    return {
        "all": (attract + repel) / max(pairs, 1),
        "positives": (attract + repel) / max(positive, 1),
        "balanced": attract / max(positive, 1) / 2 + repel / max(pairs - positive, 1) / 2,
    }[weighting]


def distance_reference(s: Vectors, p: Vectors) -> float:
    """The mean over rows of Σ_{v≠u} q ‖s_u − s_v‖ / Σ_{v≠u} q."""
    total = 0.0
    for u in range(len(s)):
        others = [v for v in range(len(s)) if v != u]
        weight = math.fsum(dot(p[u], p[v]) for v in others)
        if weight:
            weighted = [dot(p[u], p[v]) * math.dist(s[u], s[v]) for v in others]
            total += math.fsum(weighted) / weight
    return total / max(len(s), 1)


def mixed(n: int, classes: int, seed: int) -> Tensor:
    """Soft labels as MixUp makes them, some of them one-hot."""
    source = torch.Generator().manual_seed(seed)
    first, second = (
        F.one_hot(torch.randint(0, classes, (n,), generator=source), classes) for _ in range(2)
    )
    share = torch.rand(n, 1, generator=source, dtype=torch.float64)
    share[::3] = 1
    return share * first + (1 - share) * second


def scalar(x: float, grad: bool = False) -> Tensor:
    return torch.tensor(x, dtype=torch.float64, requires_grad=grad)


weightings = st.sampled_from(["all", "balanced", "positives"])
margins = st.sampled_from([0.0, 0.2])


@given(
    labelled_rows(),
    st.sampled_from([0.1, 10.0, 100.0]),
    st.sampled_from([-3.0, 0.0, 50.0]),
    weightings,
    st.booleans(),
    margins,
    st.sampled_from([1, 7, 1 << 22]),
)
def test_the_loss_equals_the_reference(
    batch: Rows,
    t: float,
    b: float,
    weighting: Any,
    include_self: bool,
    margin: float,
    chunk: int,
) -> None:
    x, labels = batch
    p = mixed(len(x), 3, int(labels.sum()) % 1000)
    options = {"weighting": weighting, "include_self": include_self, "margin": margin}
    bb = scalar(b)
    loss, same_b = soft_sigmoid_loss(x, p, scalar(t), bb, chunk=chunk, **options)
    assert same_b is bb
    expected = reference(x.tolist(), p.tolist(), t, b, **options)  # type: ignore[arg-type]
    assert loss.item() == pytest.approx(expected, rel=1e-10, abs=1e-300)


@given(labelled_rows(1, 40), weightings, st.booleans(), margins, st.sampled_from([2.0, None]))
def test_one_hot_labels_give_the_loss_of_hard_labels(
    batch: Rows, weighting: Any, include_self: bool, margin: float, b: float | None
) -> None:
    x, labels = batch
    p = F.one_hot(torch.unique(labels, return_inverse=True)[1]).double()
    options = {"weighting": weighting, "include_self": include_self, "margin": margin}
    results = []
    for loss, y in ((soft_sigmoid_loss, p), (sigmoid_pair_loss, labels)):
        rows, t = x.clone().requires_grad_(), scalar(10.0, True)
        bias = None if b is None else scalar(b, True)
        value, solved = loss(rows, y, t, bias, **options)  # type: ignore[operator]
        value.backward()
        leaves = (rows.grad, t.grad) if bias is None else (rows.grad, t.grad, bias.grad)
        results.append([value.detach(), solved.detach(), *leaves])
    for soft, hard in zip(*results, strict=True):
        torch.testing.assert_close(soft, hard, rtol=1e-6 if b is None else 1e-10, atol=1e-11)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_tiny_loss_has_full_relative_precision(dtype: torch.dtype) -> None:
    labels = torch.arange(24) % 4
    x = F.normalize(torch.eye(4, 6)[labels] + 0.01 * torch.randn(24, 6))
    p = F.one_hot(labels).to(dtype)
    soft, _ = soft_sigmoid_loss(x.to(dtype), p, scalar(100), scalar(50))
    exact, _ = sigmoid_pair_loss(x.double(), labels, scalar(100), scalar(50))
    assert 0 < exact < 1e-15
    assert soft.item() == pytest.approx(exact.item(), rel=600 * torch.finfo(dtype).eps, abs=0)


@pytest.mark.parametrize("weighting", ["all", "balanced", "positives"])
@pytest.mark.parametrize("include_self", [True, False])
@pytest.mark.parametrize("chunk", [11, 1 << 22])
def test_gradcheck(weighting: Any, include_self: bool, chunk: int) -> None:
    x = torch.randn(6, 3, dtype=torch.float64, requires_grad=True)
    p = mixed(6, 3, 1)

    def loss(x: Tensor, t: Tensor, b: Tensor) -> Tensor:
        options = {"weighting": weighting, "include_self": include_self, "margin": 0.3}
        return soft_sigmoid_loss(x, p, t, b, chunk=chunk, **options)[0]

    assert torch.autograd.gradcheck(loss, (x, scalar(1.3, True), scalar(0.4, True)))


@given(labelled_rows(2, 12), st.booleans(), margins)
def test_the_mean_probability_is_the_mean_of_q(
    batch: Rows, include_self: bool, margin: float
) -> None:
    x = batch[0]
    p = mixed(len(x), 3, len(x))
    options = {"include_self": include_self, "margin": margin}
    _, b = soft_sigmoid_loss(x, p, scalar(10.0), None, **options)  # type: ignore[arg-type]
    expected, pairs, positive = 0.0, 0, 0.0
    for u, row in enumerate(x.tolist()):
        for v, other in enumerate(x.tolist()):
            if u == v and not include_self:
                continue
            q, r = dot(p[u].tolist(), p[v].tolist()), dot(row, other)
            above = 1 / (1 + math.exp(min(b.item() - 10 * (r - margin), 700)))
            expected += q * above + (1 - q) / (1 + math.exp(min(b.item() - 10 * r, 700)))
            positive, pairs = positive + q, pairs + 1
    share = min(max(positive, 0.5), pairs - 0.5) / pairs
    assert expected / pairs == pytest.approx(share, abs=2e-6)


@pytest.mark.parametrize("include_self", [True, False])
def test_the_bias_of_many_rows_is_solved_on_some_of_them(include_self: bool) -> None:
    x = F.normalize(torch.randn(1500, 8, generator=torch.Generator().manual_seed(3)).double())
    p = mixed(1500, 20, 3)
    _, b = soft_sigmoid_loss(x, p, scalar(10.0), None, include_self=include_self)
    probability = torch.sigmoid(10 * x @ x.T - b)
    if not include_self:
        probability.fill_diagonal_(0)
    expected = expected_positives(p, include_self)
    assert probability.sum().item() == pytest.approx(expected, rel=0.03)


def test_memory_is_bounded() -> None:
    x = torch.randn(400, 4, requires_grad=True)
    p = mixed(400, 5, 0).float()
    with LargestTensor() as largest:
        soft_sigmoid_loss(x, p, scalar(10, True), scalar(5), chunk=8000)[0].backward()
        soft_style_distance(x, p, chunk=8000).backward()
    assert largest.numel <= 8000


@pytest.mark.parametrize("n", [0, 1])
@pytest.mark.parametrize("include_self", [True, False])
def test_few_rows(n: int, include_self: bool) -> None:
    x = torch.ones(n, 2, dtype=torch.float64, requires_grad=True)
    p = torch.full((n, 2), 0.5, dtype=torch.float64)
    value, b = soft_sigmoid_loss(x, p, scalar(10), None, include_self=include_self)
    distance = soft_style_distance(x, p)
    (value + distance).backward()
    assert value.isfinite() and b.isfinite() and distance == 0
    assert x.grad is not None and x.grad.isfinite().all()
    if not n or not include_self:
        assert value == 0


@given(labelled_rows(), st.sampled_from([1, 7, 1 << 22]))
def test_style_distances_equal_the_reference(batch: Rows, chunk: int) -> None:
    s, labels = batch
    p = mixed(len(s), 3, int(labels.sum()) % 1000)
    value = soft_style_distance(s, p, chunk=chunk)
    assert value.item() == pytest.approx(distance_reference(s.tolist(), p.tolist()), rel=1e-10)


@given(labelled_rows(1, 40))
def test_one_hot_style_distances_are_those_of_hard_labels(batch: Rows) -> None:
    s, labels = batch
    s.requires_grad_()
    p = F.one_hot(torch.unique(labels, return_inverse=True)[1]).double()
    soft, hard = soft_style_distance(s, p), style_distance(s, labels)
    torch.testing.assert_close(soft, hard, rtol=1e-11, atol=1e-14)
    by_soft, by_hard = (torch.autograd.grad(value, s)[0] for value in (soft, hard))
    torch.testing.assert_close(by_soft, by_hard, rtol=1e-9, atol=1e-12)


def test_gradcheck_of_style_distances() -> None:
    s = torch.randn(6, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda s: soft_style_distance(s, mixed(6, 3, 2)), (s,))
