import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from pair_batches import (
    LargestTensor,
    Rows,
    Vectors,
    check_second_derivative_is_an_error,
    close,
    same_width,
)
from scs_supcon.kernels import style_distance

PIECE = 1 << 19


def reference(
    q: Vectors, q_labels: list[int], r: Vectors | None = None, r_labels: list[int] | None = None
) -> tuple[float, Vectors, Vectors]:
    """(D, ∂D/∂q, ∂D/∂r) of D = (1/n) Σ_i (1/|P_i|) Σ_{p∈P_i} ‖q_i − r_p‖: Eq. 4's style sum."""
    apart = r is not None
    right, right_labels = (r, r_labels) if apart else (q, q_labels)
    assert right is not None and right_labels is not None
    value = 0.0
    by_q = [[0.0] * len(row) for row in q]
    by_r = [[0.0] * len(row) for row in right]
    for i in range(len(q)):
        positives = [
            p for p in range(len(right)) if right_labels[p] == q_labels[i] and (apart or p != i)
        ]
        for p in positives:
            gap = [x - y for x, y in zip(q[i], right[p], strict=True)]
            far = math.hypot(*gap)
            value += far / len(positives) / len(q)
            for k in range(len(gap)):
                slope = gap[k] / far / len(positives) / len(q) if far else 0.0
                by_q[i][k] += slope
                (by_r if apart else by_q)[p][k] -= slope
    return value, by_q, by_r


def random_rows(n: int, d: int, labels: list[int], seed: int, duplicates: bool) -> Rows:
    source = torch.Generator().manual_seed(seed)
    x = torch.randn(n, d, generator=source, dtype=torch.float64)
    if duplicates and n > 3:
        x[1], x[2], x[3] = x[0], 0, 0
    return x, torch.tensor(labels, dtype=torch.long)


