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
)
from scs_supcon.kernels import Pairs, Sides, softmax_pairs


def reference(
    q: Vectors,
    q_labels: list[int],
    temperature: float,
    r: Vectors | None = None,
    r_labels: list[int] | None = None,
    with_rows: bool = False,
    anchors: str = "all",
) -> tuple[float, Vectors, Vectors]:
    """(L, ∂L/∂q, ∂L/∂r) of L = (1/n) Σ_i (−1/|P_i|) Σ_{p∈P_i} log [e^{q_i·r_p/τ} / Σ_a e^{…}].

    Khosla et al., the "out" form; a ≠ i unless the references stand apart; ∂ by hand. With
    `with_rows`, r is joined to q. n is the number of rows, or of those with positives.
    """
    apart = r is not None and not with_rows
    right, right_labels = (q, q_labels) if r is None else (r, r_labels)
    assert right is not None and right_labels is not None
    if with_rows:
        right, right_labels = q + right, q_labels + right_labels
    n = len(q)
    if anchors == "with positives":
        n = sum(
            y in right_labels[: 0 if apart else i] + right_labels[0 if apart else i + 1 :]
            for i, y in enumerate(q_labels)
        )
    value = 0.0
    by_q = [[0.0] * len(row) for row in q]
    by_r = [[0.0] * len(row) for row in right]
    for i in range(len(q)):
        others = [a for a in range(len(right)) if apart or a != i]
        positives = [p for p in others if right_labels[p] == q_labels[i]]
        if not positives:
            continue
        logit = {
            a: math.fsum(x * y for x, y in zip(q[i], right[a], strict=True)) / temperature
            for a in others
        }
        top = max(logit.values())
        log_z = top + math.log(math.fsum(math.exp(x - top) for x in logit.values()))
        value += math.fsum(log_z - logit[p] for p in positives) / len(positives) / n
        for a in others:
            slope = math.exp(logit[a] - log_z) - (a in positives) / len(positives)
            for k in range(len(q[i])):
                by_q[i][k] += slope * right[a][k] / temperature / n
                to = by_r if apart or a >= len(q) else by_q
                to[a][k] += slope * q[i][k] / temperature / n
    return value, by_q, by_r


def tiled(
    x: Tensor, labels: Tensor, temperature: float, *, tile: int | None = 512, **options: Any
) -> Tensor:
    """Return the loss of a batch of any size; small batches are tiled, too, unless tile is None."""
    return softmax_pairs(*by_label(x, labels, **options), temperature, tile=tile)


# At 0.01 the logits are too far apart for one shift: each row needs a separate shift.
temperatures = st.sampled_from([0.01, 0.1, 0.5, 5.0])
tiles = st.sampled_from([1, 2, 3, 4, 5, None])
anchored = st.sampled_from(["all", "with positives"])


@given(labelled_rows(), temperatures, anchored, tiles)
def test_rows_among_themselves(
    batch: Rows, temperature: float, anchors: Any, tile: int | None
) -> None:
    x, labels = batch
    x.requires_grad_()
    loss = tiled(x, labels, temperature, anchors=anchors, tile=tile)
    loss.backward()
    value, by_q, _ = reference(x.tolist(), labels.tolist(), temperature, anchors=anchors)
    assert loss.item() == pytest.approx(value, rel=1e-10, abs=1e-13)
    close(x.grad, by_q)


@given(labelled_rows(), labelled_rows(), temperatures, st.booleans(), anchored, tiles)
def test_references(
    batch: Rows,
    others: Rows,
    temperature: float,
    with_rows: bool,
    anchors: Any,
    tile: int | None,
) -> None:
    (q, r), labels, ref_labels = same_width(batch[0], others[0]), batch[1], others[1]
    options = {"with_rows": with_rows, "anchors": anchors}
    to = {"references": r, "reference_labels": ref_labels}
    loss = tiled(q, labels, temperature, tile=tile, **to, **options)
    loss.backward()
    value, by_q, by_r = reference(
        q.tolist(), labels.tolist(), temperature, r.tolist(), ref_labels.tolist(), **options
    )
    assert loss.item() == pytest.approx(value, rel=1e-10, abs=1e-13)
    close(q.grad, by_q)
    close(r.grad, by_r[len(q) :] if with_rows else by_r)


def unit_rows(n: int, d: int, classes: int, seed: int = 3) -> Rows:
    """Unit rows in float64 that are exact in float32."""
    source = torch.Generator().manual_seed(seed)
    x = torch.randn(n, d, generator=source, dtype=torch.float64)
    return torch.nn.functional.normalize(x).float().double(), torch.arange(n) % classes


