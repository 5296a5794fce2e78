import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from scs_supcon.nn.head import (
    Centre,
    Projection,
    ProjectionHeads,
    fields,
    join_heads,
    split,
    unit,
)


def reference(rows: list[list[float]], eps: float = 1e-5) -> list[list[float]]:
    """(x − mean) / √(var + eps) of each column, with the biased variance."""
    columns = []
    for column in zip(*rows, strict=True):
        mean = math.fsum(column) / len(column)
        var = math.fsum((x - mean) ** 2 for x in column) / len(column)
        columns.append([(x - mean) / math.sqrt(var + eps) for x in column])
    return [list(row) for row in zip(*columns, strict=True)]


# Projection and centring.


def test_projection_is_linear_relu_linear() -> None:
    head = Projection(5, 3, hidden=7)
    first, _, second = head.layers
    x = torch.randn(4, 5)
    expected = torch.relu(x @ first.weight.T + first.bias) @ second.weight.T + second.bias
    torch.testing.assert_close(head(x), expected)
    assert [tuple(p.shape) for p in head.parameters()] == [(7, 5), (7,), (3, 7), (3,)]


def test_hidden_0_means_the_width_of_the_features() -> None:
    assert Projection(5, 3).layers[0].out_features == 5
    assert Projection(5).layers[2].out_features == 256


def test_centring_adds_no_parameters() -> None:
    head = Projection(5, 3, centre=True)
    assert len(list(head.parameters())) == 4
    x = torch.randn(20, 5)
    torch.testing.assert_close(head(x).mean(0), torch.zeros(3), atol=1e-6, rtol=0)


