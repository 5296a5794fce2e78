import math
from itertools import product

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from pair_batches import LargestTensor, Vectors, check_second_derivative_is_an_error, close
from scs_supcon.kernels.style import (
    field_correlation,
    instance_loss,
    scatter_ratio,
    variance_floor,
)

Batch = tuple[Tensor, Tensor, Tensor]  # rows, labels, image ids


def dot(x: list[float], y: list[float]) -> float:
    return math.fsum(a * b for a, b in zip(x, y, strict=True))


def compared_pairs(labels: list[int], images: list[int]) -> list[tuple[int, int, bool]]:
    """(u, v, of one image) for all u ≠ v of one class that has two images or more."""
    pairs = []
    for u, v in product(range(len(labels)), repeat=2):
        of_class = {i for i, label in zip(images, labels, strict=True) if label == labels[u]}
        if u != v and labels[u] == labels[v] and len(of_class) > 1:
            pairs.append((u, v, images[u] == images[v]))
    return pairs


def reference(
    s: Vectors, labels: list[int], images: list[int], t: float, b: float
) -> tuple[float, Vectors, float]:
    """(L, ∂L/∂s, mean σ(a) − share of positive pairs) in plain loops."""
    pairs = compared_pairs(labels, images)
    positive = sum(same for _, _, same in pairs)
    value, mean = 0.0, 0.0
    gradient = [[0.0] * len(row) for row in s]
    if not positive or positive == len(pairs):
        return value, gradient, mean
    for u, v, same in pairs:
        a = t * dot(s[u], s[v]) - b
        sign = -1 if same else 1
        value += math.log1p(math.exp(-abs(a))) + max(sign * a, 0.0)
        slope = sign / (1 + math.exp(-sign * a)) * t / positive
        mean += 1 / (1 + math.exp(-a)) / len(pairs)
        for k in range(len(s[u])):
            gradient[u][k] += slope * s[v][k]
            gradient[v][k] += slope * s[u][k]
    return value / positive, gradient, mean - positive / len(pairs)


@st.composite
def batches(draw: st.DrawFn) -> Batch:
    """Views of a few images, some repeated, of classes of any size."""
    n = draw(st.integers(0, 12))
    images = draw(st.lists(st.integers(-1, 4), min_size=n, max_size=n))
    classes = draw(st.sampled_from([1, 2, 3]))
    labels = [image % classes - 1 for image in images]
    source = torch.Generator().manual_seed(draw(st.integers(0, 1 << 20)))
    rows = torch.randn(n, draw(st.integers(1, 3)), generator=source, dtype=torch.float64)
    return torch.nn.functional.normalize(rows), torch.tensor(labels).long(), torch.tensor(images)


def views(
    images: int, classes: int, width: int = 4, seed: int = 0, dtype: torch.dtype = torch.float64
) -> Batch:
    """Two views of each image."""
    source = torch.Generator().manual_seed(seed)
    rows = torch.randn(2 * images, width, generator=source, dtype=torch.float64)
    ids = torch.arange(images).repeat(2)
    return torch.nn.functional.normalize(rows).to(dtype), ids % classes, ids


# The instance loss


@given(batches(), st.sampled_from([1.0, 10.0]), st.sampled_from([None, 1, 3]))
def test_the_instance_loss_and_its_gradient_equal_the_reference(
    batch: Batch, t: float, piece: int | None
) -> None:
    rows, labels, images = batch
    rows.requires_grad_()
    result = instance_loss(rows, labels, images.long(), t, piece=piece)
    value, gradient, residual = reference(
        rows.tolist(), labels.tolist(), images.tolist(), t, result.b
    )
    assert abs(residual) < 1e-5, "b is solved"
    assert float(result.loss.detach()) == pytest.approx(value, rel=1e-10, abs=1e-12)
    result.loss.backward()
    close(rows.grad, gradient)
    pairs = compared_pairs(labels.tolist(), images.tolist())
    assert result.positive == sum(same for _, _, same in pairs)
    assert result.negative == len(pairs) - result.positive


def test_a_gold_value_computed_by_hand() -> None:
    """Two images of one class with two views each: r = 1 for views, 0 for images, t = 1."""
    rows = torch.tensor([[1.0, 0.0], [0.0, 1.0]], dtype=torch.float64).repeat(2, 1)
    ids = torch.tensor([0, 1, 0, 1])
    result = instance_loss(rows, torch.zeros(4).long(), ids, 1.0)
    # 4 positive and 8 negative ordered pairs; b solves (σ(1 − b) + 2 σ(−b)) / 3 = 1/3.
    assert (result.positive, result.negative) == (4, 8)
    b = result.b
    share = (1 / (1 + math.exp(b - 1)) + 2 / (1 + math.exp(b))) / 3
    assert share == pytest.approx(1 / 3, abs=1e-6)
    expected = math.log1p(math.exp(b - 1)) + 2 * math.log1p(math.exp(-b))
    assert float(result.loss) == pytest.approx(expected, rel=1e-12)


