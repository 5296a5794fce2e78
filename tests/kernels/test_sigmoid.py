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
    by_label,
    check_second_derivative_is_an_error,
    check_second_derivatives,
    close,
    labelled_rows,
    same_width,
    scalar,
)
from scs_supcon.kernels import Pairs, Sides, sigmoid_pairs


def reference(
    q: Vectors,
    q_labels: list[int],
    t: float,
    b: float,
    divide_by: str = "all",
    include_self: bool = True,
    r: Vectors | None = None,
    r_labels: list[int] | None = None,
    with_rows: bool = False,
) -> tuple[float, Vectors, Vectors, float, float]:
    """(L, ∂L/∂q, ∂L/∂r, ∂L/∂t, ∂L/∂b) of L = Σ_uv w_uv log(1 + exp(z_uv (b − t q_u·r_v))).

    Eq. 4's first sum, with w = 1/|pairs|, or the other weightings; the gradient by hand. With
    `with_rows`, r is joined to q.
    """
    apart = r is not None and not with_rows
    right, right_labels = (q, q_labels) if r is None else (r, r_labels)
    assert right is not None and right_labels is not None
    if with_rows:
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
        if divide_by == "all":
            w = 1 / len(pairs)
        elif divide_by == "positives":
            w = 1 / max(positive, 1)
        else:
            w = 0.5 / positive if same else 0.5 / negative
        z = 1.0 if same else -1.0
        similarity = math.fsum(x * y for x, y in zip(q[u], right[v], strict=True))
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
    x: Tensor, labels: Tensor, t: Tensor, b: Tensor, *, tile: int | None = 512, **options: Any
) -> Tensor:
    """Return the loss of a batch of any size; small batches are tiled, too, unless tile is None."""
    loss, bias = sigmoid_pairs(*by_label(x, labels, **options), t, b, tile=tile)
    assert bias is b
    return loss


temperatures = st.sampled_from([0.1, 1.0, 10.0, 100.0])
biases = st.sampled_from([-3.0, 0.0, 0.05, 5.0, 50.0])
weightings = st.sampled_from(["all", "balanced", "positives"])
tiles = st.sampled_from([1, 2, 3, 4, 5, None])


@given(labelled_rows(), temperatures, biases, weightings, st.booleans(), tiles)
def test_rows_among_themselves(
    batch: Rows, t: float, b: float, divide_by: Any, include_self: bool, tile: int | None
) -> None:
    x, labels = batch
    x.requires_grad_()
    tt, bb = scalar(t, True), scalar(b, True)
    settings = {"divide_by": divide_by, "self_weight": float(include_self)}
    loss = tiled(x, labels, tt, bb, tile=tile, **settings)
    loss.backward()
    value, by_q, _, by_t, by_b = reference(
        x.tolist(), labels.tolist(), t, b, divide_by, include_self
    )
    assert loss.item() == pytest.approx(value, rel=1e-10, abs=0)
    assert loss.item() >= 0
    close(x.grad, by_q)
    close(tt.grad, by_t)
    close(bb.grad, by_b)


@given(labelled_rows(), labelled_rows(), temperatures, biases, weightings, tiles)
def test_references(
    batch: Rows, others: Rows, t: float, b: float, divide_by: Any, tile: int | None
) -> None:
    (q, r), labels, ref_labels = same_width(batch[0], others[0]), batch[1], others[1]
    tt, bb = scalar(t, True), scalar(b, True)
    loss = tiled(
        q, labels, tt, bb, references=r, reference_labels=ref_labels, divide_by=divide_by, tile=tile
    )
    loss.backward()
    value, by_q, by_r, by_t, by_b = reference(
        q.tolist(), labels.tolist(), t, b, divide_by, True, r.tolist(), ref_labels.tolist()
    )
    assert loss.item() == pytest.approx(value, rel=1e-10, abs=0)
    close(q.grad, by_q)
    close(r.grad, by_r)
    close(tt.grad, by_t)
    close(bb.grad, by_b)