@st.composite
def batches(draw: st.DrawFn, least: int = 0, most: int = 10) -> Rows:
    n = draw(st.integers(least, most))
    mix = draw(st.sampled_from(["any", "one", "different", "uneven"]))
    source = torch.Generator().manual_seed(draw(st.integers(0, 1 << 20)))
    labels = {
        "any": torch.randint(0, max(2, n // 4), (n,), generator=source).tolist(),
        "one": [7] * n,
        "different": list(range(n)),
        "uneven": [math.isqrt(k) if k % 3 else -1 for k in range(n)],
    }[mix]
    return random_rows(
        n, draw(st.integers(1, 3)), labels, draw(st.integers(0, 99)), draw(st.booleans())
    )


def check(batch: Rows, others: Rows | None, piece: int | None) -> None:
    q, labels = batch
    q = q.clone().requires_grad_()
    if others is None:
        distance = style_distance(q, labels, piece=piece)
        value, by_q, _ = reference(q.tolist(), labels.tolist())
    else:
        (q, r), ref_labels = same_width(q.detach(), others[0]), others[1]
        distance = style_distance(q, labels, references=r, reference_labels=ref_labels, piece=piece)
        value, by_q, by_r = reference(q.tolist(), labels.tolist(), r.tolist(), ref_labels.tolist())
    distance.backward()
    assert distance.item() == pytest.approx(value, rel=1e-10, abs=0)
    close(q.grad, by_q)
    if others is not None:
        close(r.grad, by_r)


pieces = st.sampled_from([1, 7, 50, 400, PIECE, None])


@given(batches(), pieces)
def test_small_batches(batch: Rows, piece: int | None) -> None:
    check(batch, None, piece)


@given(batches(), batches(), pieces)
def test_small_batches_and_references(batch: Rows, others: Rows, piece: int | None) -> None:
    check(batch, others, piece)


@settings(max_examples=16)
@given(batches(130, 150), pieces)
def test_batches_of_many_rows(batch: Rows, piece: int | None) -> None:
    check(batch, None, piece)


@settings(max_examples=16)
@given(batches(100, 130), batches(170, 180), pieces)
def test_many_rows_and_references(batch: Rows, others: Rows, piece: int | None) -> None:
    check(batch, others, piece)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("classes", [1, 5, 400])
def test_a_large_batch_in_pieces_of_the_usual_size(classes: int, dtype: torch.dtype) -> None:
    x, labels = random_rows(1100, 6, (torch.arange(1100) % classes).tolist(), 0, duplicates=False)
    same = (labels[:, None] == labels).double().fill_diagonal_(0)
    y = x.to(dtype, copy=True).requires_grad_()
    distance = style_distance(y, labels)
    distance.backward()
    z = y.detach().double().requires_grad_()
    expected = (same * torch.cdist(z, z) / same.sum(1).clamp_min(1)[:, None]).sum() / 1100
    expected.backward()
    assert y.grad is not None and z.grad is not None
    tolerance = 1e-10 if dtype == torch.float64 else 1e-6
    torch.testing.assert_close(distance.double(), expected, rtol=tolerance, atol=0)
    torch.testing.assert_close(y.grad.double(), z.grad, rtol=tolerance, atol=tolerance * 1e-2)


@pytest.mark.parametrize("piece", [10, PIECE])
@pytest.mark.parametrize("n", [8, 200])
@pytest.mark.parametrize("gap", [1e-1, 1e-3, 1e-5])
def test_near_duplicates_in_float32(n: int, gap: float, piece: int) -> None:
    """Two views of an image: relative error within 4 eps, where a float32 Gram is 35% off."""
    source = torch.Generator().manual_seed(2)
    one = torch.nn.functional.normalize(torch.randn(n // 2, 16, generator=source))
    x = torch.cat([one, one + gap * torch.randn(one.shape, generator=source) / 4])
    labels = torch.arange(n // 2).repeat(2)
    results = {}
    for dtype in (torch.float32, torch.float64):
        y = x.to(dtype, copy=True).requires_grad_()
        value = style_distance(y, labels, piece=piece)
        value.backward()
        assert y.grad is not None
        results[dtype] = value.detach().double(), y.grad.double()
    (value, grad), (exact, exact_grad) = results[torch.float32], results[torch.float64]
    eps = torch.finfo(torch.float32).eps
    assert abs(value - exact) <= 4 * eps * exact
    # Directions: rounding of a float64 product, 1e-16, over the squared gap.
    assert (grad - exact_grad).abs().max() <= (4 * eps + 1e-14 / gap**2) * exact_grad.abs().max()


@pytest.mark.parametrize("n", [8, 140])
@pytest.mark.parametrize("gap", [1e-4, 1e-7, 1e-10])
def test_near_duplicates_in_float64(n: int, gap: float) -> None:
    """float64 rows are subtracted, so that small distances are exact."""
    one = torch.randn(n // 2, 3, dtype=torch.float64)
    x = torch.cat([one, one + gap * torch.randn(one.shape, dtype=torch.float64)])
    for piece in (10, PIECE, None):
        check((x, torch.arange(n // 2).repeat(2)), None, piece)


@pytest.mark.parametrize("n", [6, 300])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_coincident_rows_have_distance_and_gradient_zero(n: int, dtype: torch.dtype) -> None:
    x = torch.full((n, 5), 0.3, dtype=dtype, requires_grad=True)
    for piece in (10, PIECE, None):
        x.grad = None
        value = style_distance(x, torch.arange(n) // 3, piece=piece)
        value.backward()
        assert value.item() == 0
        assert x.grad is not None and not x.grad.any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("references", [0, 3])
def test_without_rows_the_distance_is_zero(references: int, dtype: torch.dtype) -> None:
    x = torch.ones(0, 5, dtype=dtype, requires_grad=True)
    none, ref_labels = torch.zeros(0).long(), torch.zeros(references).long()
    r = torch.ones(references, 5, dtype=dtype)
    for value in (
        style_distance(x, none),
        style_distance(x, none, piece=7),
        style_distance(x, none, references=r, reference_labels=ref_labels),
    ):
        value.backward()
        assert value.item() == 0


@pytest.mark.parametrize("piece", [4, PIECE, None])
@pytest.mark.parametrize("apart", [False, True])
def test_gradcheck(apart: bool, piece: int | None) -> None:
    source = torch.Generator().manual_seed(1)
    x = torch.randn(6, 3, generator=source, dtype=torch.float64, requires_grad=True)
    r = torch.randn(4, 3, generator=source, dtype=torch.float64, requires_grad=apart)
    labels, ref_labels = torch.tensor([0, 1, 0, 1, 2, 1]), torch.tensor([1, 0, 3, 1])

    def distance(x: Tensor, r: Tensor) -> Tensor:
        if apart:
            return style_distance(x, labels, references=r, reference_labels=ref_labels)
        return style_distance(x, labels, piece=piece)

    assert torch.autograd.gradcheck(distance, (x, r))


def test_double_backward_is_an_error() -> None:
    labels = torch.tensor([0, 0, 1, 1, 1, 2])
    x = torch.randn(6, 3, dtype=torch.float64)
    check_second_derivative_is_an_error(lambda x: style_distance(x, labels, piece=PIECE), x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_one_huge_class_allocates_no_matrix_of_all_pairs(dtype: torch.dtype) -> None:
    x = torch.randn(600, 4, dtype=dtype, requires_grad=True)
    with LargestTensor() as largest:
        style_distance(x, torch.zeros(600, dtype=torch.long), piece=6000).backward()
    assert largest.numel <= 6000
