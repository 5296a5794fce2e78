"""Properties that all losses of the form `loss(embeddings, labels)` share."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from scs_supcon import CSSupCon, CSSupConOverlap, SCSSupCon, SimCLR, SupCon
from scs_supcon.errors import UserError
from scs_supcon.methods import Method

LOSSES: dict[str, Callable[[], Method]] = {
    "scs_supcon": SCSSupCon,
    "scs_supcon@paper": lambda: SCSSupCon(preset="paper"),
    "scs_supcon@learned": lambda: SCSSupCon(preset="learned"),
    "scs_supcon balanced": lambda: SCSSupCon(pairs="balanced", include_self=False, overlap=3),
    "supcon": SupCon,
    "simclr": SimCLR,
    "cs_supcon": CSSupCon,
    "cs_supcon_overlap": lambda: CSSupConOverlap(overlap=3),
}


@pytest.fixture(params=LOSSES)
def loss(request: pytest.FixtureRequest) -> Method:
    return LOSSES[request.param]().eval()  # without the guess of the solved b of earlier calls


def rows(n: int = 10, dtype: torch.dtype = torch.float64, seed: int = 0) -> Tensor:
    source = torch.Generator().manual_seed(seed)
    return torch.randn(n, 8, generator=source, dtype=torch.float64).to(dtype)


def value_and_gradient(loss: Method, z: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    loss.zero_grad()
    z = z.detach().clone().requires_grad_()
    value = loss(z, labels)
    value.backward()
    assert z.grad is not None
    return value.detach(), z.grad


def all_finite(loss: Method, z: Tensor, labels: Tensor) -> Tensor:
    value, grad = value_and_gradient(loss, z, labels)
    assert value.isfinite() and grad.isfinite().all()
    for p in loss.parameters():
        assert p.grad is None or p.grad.isfinite()
    terms = loss.loss_terms(z, labels)
    torch.testing.assert_close(torch.stack(list(terms.values())).sum(), value)
    if isinstance(loss, SCSSupCon):
        assert terms["contrast"] >= 0
    return grad


# Unusual batches.


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    "labels",
    [[4] * 10, list(range(10)), [0] * 9 + [1], [0, 0, 1, 1, 1, 2, 3, 3, 9, 9], [5], [], [3, 3]],
    ids=[
        "one class",
        "all different",
        "one without positives",
        "mixed",
        "one row",
        "empty",
        "one pair",
    ],
)
def test_all_distributions_of_labels_are_finite(
    loss: Method, labels: list[int], dtype: torch.dtype
) -> None:
    all_finite(loss, rows(len(labels), dtype), torch.tensor(labels, dtype=torch.long))


def test_an_empty_batch_costs_nothing(loss: Method) -> None:
    assert loss(rows(0), torch.zeros(0, dtype=torch.long)).item() == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_zero_vectors_get_a_zero_gradient(loss: Method, dtype: torch.dtype) -> None:
    z = rows(10, dtype)
    z[[2, 5, 6]] = 0
    grad = all_finite(loss, z, torch.arange(10) % 3)
    assert not grad[[2, 5, 6]].any()
    assert grad[[0, 1, 3]].any(1).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_equal_rows_are_finite(loss: Method, dtype: torch.dtype) -> None:
    z = rows(10, dtype)
    z[1:6] = z[0]
    all_finite(loss, z, torch.arange(10) % 3)
    all_finite(loss, torch.ones(10, 8, dtype=dtype), torch.arange(10) % 3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rows_of_any_length_are_finite(loss: Method, dtype: torch.dtype) -> None:
    limits = torch.finfo(dtype)
    powers = torch.linspace(math.log10(limits.tiny) - 5, math.log10(limits.max) - 2, 10)
    z = rows(10) * 10 ** powers.double()[:, None]
    all_finite(loss, z.to(dtype), torch.arange(10) % 3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("pairs", ["all", "balanced", "positives"])
@pytest.mark.parametrize(("t", "b"), [(100.0, 50.0), (100.0, -50.0), (100.0, 1000.0)])
def test_a_steep_boundary_is_finite(t: float, b: float, pairs: Any, dtype: torch.dtype) -> None:
    loss = SCSSupCon(preset="paper", t0=t, b0=b, pairs=pairs)
    for labels in (torch.arange(10) % 3, torch.zeros(10).long(), torch.arange(10)):
        all_finite(loss, rows(10, dtype), labels)


# Invariances.


def test_the_order_of_rows_does_not_matter(loss: Method) -> None:
    z, labels = rows(), torch.tensor([0, 0, 1, 1, 1, 2, 3, 3, 0, 9])
    order = torch.randperm(10)
    value, grad = value_and_gradient(loss, z, labels)
    again, other = value_and_gradient(loss, z[order], labels[order])
    torch.testing.assert_close(again, value, rtol=1e-12, atol=0)
    torch.testing.assert_close(other, grad[order], rtol=1e-9, atol=1e-14)


def test_rotations_do_not_matter(loss: Method) -> None:
    """Each field can be rotated separately, unless they share columns."""
    if getattr(loss, "overlap", 0):
        pytest.skip("fields with shared columns cannot be rotated separately")
    z, labels = rows(), torch.tensor([0, 0, 1, 1, 1, 2, 3, 3, 0, 9])
    turn = torch.zeros(8, 8, dtype=torch.float64)
    turn[:6, :6], _ = torch.linalg.qr(torch.randn(6, 6, dtype=torch.float64))
    turn[6:, 6:], _ = torch.linalg.qr(torch.randn(2, 2, dtype=torch.float64))
    value, grad = value_and_gradient(loss, z, labels)
    again, other = value_and_gradient(loss, z @ turn, labels)
    torch.testing.assert_close(again, value, rtol=1e-12, atol=0)
    torch.testing.assert_close(other, grad @ turn, rtol=1e-9, atol=1e-12)


def test_the_values_of_labels_do_not_matter(loss: Method) -> None:
    z, labels = rows(), torch.tensor([0, 0, 1, 1, 1, 2, 3, 3, 0, 4])
    value, grad = value_and_gradient(loss, z, labels)
    far = torch.iinfo(torch.long)
    for names in ([5, 7, far.max, far.max - 1, 0], [4, 3, 2, 1, 0]):
        again, other = value_and_gradient(loss, z, torch.tensor(names)[labels])
        torch.testing.assert_close(again, value, rtol=1e-12, atol=0)
        torch.testing.assert_close(other, grad, rtol=1e-9, atol=1e-14)


def test_the_type_of_labels_does_not_matter(loss: Method) -> None:
    z, labels = rows(), torch.arange(10) % 3
    for dtype in (torch.int8, torch.uint8, torch.int16, torch.int32):
        assert torch.equal(loss(z, labels.to(dtype)), loss(z, labels))


def test_the_memory_layout_does_not_matter(loss: Method) -> None:
    z, labels = rows(), torch.arange(10) % 3
    spread = torch.empty(20, 16, dtype=torch.float64)[::2, ::2].copy_(z)
    across = z.T.contiguous().T
    value, grad = value_and_gradient(loss, z, labels)
    for same in (spread, across):
        again, other = value_and_gradient(loss, same, labels)
        torch.testing.assert_close(again, value, rtol=1e-12, atol=0)
        torch.testing.assert_close(other, grad, rtol=1e-9, atol=1e-14)


def test_inputs_are_not_modified(loss: Method) -> None:
    z, labels = rows(), torch.arange(10) % 3
    before = z.clone(), labels.clone()
    value_and_gradient(loss, z, labels)
    with torch.no_grad():
        loss(z, labels)
    assert torch.equal(z, before[0]) and torch.equal(labels, before[1])


# Views.


@pytest.mark.parametrize("views", [1, 2, 3])
def test_views_are_flattened_view_major(loss: Method, views: int) -> None:
    """View 1 of all images comes first; SimCLR uses the images as labels."""
    images = rows(4 * views).view(4, views, 8)
    labels = torch.arange(4) if isinstance(loss, SimCLR) else torch.tensor([0, 1, 1, 2])
    flat = torch.cat([images[:, v] for v in range(views)])
    value, grad = value_and_gradient(loss, images, labels)
    again, other = value_and_gradient(loss, flat, labels.repeat(views))
    assert torch.equal(again, value)
    assert torch.equal(torch.cat([grad[:, v] for v in range(views)]), other)


# Precision.


@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
def test_half_precision_is_computed_in_float32(loss: Method, half: torch.dtype) -> None:
    """Half-precision inputs give the float32 result, with and without autocast."""
    z, labels = rows().to(half), torch.arange(10) % 3
    value, grad = value_and_gradient(loss, z.float(), labels)
    half_value, half_grad = value_and_gradient(loss, z, labels)
    assert half_value.dtype == torch.float32 and half_grad.dtype == half
    assert torch.equal(half_value, value) and torch.equal(half_grad, grad.to(half))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for x in (z, z.float()):
            again, other = value_and_gradient(loss, x, labels)
            assert torch.equal(again, value)
            torch.testing.assert_close(other, grad.to(x.dtype))  # sums in another order


def test_autocast_around_an_encoder(loss: Method) -> None:
    """The loss of bfloat16 embeddings is computed in float32; the weights get a gradient."""
    layer = torch.nn.Linear(8, 8)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        z = layer(rows(10, torch.float32))
        assert z.dtype == torch.bfloat16
        value = loss(z, torch.arange(10) % 3)
    value.backward()
    assert torch.equal(value, loss(z.detach().float(), torch.arange(10) % 3))
    assert layer.weight.grad is not None and layer.weight.grad.any()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here")
def test_cuda_equals_the_cpu(loss: Method) -> None:
    z, labels = rows(1500), torch.arange(1500) % 37
    value, grad = value_and_gradient(loss, z, labels)
    on_cuda, other = value_and_gradient(loss.cuda(), z.cuda(), labels.cuda())
    torch.testing.assert_close(on_cuda.cpu(), value, rtol=1e-9, atol=0)
    torch.testing.assert_close(other.cpu(), grad, rtol=1e-7, atol=1e-12)


# Errors.

BAD: dict[str, tuple[Any, Any, str]] = {
    "one axis": (torch.ones(4), torch.arange(4), r"shape \(N, D\) or \(B, V, D\), got \(4,\)"),
    "four axes": (torch.ones(4, 2, 3, 3), torch.arange(4), r"got \(4, 2, 3, 3\)"),
    "a list": ([[1.0, 2.0]], torch.arange(1), "embeddings must be a tensor.*list"),
    "integers": (torch.ones(4, 8).long(), torch.arange(4), "embeddings must be floating.*int64"),
    "no columns": (torch.ones(4, 0), torch.arange(4), r"shape \(4, 0\)"),
    "no views": (torch.ones(4, 0, 8), torch.arange(4), r"shape \(4, 0, 8\)"),
    "float labels": (torch.ones(4, 8), torch.ones(4), r"got torch.float32.*labels.long\(\)"),
    "boolean labels": (torch.ones(4, 8), torch.ones(4).bool(), "labels must be integers.*bool"),
    "labels as a list": (torch.ones(2, 8), [0, 1], r"labels must be .*\(2,\), got list"),
    "labels as columns": (
        torch.ones(4, 8),
        torch.ones(4, 1).long(),
        r"shape \(4,\), got \(4, 1\)",
    ),
    "too few labels": (
        torch.ones(4, 8),
        torch.arange(3),
        r"number of labels \(3\) must equal .*\(4\)",
    ),
    "too many labels": (
        torch.ones(4, 8),
        torch.arange(5),
        r"number of labels \(5\) must equal .*\(4\)",
    ),
}


@pytest.mark.parametrize("bad", BAD)
def test_errors_describe_wrong_inputs(loss: Method, bad: str) -> None:
    embeddings, labels, message = BAD[bad]
    with pytest.raises(UserError, match=message):
        loss(embeddings, labels)


def test_missing_labels_are_an_error(loss: Method) -> None:
    with pytest.raises(UserError, match="labels are missing"):
        loss(rows())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_the_error_lists_rows_that_are_not_finite(
    loss: Method, bad: float, dtype: torch.dtype
) -> None:
    z = rows(10, dtype)
    z[3, 1] = z[7, 0] = bad
    z[7, 1] = -bad
    with pytest.raises(UserError, match=r"NaN or infinity in 2 of 10 rows \(first: \[3, 7\]\)"):
        loss(z, torch.arange(10) % 3)


def test_huge_numbers_are_accepted(loss: Method) -> None:
    """Their sum overflows, but they are finite."""
    z = torch.full((4, 8), torch.finfo(torch.float64).max / 4, dtype=torch.float64)
    all_finite(loss, z, torch.tensor([0, 0, 1, 1]))


@pytest.mark.parametrize("method", [SCSSupCon, CSSupCon, CSSupConOverlap])
@pytest.mark.parametrize("common_dim", [0, -1, 9])
def test_common_dim_must_fit_the_embeddings(method: type[Method], common_dim: int) -> None:
    with pytest.raises(UserError, match=rf"between 1 and the width .* \(8\), got {common_dim}"):
        method(common_dim)(rows(), torch.arange(10) % 3)
