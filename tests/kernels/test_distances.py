import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
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
    same_width,
)
from scs_supcon.kernels import Pairs, Sides, mean_distance

PIECE = 1 << 19


def reference(
    q: Vectors,
    q_labels: list[int],
    r: Vectors | None = None,
    r_labels: list[int] | None = None,
    with_rows: bool = False,
    anchors: str = "all",
) -> tuple[float, Vectors, Vectors]:
    """(D, ∂D/∂q, ∂D/∂r) of D = (1/n) Σ_i (1/|P_i|) Σ_{p∈P_i} ‖q_i − r_p‖: Eq. 4's style sum.

    With `with_rows`, r is joined to q. n is the number of rows, or of those with positives.
    """
    apart = r is not None and not with_rows
    right, right_labels = (q, q_labels) if r is None else (r, r_labels)
    assert right is not None and right_labels is not None
    if with_rows:
        right, right_labels = q + right, q_labels + right_labels
    positives_of = [
        [p for p in range(len(right)) if right_labels[p] == q_labels[i] and (apart or p != i)]
        for i in range(len(q))
    ]
    n = len(q) if anchors == "all" else sum(len(positives) > 0 for positives in positives_of)
    value = 0.0
    by_q = [[0.0] * len(row) for row in q]
    by_r = [[0.0] * len(row) for row in right]
    for i in range(len(q)):
        positives = positives_of[i]
        for p in positives:
            gap = [x - y for x, y in zip(q[i], right[p], strict=True)]
            far = math.hypot(*gap)
            value += far / len(positives) / n
            for k in range(len(gap)):
                slope = gap[k] / far / len(positives) / n if far else 0.0
                by_q[i][k] += slope
                (by_r if apart or p >= len(q) else by_q)[p][k] -= slope
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


def distance(x: Tensor, labels: Tensor, piece: int | None = None, **options: Any) -> Tensor:
    return mean_distance(*by_label(x, labels, **options), piece=piece)


def check(batch: Rows, others: Rows | None, piece: int | None, **options: Any) -> None:
    q, labels = batch
    q = q.clone().requires_grad_()
    if others is None:
        result = distance(q, labels, piece, **options)
        value, by_q, _ = reference(q.tolist(), labels.tolist(), **options)
    else:
        (q, r), ref_labels = same_width(q.detach(), others[0]), others[1]
        to = {"references": r, "reference_labels": ref_labels}
        result = distance(q, labels, piece, **to, **options)
        value, by_q, by_r = reference(
            q.tolist(), labels.tolist(), r.tolist(), ref_labels.tolist(), **options
        )
    result.backward()
    assert result.item() == pytest.approx(value, rel=1e-10, abs=0)
    close(q.grad, by_q)
    if others is not None:
        close(r.grad, by_r[len(q) :] if options.get("with_rows") else by_r)


pieces = st.sampled_from([1, 7, 50, 400, PIECE, None])
anchored = st.sampled_from(["all", "with positives"])


@given(batches(), pieces, anchored)
def test_small_batches(batch: Rows, piece: int | None, anchors: str) -> None:
    check(batch, None, piece, anchors=anchors)


@given(batches(), batches(), pieces, st.booleans(), anchored)
def test_small_batches_and_references(
    batch: Rows, others: Rows, piece: int | None, with_rows: bool, anchors: str
) -> None:
    check(batch, others, piece, with_rows=with_rows, anchors=anchors)


@settings(max_examples=16)
@given(batches(130, 150), pieces)
def test_batches_of_many_rows(batch: Rows, piece: int | None) -> None:
    check(batch, None, piece)


@settings(max_examples=16)
@given(batches(100, 130), batches(170, 180), pieces, st.booleans())
def test_many_rows_and_references(
    batch: Rows, others: Rows, piece: int | None, with_rows: bool
) -> None:
    check(batch, others, piece, with_rows=with_rows)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("classes", [1, 5, 400])