@given(labelled_rows(), labelled_rows(), weightings, st.booleans(), tiles)
def test_rows_and_references_together(
    batch: Rows, others: Rows, divide_by: Any, include_self: bool, tile: int | None
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
        with_rows=True,
        divide_by=divide_by,
        self_weight=float(include_self),
        tile=tile,
    )
    loss.backward()
    value, by_q, by_r, by_t, by_b = reference(
        q.tolist(),
        labels.tolist(),
        10.0,
        2.0,
        divide_by,
        include_self,
        r.tolist(),
        ref_labels.tolist(),
        with_rows=True,
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


@pytest.mark.parametrize("tile", [64, None])
@pytest.mark.parametrize("include_self", [True, False])
@pytest.mark.parametrize(
    ("t", "b", "spread"), [(0.1, 0, 1.0), (10, 5, 1.0), (10, 5, 0.01), (100, 50, 0.01)]
)
def test_float32_is_accurate_even_if_the_loss_is_tiny(
    t: float, b: float, spread: float, include_self: bool, tile: int | None
) -> None:
    """Relative errors stay within 4 eps (t + |b| + 1): that of the logit, carried by exp."""
    x, labels = blobs(240, 6, 12, spread)
    results = {}
    for dtype in (torch.float32, torch.float64):
        y = x.to(dtype).requires_grad_()
        tt, bb = scalar(t, True), scalar(b, True)
        loss = tiled(y, labels, tt, bb, self_weight=float(include_self), tile=tile)
        loss.backward()
        results[dtype] = [v.detach().double() for v in (loss, y.grad, tt.grad, bb.grad)]
        assert loss.dtype == dtype
    bound = 4 * torch.finfo(torch.float32).eps * (t + abs(b) + 1)
    for rough, exact in zip(results[torch.float32], results[torch.float64], strict=True):
        assert torch.linalg.vector_norm(rough - exact) <= bound * torch.linalg.vector_norm(exact)
    if t == 100:
        assert 0 < results[torch.float64][0] < 1e-15


@pytest.mark.parametrize("tile", [7, None])
def test_a_tiny_loss_is_accurate(tile: int | None) -> None:
    """Subtracting large sums would lose all digits of a loss of 1e-21."""
    x, labels = blobs(24, 4, 6, 0.01)
    loss = tiled(x, labels, scalar(100), scalar(50), tile=tile)
    value, *_ = reference(x.tolist(), labels.tolist(), 100, 50)
    assert 0 < value < 1e-15
    assert loss.item() == pytest.approx(value, rel=1e-11, abs=0)


@pytest.mark.parametrize("x", [-45.0, -20.5, 15.0, 19.9, 20.1, 25.0, 35.0, 39.9, 40.1])
def test_softplus_has_no_step_at_its_threshold(x: float) -> None:
    row = torch.ones(1, 1, dtype=torch.float64)
    for tile in (512, None):
        loss = tiled(row, torch.tensor([0]), scalar(0.0), scalar(x), tile=tile)
        assert loss.item() == pytest.approx(max(x, 0) + math.log1p(math.exp(-abs(x))), rel=1e-14)


@pytest.mark.parametrize("include_self", [True, False])
@pytest.mark.parametrize("divide_by", ["all", "balanced", "positives"])
@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("tile", [2, None])
def test_gradcheck(divide_by: Any, include_self: bool, apart: bool, tile: int | None) -> None:
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
            divide_by=divide_by,
            self_weight=float(include_self),
            tile=tile,
        )

    r = r if apart else r.detach()
    assert torch.autograd.gradcheck(loss, (x, r, scalar(1.3, True), scalar(0.4, True)))


@pytest.mark.parametrize("tile", [512, None])
def test_only_tensors_that_require_a_gradient_get_one(tile: int | None) -> None:
    x, labels = blobs(12, 3, 4, 0.5)
    b = scalar(1.0, True)
    tiled(x, labels, scalar(2.0), b, tile=tile).backward()
    assert b.grad is not None
    y = x.clone().requires_grad_()
    with torch.no_grad():
        quiet = tiled(y, labels, scalar(2.0), b, tile=tile)
    assert not quiet.requires_grad
    assert torch.equal(quiet, tiled(y, labels, scalar(2.0), b, tile=tile).detach())


