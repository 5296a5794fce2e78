import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from pair_batches import Vectors, close
from scs_supcon.kernels import sigmoid_loss_on_pairs


def reference(
    q: Vectors,
    r: Vectors,
    listed: list[tuple[int, int, bool]],
    t: float,
    b: float,
    margin: float = 0.0,
) -> tuple[float, Vectors, Vectors, float, float]:
    """(L, ∂L/∂q, ∂L/∂r, ∂L/∂t, ∂L/∂b) of L = mean over the list of log(1 + exp(z (b − t q·r)))."""
    value, by_t, by_b = 0.0, 0.0, 0.0
    by_q, by_r = [[0.0] * len(x) for x in q], [[0.0] * len(x) for x in r]
    for u, v, same in listed:
        z = 1.0 if same else -1.0
        similarity = math.fsum(x * y for x, y in zip(q[u], r[v], strict=True)) - margin * same
        x = z * (b - t * similarity)
        value += (max(x, 0) + math.log1p(math.exp(-abs(x)))) / len(listed)
        slope = z / (1 + math.exp(-x)) if x > 0 else z * math.exp(x) / (1 + math.exp(x))
        slope /= len(listed)
        by_b += slope
        by_t -= slope * similarity
        for k in range(len(q[u])):
            by_q[u][k] -= slope * t * r[v][k]
            by_r[v][k] -= slope * t * q[u][k]
    return value, by_q, by_r, by_t, by_b


def scalar(x: float) -> Tensor:
    return torch.tensor(x, dtype=torch.float64, requires_grad=True)


@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 6), st.booleans()), max_size=25),
    st.sampled_from([0.1, 1.0, 10.0, 100.0]),
    st.sampled_from([-3.0, 0.0, 5.0, 50.0]),
    st.sampled_from([0.0, 0.3]),
    st.integers(0, 1 << 20),
)
def test_the_mean_over_the_list(
    listed: list[tuple[int, int, bool]], t: float, b: float, margin: float, seed: int
) -> None:
    """A pair may occur twice, or as "same" in one entry and as "different" in another."""
    source = torch.Generator().manual_seed(seed)
    q = torch.randn(5, 3, generator=source, dtype=torch.float64).requires_grad_()
    r = torch.randn(7, 3, generator=source, dtype=torch.float64).requires_grad_()
    first, second = (torch.tensor([p[k] for p in listed], dtype=torch.long) for k in (0, 1))
    same = torch.tensor([p[2] for p in listed], dtype=torch.bool)
    tt, bb = scalar(t), scalar(b)
    loss = sigmoid_loss_on_pairs(q, r, (first, second), same, tt, bb, margin)
    loss.backward()
    value, by_q, by_r, by_t, by_b = reference(q.tolist(), r.tolist(), listed, t, b, margin)
    assert loss.item() == pytest.approx(value, rel=1e-10, abs=0)
    for got, expected in ((q.grad, by_q), (r.grad, by_r), (tt.grad, by_t), (bb.grad, by_b)):
        close(got, expected)


def some_pairs(n: int, count: int) -> tuple[tuple[Tensor, Tensor], Tensor]:
    source = torch.Generator().manual_seed(8)
    u, v = torch.randint(0, n, (2, count), generator=source)
    return (u, v), u % 3 == v % 3


def test_a_row_on_both_sides_gets_both_gradients() -> None:
    x = torch.randn(6, 3, dtype=torch.float64, requires_grad=True)
    pairs, same = some_pairs(6, 12)
    sigmoid_loss_on_pairs(x, x, pairs, same, scalar(2.0), scalar(0.5)).backward()
    listed = [(int(u), int(v), bool(s)) for u, v, s in zip(*pairs, same, strict=True)]
    _, by_q, by_r, _, _ = reference(x.tolist(), x.tolist(), listed, 2.0, 0.5)
    both = [[g + h for g, h in zip(*rows, strict=True)] for rows in zip(by_q, by_r, strict=True)]
    close(x.grad, both)


def test_many_pairs_are_computed_in_chunks() -> None:
    """Value and gradient are the mean over 64 chunks of the list."""
    x = torch.nn.functional.normalize(torch.randn(50, 4, dtype=torch.float64)).requires_grad_()
    pairs, same = some_pairs(50, 1 << 17)
    t, b = scalar(10.0), scalar(5.0)
    chunks = [
        sigmoid_loss_on_pairs(x, x, (pairs[0][k::64], pairs[1][k::64]), same[k::64], t, b)
        for k in range(64)
    ]
    whole = sigmoid_loss_on_pairs(x, x, pairs, same, t, b)
    mean = torch.stack(chunks).mean()
    torch.testing.assert_close(whole, mean, rtol=1e-12, atol=0)
    for one, other in zip(
        torch.autograd.grad(whole, (x, t, b)), torch.autograd.grad(mean, (x, t, b)), strict=True
    ):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-13)


@pytest.mark.parametrize("x", [-45.0, -20.5, 15.0, 19.9, 20.1, 25.0, 35.0, 39.9, 40.1])
def test_softplus_has_no_step_at_its_threshold(x: float) -> None:
    row, index = torch.ones(1, 1, dtype=torch.float64), torch.zeros(1, dtype=torch.long)
    loss = sigmoid_loss_on_pairs(
        row, row, (index, index), torch.tensor([False]), scalar(0.0), scalar(-x)
    )
    assert loss.item() == pytest.approx(max(x, 0) + math.log1p(math.exp(-abs(x))), rel=1e-14)


def test_gradcheck() -> None:
    q = torch.randn(5, 3, dtype=torch.float64, requires_grad=True)
    r = torch.randn(5, 3, dtype=torch.float64, requires_grad=True)
    pairs, same = some_pairs(5, 9)

    def loss(q: Tensor, r: Tensor, t: Tensor, b: Tensor) -> Tensor:
        return sigmoid_loss_on_pairs(q, r, pairs, same, t, b)

    assert torch.autograd.gradcheck(loss, (q, r, scalar(1.3), scalar(0.2)))


def test_float32_is_accurate_if_the_loss_is_tiny() -> None:
    """Relative error within 4 eps (t + |b| + 1) at t = 100, b = 50."""
    x = torch.nn.functional.normalize(
        torch.eye(3)[torch.arange(30) % 3] + 0.01 * torch.randn(30, 3)
    )
    pairs, same = some_pairs(30, 400)
    results = {}
    for dtype in (torch.float32, torch.float64):
        y = x.to(dtype, copy=True).requires_grad_()
        loss = sigmoid_loss_on_pairs(y, y, pairs, same, scalar(100.0), scalar(50.0))
        loss.backward()
        assert y.grad is not None
        results[dtype] = loss.detach().double(), y.grad.double()
    bound = 4 * torch.finfo(torch.float32).eps * 151
    for rough, exact in zip(results[torch.float32], results[torch.float64], strict=True):
        assert torch.linalg.vector_norm(rough - exact) <= bound * torch.linalg.vector_norm(exact)
    assert 0 < results[torch.float64][0] < 1e-15


def test_a_second_derivative() -> None:
    x = torch.randn(5, 3, dtype=torch.float64, requires_grad=True)
    pairs, same = some_pairs(5, 9)
    assert torch.autograd.gradgradcheck(
        lambda x: sigmoid_loss_on_pairs(x, x, pairs, same, scalar(1.3), scalar(0.2)), (x,)
    )
