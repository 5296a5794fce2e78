import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from pair_batches import (
    LargestTensor,
    Rows,
    Vectors,
    check_second_derivative_is_an_error,
    close,
    labelled_rows,
    same_width,
)
from scs_supcon.kernels import sigmoid_pair_loss


def reference(
    q: Vectors,
    q_labels: list[int],
    t: float,
    b: float,
    weighting: str = "all",
    include_self: bool = True,
    r: Vectors | None = None,
    r_labels: list[int] | None = None,
    margin: float = 0.0,
    include_rows: bool = False,
) -> tuple[float, Vectors, Vectors, float, float]:
    """(L, ∂L/∂q, ∂L/∂r, ∂L/∂t, ∂L/∂b) of L = Σ_uv w_uv log(1 + exp(z_uv (b − t q_u·r_v))).

    Eq. 4's first sum, with w = 1/|pairs|, or the other weightings; the gradient by hand. The
    margin is subtracted from q_u·r_v of positive pairs. With `include_rows`, r is joined to q.
    """
    apart = r is not None and not include_rows
    right, right_labels = (q, q_labels) if r is None else (r, r_labels)
    assert right is not None and right_labels is not None
    if include_rows:
        right, right_labels = q + right, q_labels + right_labels
    pairs = []
    for u in range(len(q)):
        for v in range(len(right)):
            if apart or include_self or u != v:
                pairs.append((u, v, q_labels[u] == right_labels[v]))
    positive = sum(same for _, _, same in pairs)
    negative = len(pairs) - positive
    value, by_t, by_b = 0.0, 0.0, 0.0
    by_q = [[0.0] * len(row) for row in q]
    by_r = [[0.0] * len(row) for row in right]
    for u, v, same in pairs:
        if weighting == "all":
            w = 1 / len(pairs)
        elif weighting == "positives":
            w = 1 / max(positive, 1)
        else:
            w = 0.5 / positive if same else 0.5 / negative
        z = 1.0 if same else -1.0
        similarity = math.fsum(x * y for x, y in zip(q[u], right[v], strict=True))
        similarity -= margin if same else 0
        x = z * (b - t * similarity)
        value += w * (x + math.log1p(math.exp(-x)) if x > 0 else math.log1p(math.exp(x)))
        slope = w * z / (1 + math.exp(-x)) if x > 0 else w * z * math.exp(x) / (1 + math.exp(x))
        by_b += slope
        by_t -= slope * similarity
        for k in range(len(q[u])):
            by_q[u][k] -= slope * t * right[v][k]
            (by_r if apart or v >= len(q) else by_q)[v][k] -= slope * t * q[u][k]
    return value, by_q, by_r, by_t, by_b


def tiled(
    x: Tensor, labels: Tensor, t: Tensor, b: Tensor, *, tile: int = 512, **options: Any
) -> Tensor:
    """Return the tiled loss of a batch of any size."""
    loss, bias = sigmoid_pair_loss(x, labels, t, b, tile=tile, **options)
    assert bias is b
    return loss


temperatures = st.sampled_from([0.1, 1.0, 10.0, 100.0])
biases = st.sampled_from([-3.0, 0.0, 0.05, 5.0, 50.0])
weightings = st.sampled_from(["all", "balanced", "positives"])


def scalar(x: float, grad: bool = False) -> Tensor:
    return torch.tensor(x, dtype=torch.float64, requires_grad=grad)


@given(labelled_rows(), temperatures, biases, weightings, st.booleans(), st.integers(1, 5))
def test_rows_among_themselves(
    batch: Rows, t: float, b: float, weighting: Any, include_self: bool, tile: int
) -> None:
    x, labels = batch
    x.requires_grad_()
    tt, bb = scalar(t, True), scalar(b, True)
    loss = tiled(x, labels, tt, bb, weighting=weighting, include_self=include_self, tile=tile)
    loss.backward()
    value, by_q, _, by_t, by_b = reference(
        x.tolist(), labels.tolist(), t, b, weighting, include_self
    )
    assert loss.item() == pytest.approx(value, rel=1e-10, abs=0)
    assert loss.item() >= 0
    close(x.grad, by_q)
    close(tt.grad, by_t)
    close(bb.grad, by_b)