@pytest.mark.parametrize("tile", [512, None])
def test_an_incoming_gradient_scales_all_others(tile: int | None) -> None:
    x, labels = blobs(12, 3, 4, 0.5)
    x.requires_grad_()
    b = scalar(1.0, True)
    once = torch.autograd.grad(tiled(x, labels, scalar(2.0), b, tile=tile), (x, b))
    multiplied = torch.autograd.grad(-3 * tiled(x, labels, scalar(2.0), b, tile=tile), (x, b))
    for one, other in zip(once, multiplied, strict=True):
        torch.testing.assert_close(other, -3 * one, rtol=1e-12, atol=0)


def test_double_backward_of_tiles_is_an_error() -> None:
    x, labels = blobs(12, 3, 4, 0.5)
    check_second_derivative_is_an_error(lambda x: tiled(x, labels, scalar(2.0), scalar(0.0)), x)


@pytest.mark.parametrize("divide_by", ["all", "balanced", "positives"])
@pytest.mark.parametrize("include_self", [True, False])
@pytest.mark.parametrize("heads", [1, 2])
def test_second_derivatives_of_small_batches(
    divide_by: Any, include_self: bool, heads: int
) -> None:
    x = torch.randn(heads, 5, 2, dtype=torch.float64)
    x = x if heads > 1 else x[0]
    pairs = Pairs.of(
        torch.tensor([0, 1, 0, 1, 2]), divide_by=divide_by, self_weight=float(include_self)
    )

    def loss(x: Tensor, t: Tensor, b: Tensor) -> Tensor:
        return sigmoid_pairs(Sides(x), pairs, t, b)[0]

    b = torch.tensor([0.4, -0.6], dtype=torch.float64)[:heads] if heads > 1 else scalar(0.4)
    check_second_derivatives(loss, x, scalar(1.3), b)


@pytest.mark.parametrize("classes", [1, 6])
def test_no_matrix_of_all_pairs_is_allocated(classes: int) -> None:
    x, labels = blobs(400, classes, 12, 0.5)
    x.requires_grad_()
    with LargestTensor() as largest:
        tiled(x, labels, scalar(10, True), scalar(5), tile=50, self_weight=0.0).backward()
    assert largest.numel <= max(400 * 12, 50 * 50)