def test_gradcheck_of_the_instance_loss() -> None:
    """b depends on the rows but has no gradient, so it must not move: t is small."""
    rows, labels, images = views(6, 2)
    b = instance_loss(rows, labels, images, 2.0).b

    def loss(x: Tensor) -> Tensor:
        a = 2.0 * (x @ x.T) - b
        same = images[:, None] == images
        sign = torch.where(same, -1.0, 1.0)
        valid = (labels[:, None] == labels) & ~torch.eye(len(x), dtype=torch.bool)
        return (torch.nn.functional.softplus(sign * a) * valid).sum() / (same & valid).sum()

    x, y = rows.clone().requires_grad_(), rows.clone().requires_grad_()
    assert torch.autograd.gradcheck(loss, (x,))
    loss(x).backward()
    instance_loss(y, labels, images, 2.0).loss.backward()
    torch.testing.assert_close(y.grad, x.grad, rtol=1e-8, atol=1e-10)


def test_other_classes_do_not_matter() -> None:
    rows, labels, images = views(8, 2)
    alone = labels == 0
    changed = rows.clone()
    changed[~alone] = torch.nn.functional.normalize(torch.randn(8, 4, dtype=torch.float64))
    rows.requires_grad_()
    instance_loss(rows[alone], labels[alone], images[alone], 10.0).loss.backward()
    assert rows.grad is not None and float(rows.grad[~alone].abs().sum()) == 0


def test_a_class_with_one_image_is_skipped() -> None:
    rows, labels, images = views(7, 2)
    single = torch.cat([rows, rows[:2]]), torch.cat([labels, labels.new_full((2,), 5)])
    with_single = instance_loss(*single, torch.cat([images, images.new_full((2,), 9)]), 10.0)
    without = instance_loss(rows, labels, images, 10.0)
    assert with_single == without


@pytest.mark.parametrize("case", ["one view of each", "one image of each class", "empty"])
def test_without_positives_or_negatives_the_loss_is_0(case: str) -> None:
    rows, labels, images = views(4, 2)
    if case == "one view of each":
        rows, labels, images = rows[:4], labels[:4], images[:4]
    elif case == "one image of each class":
        labels = images
    else:
        rows, labels, images = rows[:0], labels[:0], images[:0]
    rows = rows.clone().requires_grad_()
    result = instance_loss(rows, labels, images, 10.0)
    assert float(result.loss.detach()) == 0
    assert result.positive == 0 or result.negative == 0
    result.loss.backward()
    assert rows.grad is not None and not rows.grad.any()


def test_the_order_of_the_rows_does_not_matter() -> None:
    rows, labels, images = views(20, 3)
    order = torch.randperm(40)
    expected = instance_loss(rows, labels, images, 10.0)
    shuffled = instance_loss(rows[order], labels[order], images[order], 10.0)
    assert float(shuffled.loss) == pytest.approx(float(expected.loss), rel=1e-9)


def test_views_far_apart_cost_more_than_views_close_together() -> None:
    rows, labels, images = views(20, 3, width=16)
    far = instance_loss(rows, labels, images, 10.0)
    close_views = instance_loss(rows[:20].repeat(2, 1), labels, images, 10.0)
    assert float(close_views.loss) < 0.5 * float(far.loss)


def test_float32_agrees_with_float64() -> None:
    exact = instance_loss(*views(64, 5, width=16), 10.0)
    rounded = instance_loss(*views(64, 5, width=16, dtype=torch.float32), 10.0)
    assert float(rounded.loss) == pytest.approx(float(exact.loss), rel=1e-5)


def test_the_cost_is_that_of_same_class_pairs() -> None:
    rows, labels, images = views(400, 100)
    with LargestTensor() as largest:
        instance_loss(rows, labels, images, 10.0)
    assert largest.numel <= 800 * 8 * 4, "800 rows with 7 positives, 4 columns"


def test_b_of_many_pairs_is_solved_from_a_sample() -> None:
    rows, labels, images = views(700, 1, width=8, dtype=torch.float32)
    result = instance_loss(rows, labels, images, 10.0)
    a = 10 * (rows @ rows.T) - result.b
    mean = (a.sigmoid().sum() - a.diagonal().sigmoid().sum()) / (1400 * 1399)
    assert float(mean) == pytest.approx(1 / 1399, rel=0.1)


def test_the_instance_loss_has_no_second_derivative() -> None:
    rows, labels, images = views(6, 2)
    check_second_derivative_is_an_error(
        lambda x: instance_loss(x, labels, images, 10.0).loss, rows.clone()
    )