def test_a_large_batch_in_pieces_of_the_usual_size(classes: int, dtype: torch.dtype) -> None:
    x, labels = random_rows(1100, 6, (torch.arange(1100) % classes).tolist(), 0, duplicates=False)
    same = (labels[:, None] == labels).double().fill_diagonal_(0)
    y = x.to(dtype, copy=True).requires_grad_()
    result = distance(y, labels)
    result.backward()
    z = y.detach().double().requires_grad_()
    expected = (same * torch.cdist(z, z) / same.sum(1).clamp_min(1)[:, None]).sum() / 1100
    expected.backward()
    assert y.grad is not None and z.grad is not None
    tolerance = 1e-10 if dtype == torch.float64 else 1e-6
    torch.testing.assert_close(result.double(), expected, rtol=tolerance, atol=0)
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
        value = distance(y, labels, piece)
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
        value = distance(x, torch.arange(n) // 3, piece)
        value.backward()
        assert value.item() == 0
        assert x.grad is not None and not x.grad.any()


@pytest.mark.parametrize("piece", [1, PIECE, None])
@pytest.mark.parametrize("gap", [1e-18, 1e-25, 1e-30, 1e-42])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gradients_of_tiny_distances_are_not_huge(
    gap: float, dtype: torch.dtype, piece: int | None
) -> None:
    """A direction has length 1; the squares of a gap can be 0 in float32."""
    x = torch.tensor([[1, 0], [1, gap]], dtype=dtype, requires_grad=True)
    distance(x, torch.zeros(2).long(), piece).backward()
    assert x.grad is not None and x.grad.norm(dim=1).max() <= 1 + 1e-6


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("references", [0, 3])
def test_without_rows_the_distance_is_zero(references: int, dtype: torch.dtype) -> None:
    x = torch.ones(0, 5, dtype=dtype, requires_grad=True)
    none, ref_labels = torch.zeros(0).long(), torch.zeros(references).long()
    r = torch.ones(references, 5, dtype=dtype)
    for value in (
        distance(x, none),
        distance(x, none, piece=7),
        distance(x, none, references=r, reference_labels=ref_labels),
    ):
        value.backward()
        assert value.item() == 0


@pytest.mark.parametrize("piece", [4, PIECE, None])
@pytest.mark.parametrize("kind", ["rows", "references", "rows and references"])
def test_gradcheck(kind: str, piece: int | None) -> None:
    source = torch.Generator().manual_seed(1)
    x = torch.randn(6, 3, generator=source, dtype=torch.float64, requires_grad=True)
    r = torch.randn(4, 3, generator=source, dtype=torch.float64, requires_grad=kind != "rows")
    labels, ref_labels = torch.tensor([0, 1, 0, 1, 2, 1]), torch.tensor([1, 0, 3, 1])

    to = {"with_rows": kind == "rows and references", "reference_labels": ref_labels}

    def compute(x: Tensor, r: Tensor) -> Tensor:
        if kind == "rows":
            return distance(x, labels, piece)
        return distance(x, labels, piece, references=r, **to)

    assert torch.autograd.gradcheck(compute, (x, r))


@pytest.mark.parametrize("piece", [4, PIECE, None])
def test_second_derivatives(piece: int | None) -> None:
    labels = torch.tensor([0, 0, 1, 1, 1, 2])
    x = torch.randn(6, 3, dtype=torch.float64)
    pairs = Pairs.of(labels, anchors="with positives")
    check_second_derivatives(lambda x: mean_distance(Sides(x), pairs, piece=piece), x)


@pytest.mark.parametrize("with_rows", [False, True])
def test_double_backward_with_references_is_an_error(with_rows: bool) -> None:
    labels = torch.tensor([0, 0, 1, 1, 1, 2])
    x, r = torch.randn(2, 6, 3, dtype=torch.float64)
    to = {"references": r, "reference_labels": labels, "with_rows": with_rows}
    check_second_derivative_is_an_error(lambda x: distance(x, labels, **to), x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_one_huge_class_allocates_no_matrix_of_all_pairs(dtype: torch.dtype) -> None:
    x = torch.randn(600, 4, dtype=dtype, requires_grad=True)
    with LargestTensor() as largest:
        distance(x, torch.zeros(600, dtype=torch.long), piece=6000).backward()
    assert largest.numel <= 6000