@pytest.mark.parametrize("tile", [64, None])
@pytest.mark.parametrize("temperature", [0.01, 0.1, 1.0])
def test_float32_against_float64(temperature: float, tile: int | None) -> None:
    """Absolute error of the value, relative error of the gradient: within 4 eps (1 + 1/τ)."""
    x, labels = unit_rows(240, 12, 6)
    results = {}
    for dtype in (torch.float32, torch.float64):
        y = x.to(dtype).requires_grad_()
        loss = tiled(y, labels, temperature, tile=tile)
        loss.backward()
        assert loss.dtype == dtype and y.grad is not None
        results[dtype] = loss.detach().double(), y.grad.double()
    (value, grad), (exact, exact_grad) = results[torch.float32], results[torch.float64]
    bound = 4 * torch.finfo(torch.float32).eps * (1 + 1 / temperature)
    assert abs(value - exact) <= bound
    assert torch.linalg.vector_norm(grad - exact_grad) <= bound * torch.linalg.vector_norm(
        exact_grad
    )


@pytest.mark.parametrize("temperature", [0.01, 0.5])
@pytest.mark.parametrize("kind", ["rows", "references", "rows and references"])
def test_gradcheck(temperature: float, kind: str) -> None:
    source = torch.Generator().manual_seed(1)
    x = 0.3 * torch.randn(6, 3, generator=source, dtype=torch.float64)
    r = 0.3 * torch.randn(4, 3, generator=source, dtype=torch.float64)
    labels, ref_labels = torch.tensor([0, 1, 0, 1, 2, 1]), torch.tensor([1, 0, 3, 1])
    x.requires_grad_()
    r.requires_grad_(kind != "rows")
    to = {"with_rows": kind == "rows and references", "reference_labels": ref_labels}

    def loss(x: Tensor, r: Tensor) -> Tensor:
        if kind == "rows":
            return tiled(x, labels, temperature, tile=2)
        return tiled(x, labels, temperature, references=r, tile=2, **to)

    assert torch.autograd.gradcheck(loss, (x, r), eps=1e-7, rtol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("length", [1e-20, 1.0, 1e3])
@pytest.mark.parametrize("tile", [8, None])
def test_any_length_of_rows_stays_finite(
    length: float, dtype: torch.dtype, tile: int | None
) -> None:
    """Logits of 1e8 overflow exponentials that are not shifted by the maximum of the row."""
    x, labels = unit_rows(20, 4, 4)
    x = (x * length).to(dtype).requires_grad_()
    loss = tiled(x, labels, 0.01, tile=tile)
    loss.backward()
    assert math.isfinite(loss.item())
    assert x.grad is not None and x.grad.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("temperature", [0.04, 0.02, 0.005, 1e-4])
@pytest.mark.parametrize("tile", [512, None])
def test_a_row_opposite_to_all_others(
    temperature: float, dtype: torch.dtype, tile: int | None
) -> None:
    """All logits of this row are far below the largest; with one shift they would vanish."""
    x = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.96, 0.28], [0.8, 0.6]], dtype=dtype)
    labels = torch.tensor([0, 0, 1, 1])
    x.requires_grad_()
    loss = tiled(x, labels, temperature, tile=tile)
    loss.backward()
    value, by_q, _ = reference(x.tolist(), labels.tolist(), temperature)
    assert loss.item() == pytest.approx(value, rel=1e-6)
    assert x.grad is not None
    torch.testing.assert_close(x.grad, torch.tensor(by_q, dtype=dtype), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("tile", [512, None])
def test_an_incoming_gradient_scales_the_gradient(tile: int | None) -> None:
    x, labels = unit_rows(12, 3, 4)
    x.requires_grad_()
    (once,) = torch.autograd.grad(tiled(x, labels, 0.1, tile=tile), x)
    (multiplied,) = torch.autograd.grad(-3 * tiled(x, labels, 0.1, tile=tile), x)
    torch.testing.assert_close(multiplied, -3 * once, rtol=1e-12, atol=0)
    with torch.no_grad():
        assert not tiled(x, labels, 0.1, tile=tile).requires_grad


def test_double_backward_of_tiles_is_an_error() -> None:
    x, labels = unit_rows(12, 3, 4)
    check_second_derivative_is_an_error(lambda x: tiled(x, labels, 0.1), x)


@pytest.mark.parametrize("n", [5, 70])
def test_second_derivatives_of_small_batches(n: int) -> None:
    x, labels = unit_rows(n, 2, 3)
    check_second_derivatives(lambda x: softmax_pairs(Sides(x), Pairs.of(labels), 0.5), x)


@pytest.mark.parametrize("temperature", [0.01, 0.1])
def test_no_matrix_of_all_pairs_is_allocated(temperature: float) -> None:
    x, labels = unit_rows(400, 12, 6)
    x.requires_grad_()
    with LargestTensor() as largest:
        tiled(x, labels, temperature, tile=50).backward()
    assert largest.numel <= max(400 * 12, 50 * 50)