# Scatter ratio, variance floor and correlation


def scatter_reference(s: Vectors, labels: list[int]) -> float:
    n, classes = len(s), sorted(set(labels))
    mean = [math.fsum(column) / n for column in zip(*s, strict=True)]
    total = math.fsum((x - m) ** 2 for row in s for x, m in zip(row, mean, strict=True))
    between = 0.0
    for c in classes:
        rows = [row for row, label in zip(s, labels, strict=True) if label == c]
        centre = [math.fsum(column) / len(rows) for column in zip(*rows, strict=True)]
        between += len(rows) * math.fsum((x - m) ** 2 for x, m in zip(centre, mean, strict=True))
    return between / total - (len(classes) - 1) / (n - 1)


@pytest.mark.parametrize("classes", [2, 3, 5])
def test_the_scatter_ratio_equals_the_reference(classes: int) -> None:
    rows, labels, _ = views(10, classes)
    expected = scatter_reference(rows.tolist(), labels.tolist())
    assert float(scatter_ratio(rows, labels)) == pytest.approx(expected, rel=1e-10)
    assert torch.autograd.gradcheck(
        lambda x: scatter_ratio(x, labels), (rows.clone().requires_grad_(),)
    )


def test_the_scatter_ratio_is_0_by_chance_and_largest_if_rows_equal_their_class_mean() -> None:
    rows, labels, _ = views(500, 10)
    assert abs(float(scatter_ratio(rows, labels))) < 0.01
    pure = scatter_ratio(torch.eye(10, dtype=torch.float64)[labels], labels)
    assert float(pure) == pytest.approx(1 - 9 / 999)


@pytest.mark.parametrize("case", ["one class", "equal rows", "one row", "empty"])
def test_the_scatter_ratio_of_a_degenerate_batch_is_0(case: str) -> None:
    rows, labels, _ = views(6, 3)
    cases = {
        "one class": (rows, torch.zeros_like(labels)),
        "equal rows": (torch.zeros_like(rows), labels),
        "one row": (rows[:1], labels[:1]),
        "empty": (rows[:0], labels[:0]),
    }
    x, y = cases[case]
    x = x.clone().requires_grad_()
    value = scatter_ratio(x, y)
    value.backward()
    assert float(value.detach()) == 0
    assert x.grad is not None and x.grad.isfinite().all()


def test_the_variance_floor_equals_the_reference() -> None:
    rows = views(10, 2)[0] * torch.tensor([0.1, 1.0, 5.0, 0.5], dtype=torch.float64)
    expected = 0.0
    for column in zip(*rows.tolist(), strict=True):
        mean = math.fsum(column) / len(column)
        variance = math.fsum((x - mean) ** 2 for x in column) / len(column)
        expected += max(0.0, 0.5 - math.sqrt(variance + 1e-6))
    assert expected > 0.3
    assert float(variance_floor(rows)) == pytest.approx(expected, rel=1e-10)
    assert torch.autograd.gradcheck(variance_floor, (rows.clone().requires_grad_(),))


def test_the_variance_floor_of_a_constant_field_has_a_finite_gradient() -> None:
    rows = torch.ones(5, 4, dtype=torch.float64, requires_grad=True)
    value = variance_floor(rows)
    value.backward()
    assert float(value.detach()) == pytest.approx(4 * (0.5 - 1e-3))
    assert rows.grad is not None and rows.grad.isfinite().all()
    assert float(variance_floor(rows[:0]).detach()) >= 0


def test_the_correlation_of_the_fields_equals_the_reference() -> None:
    common, style = views(10, 2, seed=1)[0][:, :3], views(10, 2, seed=2)[0]

    def standardise(column: list[float]) -> list[float]:
        mean = math.fsum(column) / len(column)
        variance = math.fsum((x - mean) ** 2 for x in column) / len(column)
        return [(x - mean) / math.sqrt(variance + 1e-6) for x in column]

    expected = 0.0
    for j, k in product(range(4), range(3)):
        s, c = standardise(style[:, j].tolist()), standardise(common[:, k].tolist())
        expected += (dot(s, c) / len(s)) ** 2 / 4
    assert float(field_correlation(common, style)) == pytest.approx(expected, rel=1e-9)
    x = style.clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda s: field_correlation(common, s), (x,))


def test_the_common_field_gets_no_gradient_from_the_correlation() -> None:
    common = torch.randn(10, 3, requires_grad=True)
    style = torch.randn(10, 2, requires_grad=True)
    field_correlation(common, style).backward()
    assert common.grad is None and style.grad is not None and style.grad.any()


def test_a_copy_of_the_common_field_is_fully_correlated() -> None:
    x = torch.randn(1000, 1, dtype=torch.float64)
    assert float(field_correlation(x, 3 * x + 1)) == pytest.approx(1, abs=1e-5)