@pytest.mark.parametrize("t, b", [(100.0, 50.0), (100.0, -50.0), (100.0, 1e4), (1e-6, 0.0)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("tile", [8, None])
def test_extremes_stay_finite(t: float, b: float, dtype: torch.dtype, tile: int | None) -> None:
    x, labels = blobs(20, 4, 4, 1.0)
    x = x.to(dtype).requires_grad_()
    tt, bb = scalar(t, True), scalar(b, True)
    loss = tiled(x, labels, tt, bb, tile=tile)
    loss.backward()
    assert math.isfinite(loss.item()) and loss.item() >= 0
    for p in (x, tt, bb):
        assert p.grad is not None and p.grad.isfinite().all()


@pytest.mark.parametrize("tile", [512, None])
def test_a_temperature_of_zero(tile: int | None) -> None:
    """At t = 0 only t and b have a gradient: −w ζ r and −w ζ with ζ = ±1/2."""
    x, labels = blobs(6, 2, 3, 1.0)
    x.requires_grad_()
    t, b = scalar(0.0, True), scalar(0.0, True)
    loss = tiled(x, labels, t, b, tile=tile)
    loss.backward()
    value, by_x, _, by_t, by_b = reference(x.tolist(), labels.tolist(), 0.0, 0.0)
    assert loss.item() == pytest.approx(value, rel=1e-12)
    for gradient, expected in ((x.grad, by_x), (t.grad, by_t), (b.grad, by_b)):
        close(gradient, expected)


def test_two_views_of_two_images() -> None:
    """r = 1 for views, 0 for images, t = 1: 4 positive and 8 negative ordered pairs."""
    rows = torch.tensor([[1.0, 0.0], [0.0, 1.0]], dtype=torch.float64).repeat(2, 1)
    pairs = Pairs.of(torch.tensor([0, 1, 0, 1]), self_weight=0.0, divide_by="positives")
    loss, solved = sigmoid_pairs(Sides(rows), pairs, scalar(1.0), None)
    b = float(solved)  # it solves (σ(1 − b) + 2 σ(−b)) / 3 = 1/3
    share = (1 / (1 + math.exp(b - 1)) + 2 / (1 + math.exp(b))) / 3
    assert share == pytest.approx(1 / 3, abs=1e-6)
    expected = math.log1p(math.exp(b - 1)) + 2 * math.log1p(math.exp(-b))
    assert loss.item() == pytest.approx(expected, rel=1e-12)


# Several heads


@pytest.mark.parametrize("solve", [False, True])
@pytest.mark.parametrize("include_self", [True, False])
@pytest.mark.parametrize(
    ("heads", "n", "kind"),
    [
        (1, 7, "labels"),
        (3, 7, "labels"),
        (3, 0, "labels"),
        (2, 540, "labels"),
        (3, 7, "references"),
        (3, 7, "weights"),
        (3, 7, "values of rows"),
    ],
)
def test_heads_equal_separate_calls(
    heads: int, n: int, kind: str, include_self: bool, solve: bool
) -> None:
    source = torch.Generator().manual_seed(n)
    x = torch.randn(heads, n, 4, generator=source, dtype=torch.float64)
    x = torch.nn.functional.normalize(x, dim=2)
    r = x.flip(0)[:, :3].clone() if kind == "references" else None
    labels = torch.randint(0, 3, (n,), generator=source)
    starts = torch.linspace(-5, 5, heads, dtype=torch.float64)

    def compute(x: Tensor, r: Tensor | None, t: Tensor, b: Tensor, start: Tensor) -> Any:
        options: dict[str, Any] = {"self_weight": float(include_self), "divide_by": "balanced"}
        if r is not None:
            # The number of references is that of each head.
            options |= {"references": r.reshape(-1, 3, 4)[0], "reference_labels": labels[:3]}
        if kind == "weights":
            options["row_weights"] = torch.linspace(0, 2, n, dtype=torch.float64)
        pairs = Pairs.of(labels, per_row=kind == "values of rows", **options)
        given = None if solve else b
        return sigmoid_pairs(Sides(x, r), pairs, t, given, start=start)

    def leaves() -> list[Tensor]:
        rows = [x] if r is None else [x, r]
        biases = torch.linspace(-1, 1, heads, dtype=torch.float64)
        return [y.clone().requires_grad_() for y in (*rows, scalar(5.0), biases)]

    together, apart = leaves(), leaves()
    *fields, t, b = together
    losses, solved = compute(fields[0], fields[1] if r is not None else None, t, b, starts)
    assert losses.shape == ((heads, n) if kind == "values of rows" else (heads,))
    assert solved.shape == (heads,)
    *fields, t, b = apart
    expected = [
        compute(fields[0][k], fields[1][k] if r is not None else None, t, b[k], starts[k])
        for k in range(heads)
    ]
    torch.testing.assert_close(losses, torch.stack([loss for loss, _ in expected]))
    torch.testing.assert_close(solved, torch.stack([bias for _, bias in expected]))
    weights = torch.arange(1.0, heads + 1, dtype=torch.float64).view(-1, *[1] * (losses.dim() - 1))
    (losses * weights).sum().backward()
    sum((loss * k).sum() for k, (loss, _) in enumerate(expected, 1)).backward()
    for one, other in zip(together, apart, strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-10, atol=1e-13)
    assert solve or together[-1].grad is not None


def test_heads_share_a_given_bias() -> None:
    x, labels = torch.randn(2, 6, 3, dtype=torch.float64), torch.arange(6) % 2
    for tile in (3, None):
        b = scalar(0.5, True)
        losses, _ = sigmoid_pairs(Sides(x), Pairs.of(labels), scalar(2.0), b, tile=tile)
        losses.sum().backward()
        values, slopes = [], 0.0
        for rows in x.tolist():
            value, *_, by_b = reference(rows, labels.tolist(), 2.0, 0.5)
            values.append(value)
            slopes += by_b
        assert losses.tolist() == pytest.approx(values, rel=1e-12)
        close(b.grad, slopes)