@given(labelled_rows(), labelled_rows(), temperatures, biases, weightings, st.integers(1, 5))
def test_references(
    batch: Rows,
    others: Rows,
    t: float,
    b: float,
    weighting: Any,
    tile: int,
) -> None:
    (q, r), labels, ref_labels = same_width(batch[0], others[0]), batch[1], others[1]
    tt, bb = scalar(t, True), scalar(b, True)
    loss = tiled(
        q, labels, tt, bb, references=r, reference_labels=ref_labels, weighting=weighting, tile=tile
    )
    loss.backward()
    value, by_q, by_r, by_t, by_b = reference(
        q.tolist(), labels.tolist(), t, b, weighting, True, r.tolist(), ref_labels.tolist()
    )
    assert loss.item() == pytest.approx(value, rel=1e-10, abs=0)
    close(q.grad, by_q)
    close(r.grad, by_r)
    close(tt.grad, by_t)
    close(bb.grad, by_b)


@given(labelled_rows(), temperatures, biases, weightings, st.booleans(), st.integers(1, 5))
def test_a_margin(
    batch: Rows, t: float, b: float, weighting: Any, include_self: bool, tile: int
) -> None:
    x, labels = batch
    x.requires_grad_()
    tt, bb = scalar(t, True), scalar(b, True)
    options = {"weighting": weighting, "include_self": include_self}
    loss = tiled(x, labels, tt, bb, margin=0.3, tile=tile, **options)
    loss.backward()
    value, by_q, _, by_t, by_b = reference(
        x.tolist(), labels.tolist(), t, b, weighting, include_self, margin=0.3
    )
    assert loss.item() == pytest.approx(value, rel=1e-10, abs=0)
    close(x.grad, by_q)
    close(tt.grad, by_t)
    close(bb.grad, by_b)


@given(
    labelled_rows(),
    labelled_rows(),
    weightings,
    st.booleans(),
    st.integers(1, 5),
    st.sampled_from([0.0, 0.2]),
)
def test_rows_and_references_together(
    batch: Rows, others: Rows, weighting: Any, include_self: bool, tile: int, margin: float
) -> None:
    (q, r), labels, ref_labels = same_width(batch[0], others[0]), batch[1], others[1]
    tt, bb = scalar(10.0, True), scalar(2.0, True)
    loss = tiled(
        q,
        labels,
        tt,
        bb,
        references=r,
        reference_labels=ref_labels,
        include_rows=True,
        weighting=weighting,
        include_self=include_self,
        margin=margin,
        tile=tile,
    )
    loss.backward()
    value, by_q, by_r, by_t, by_b = reference(
        q.tolist(),
        labels.tolist(),
        10.0,
        2.0,
        weighting,
        include_self,
        r.tolist(),
        ref_labels.tolist(),
        margin,
        include_rows=True,
    )
    assert loss.item() == pytest.approx(value, rel=1e-10, abs=0)
    close(q.grad, by_q)
    close(r.grad, by_r[len(q) :])
    close(tt.grad, by_t)
    close(bb.grad, by_b)


def blobs(n: int, classes: int, d: int, spread: float) -> Rows:
    """Unit rows around well-separated class centres, in float64 but exact in float32."""
    source = torch.Generator().manual_seed(5)
    centres = torch.eye(d, dtype=torch.float64)[:classes]
    labels = torch.arange(n) % classes
    x = centres[labels] + spread * torch.randn(n, d, generator=source, dtype=torch.float64)
    return torch.nn.functional.normalize(x).float().double(), labels


@pytest.mark.parametrize("include_self", [True, False])
@pytest.mark.parametrize(
    ("t", "b", "spread"), [(0.1, 0, 1.0), (10, 5, 1.0), (10, 5, 0.01), (100, 50, 0.01)]
)
def test_float32_is_accurate_even_if_the_loss_is_tiny(
    t: float, b: float, spread: float, include_self: bool
) -> None:
    """Relative errors stay within 4 eps (t + |b| + 1): that of the logit, carried by exp."""
    x, labels = blobs(240, 6, 12, spread)
    results = {}
    for dtype in (torch.float32, torch.float64):
        y = x.to(dtype).requires_grad_()
        tt, bb = scalar(t, True), scalar(b, True)
        loss = tiled(y, labels, tt, bb, include_self=include_self, tile=64)
        loss.backward()
        results[dtype] = [v.detach().double() for v in (loss, y.grad, tt.grad, bb.grad)]
        assert loss.dtype == dtype
    bound = 4 * torch.finfo(torch.float32).eps * (t + abs(b) + 1)
    for rough, exact in zip(results[torch.float32], results[torch.float64], strict=True):
        assert torch.linalg.vector_norm(rough - exact) <= bound * torch.linalg.vector_norm(exact)
    if t == 100:
        assert 0 < results[torch.float64][0] < 1e-15