@given(st.integers(1, 9), st.integers(0, 1 << 20))
def test_centring_equals_the_reference(n: int, seed: int) -> None:
    x = torch.randn(n, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    expected = torch.tensor(reference(x.tolist()), dtype=torch.float64)
    torch.testing.assert_close(Centre(3).double()(x), expected, rtol=1e-10, atol=1e-12)


def test_centring_is_batch_norm_without_scale_and_shift() -> None:
    """Compare value, gradient, running statistics and the output in evaluation mode."""
    ours, theirs = Centre(4).double(), nn.BatchNorm1d(4, affine=False).double()
    for _ in range(3):
        x = (3 * torch.randn(10, 4, dtype=torch.float64) + 1).requires_grad_()
        y = x.detach().clone().requires_grad_()
        weights = torch.randn(10, 4, dtype=torch.float64)
        (ours(x) * weights).sum().backward()
        (theirs(y) * weights).sum().backward()
        torch.testing.assert_close(ours(x), theirs(y))
        torch.testing.assert_close(x.grad, y.grad, rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(ours.mean, theirs.running_mean)
        torch.testing.assert_close(ours.var, theirs.running_var)
    x = torch.randn(5, 4, dtype=torch.float64)
    torch.testing.assert_close(ours.eval()(x), theirs.eval()(x))


def test_gradients_of_centring() -> None:
    x = torch.randn(5, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(Centre(3).double(), (x,))


@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
def test_centring_computes_half_precision_in_float32(half: torch.dtype) -> None:
    x = torch.randn(10, 4).to(half)
    assert torch.equal(Centre(4)(x), Centre(4)(x.float()))


@pytest.mark.parametrize("n", [0, 1])
def test_centring_of_at_most_one_row_is_finite(n: int) -> None:
    centre = Centre(4)
    x = torch.ones(n, 4, requires_grad=True)
    y = centre(x)
    y.sum().backward()
    assert y.shape == (n, 4) and not y.any()
    assert x.grad is not None and x.grad.isfinite().all()
    assert centre.mean.isfinite().all() and centre.var.isfinite().all()


def test_an_empty_batch_does_not_change_the_statistics() -> None:
    centre = Centre(4)
    centre(torch.randn(10, 4))
    before = centre.mean.clone(), centre.var.clone()
    centre(torch.ones(0, 4))
    assert torch.equal(centre.mean, before[0]) and torch.equal(centre.var, before[1])


def test_centre_state_dict_round_trip() -> None:
    centre, other = Centre(4), Centre(4)
    centre(torch.randn(10, 4))
    other.load_state_dict(centre.state_dict())
    x = torch.randn(3, 4)
    assert torch.equal(centre.eval()(x), other.eval()(x))


# Fields.


@pytest.mark.parametrize(
    ("common_dim", "overlap"), [(3, 0), (3, 2), (3, 3), (5, 0), (5, 2), (1, 0)]
)
def test_fields_may_overlap(common_dim: int, overlap: int) -> None:
    z = torch.arange(10.0).view(2, 5)
    common, style = split(z, common_dim, overlap)
    assert common[0].tolist() == list(range(common_dim))
    assert style[0].tolist() == list(range(common_dim - overlap, 5))


@pytest.mark.parametrize("overlap", [0, 1])
def test_gradients_of_both_fields_reach_the_embeddings(overlap: int) -> None:
    z = torch.ones(2, 5, requires_grad=True)
    common, style = split(z, 3, overlap)
    (2 * common.sum() + 5 * style.sum()).backward()
    assert z.grad is not None
    assert z.grad[0].tolist() == [2, 2, 2 + 5 * overlap, 5, 5]


def test_fields_are_normalised_separately_jointly_or_not() -> None:
    z = torch.tensor([[3.0, 4.0, 0.0, 12.0]])
    separate = fields(z, 2)
    assert separate[0].tolist() == [[pytest.approx(0.6), pytest.approx(0.8)]]
    assert separate[1].tolist() == [[0, 1]]
    joint = torch.cat(fields(z, 2, normalise="joint"), 1)
    torch.testing.assert_close(joint, z / 13)
    assert torch.equal(torch.cat(fields(z, 2, normalise="none"), 1), z)


# Unit length.


@given(st.integers(0, 6), st.integers(0, 4), st.integers(0, 1 << 20))
def test_unit_rows_have_length_one(n: int, d: int, seed: int) -> None:
    x = torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    expected = [[v / math.hypot(*row) for v in row] for row in x.tolist()]
    torch.testing.assert_close(
        unit(x), torch.tensor(expected, dtype=torch.float64).view(n, d), rtol=1e-14, atol=0
    )


def test_gradients_of_unit() -> None:
    x = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(unit, (x,))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_zero_row_stays_zero_and_gets_a_zero_gradient(dtype: torch.dtype) -> None:
    x = torch.tensor([[0.0, 0.0], [3.0, 4.0]], dtype=dtype, requires_grad=True)
    y = unit(x)
    (y * torch.tensor([[1.0, 2.0], [1.0, 0.0]], dtype=dtype)).sum().backward()
    assert y[0].tolist() == [0, 0]
    assert x.grad is not None
    assert x.grad[0].tolist() == [0, 0]
    torch.testing.assert_close(x.grad[1], torch.tensor([0.128, -0.096], dtype=dtype))


LENGTHS = {torch.float32: (1e-37, 1e37), torch.float64: (1e-300, 1e300)}


@pytest.mark.parametrize("dtype", LENGTHS)
def test_unit_rows_of_any_length(dtype: torch.dtype) -> None:
    """Squares neither overflow nor underflow; extreme rows are at least finite."""
    direction = torch.tensor([[1.0, -2.0, 2.0]], dtype=dtype) / 3
    for length in LENGTHS[dtype]:
        torch.testing.assert_close(unit(direction * length), direction)
    limits: Any = torch.finfo(dtype)
    for length in (limits.max, limits.tiny, limits.smallest_normal, limits.tiny * limits.eps):
        x = torch.full((2, 3), length, dtype=dtype, requires_grad=True)
        y = unit(x)
        (y * torch.tensor([1.0, -1.0, 0.5])).sum().backward()
        assert y.isfinite().all() and y.abs().max() <= 1
        assert x.grad is not None and x.grad.isfinite().all()


def test_unit_is_differentiable_twice() -> None:
    x = torch.randn(3, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradgradcheck(unit, x)


def test_unit_under_autocast() -> None:
    x: Tensor = torch.randn(6, 4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(unit(x), unit(x.float()))
    assert unit(x).dtype == torch.float32


def test_the_similarity_of_joined_heads_is_the_mean_of_their_similarities() -> None:
    field = torch.randn(5, 3, 4, dtype=torch.float64)
    joined = join_heads(field)
    assert joined.shape == (5, 12)
    torch.testing.assert_close(joined.norm(dim=1), torch.ones(5, dtype=torch.float64))
    for i in range(5):
        for j in range(5):
            cosines = []
            for head in range(3):
                a, b = field[i, head].tolist(), field[j, head].tolist()
                product = sum(x * y for x, y in zip(a, b, strict=True))
                cosines.append(product / (math.hypot(*a) * math.hypot(*b)))
            assert float(joined[i] @ joined[j]) == pytest.approx(sum(cosines) / 3, abs=1e-14)


def test_one_head_is_joined_to_its_unit_rows() -> None:
    field = torch.randn(5, 4)
    assert torch.equal(join_heads(field), unit(field))
    torch.testing.assert_close(join_heads(field[:, None]), unit(field))


def test_the_gradient_of_joined_heads() -> None:
    field = torch.randn(3, 2, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(join_heads, field)


def test_heads_get_their_own_gradients_and_the_encoder_their_mean() -> None:
    heads = [Projection(6, 4).double() for _ in range(3)]
    targets = torch.randn(3, 5, 4, dtype=torch.float64)
    features = torch.randn(5, 6, dtype=torch.float64, requires_grad=True)
    own, mean = [], torch.zeros_like(features)
    for head, target in zip(heads, targets, strict=True):
        parameters = list(head.parameters())
        loss = (head(features) * target).sum()
        gradient, *gradients = torch.autograd.grad(loss, [features, *parameters])
        own.append(gradients)
        mean += gradient / 3
    output = ProjectionHeads(heads)(features)
    assert torch.equal(output, torch.stack([head(features) for head in heads], 1))
    (output * targets.transpose(0, 1)).sum().backward()
    torch.testing.assert_close(features.grad, mean)
    for head, gradients in zip(heads, own, strict=True):
        for parameter, gradient in zip(head.parameters(), gradients, strict=True):
            torch.testing.assert_close(parameter.grad, gradient)