def test_a_tiny_loss_is_accurate() -> None:
    """Subtracting large sums would lose all digits of a loss of 1e-21."""
    x, labels = blobs(24, 4, 6, 0.01)
    loss = tiled(x, labels, scalar(100), scalar(50), tile=7)
    value, *_ = reference(x.tolist(), labels.tolist(), 100, 50)
    assert 0 < value < 1e-15
    assert loss.item() == pytest.approx(value, rel=1e-11, abs=0)


@pytest.mark.parametrize("x", [-45.0, -20.5, 15.0, 19.9, 20.1, 25.0, 35.0, 39.9, 40.1])
def test_softplus_has_no_step_at_its_threshold(x: float) -> None:
    row = torch.ones(1, 1, dtype=torch.float64)
    loss = tiled(row, torch.tensor([0]), scalar(0.0), scalar(x))
    assert loss.item() == pytest.approx(max(x, 0) + math.log1p(math.exp(-abs(x))), rel=1e-14)


@pytest.mark.parametrize("include_self", [True, False])
@pytest.mark.parametrize("weighting", ["all", "balanced", "positives"])
@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("margin", [0.0, 0.25])
def test_gradcheck(weighting: Any, include_self: bool, apart: bool, margin: float) -> None:
    source = torch.Generator().manual_seed(1)
    x = torch.randn(6, 3, generator=source, dtype=torch.float64, requires_grad=True)
    r = torch.randn(4, 3, generator=source, dtype=torch.float64, requires_grad=True)
    labels, ref_labels = torch.tensor([0, 1, 0, 1, 2, 1]), torch.tensor([1, 0, 3, 1])

    def loss(x: Tensor, r: Tensor, t: Tensor, b: Tensor) -> Tensor:
        return tiled(
            x,
            labels,
            t,
            b,
            references=r if apart else None,
            reference_labels=ref_labels if apart else None,
            weighting=weighting,
            include_self=include_self,
            margin=margin,
            tile=2,
        )

    r = r if apart else r.detach()
    assert torch.autograd.gradcheck(loss, (x, r, scalar(1.3, True), scalar(0.4, True)))


def test_only_tensors_that_require_a_gradient_get_one() -> None:
    x, labels = blobs(12, 3, 4, 0.5)
    b = scalar(1.0, True)
    tiled(x, labels, scalar(2.0), b).backward()
    assert b.grad is not None
    y = x.clone().requires_grad_()
    with torch.no_grad():
        quiet = tiled(y, labels, scalar(2.0), b)
    assert not quiet.requires_grad
    assert torch.equal(quiet, tiled(y, labels, scalar(2.0), b).detach())


def test_an_incoming_gradient_scales_all_others() -> None:
    x, labels = blobs(12, 3, 4, 0.5)
    x.requires_grad_()
    b = scalar(1.0, True)
    (once,) = torch.autograd.grad(tiled(x, labels, scalar(2.0), b), x)
    multiplied = torch.autograd.grad(-3 * tiled(x, labels, scalar(2.0), b), (x, b))
    torch.testing.assert_close(multiplied[0], -3 * once, rtol=1e-12, atol=0)


def test_double_backward_is_an_error() -> None:
    x, labels = blobs(12, 3, 4, 0.5)
    check_second_derivative_is_an_error(lambda x: tiled(x, labels, scalar(2.0), scalar(0.0)), x)


@pytest.mark.parametrize("classes", [1, 6])
def test_no_matrix_of_all_pairs_is_allocated(classes: int) -> None:
    x, labels = blobs(400, classes, 12, 0.5)
    x.requires_grad_()
    with LargestTensor() as largest:
        tiled(x, labels, scalar(10, True), scalar(5), tile=50, include_self=False).backward()
    assert largest.numel <= max(400 * 12, 50 * 50)


@pytest.mark.parametrize("t, b", [(100.0, 50.0), (100.0, -50.0), (100.0, 1e4), (1e-6, 0.0)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_extremes_stay_finite(t: float, b: float, dtype: torch.dtype) -> None:
    x, labels = blobs(20, 4, 4, 1.0)
    x = x.to(dtype).requires_grad_()
    tt, bb = scalar(t, True), scalar(b, True)
    loss = tiled(x, labels, tt, bb, tile=8)
    loss.backward()
    assert math.isfinite(loss.item()) and loss.item() >= 0
    for p in (x, tt, bb):
        assert p.grad is not None and p.grad.isfinite().all()
