import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pytorch_metric_learning.losses import SupConLoss
from pytorch_metric_learning.reducers import MeanReducer
from torch import Tensor

from scs_supcon import SupCon
from scs_supcon.errors import UserError
from small_batches import T4, T5, Vectors, batches


def reference(
    z: Vectors,
    labels: list[int],
    temperature: float,
    ref_z: Vectors | None = None,
    ref_labels: list[int] | None = None,
) -> list[float]:
    """Per anchor −(1/|P|) Σ_p log [exp(z_i·z_p/τ) / Σ_{a≠i} exp(z_i·z_a/τ)], "out"; 0 without P.

    Khosla et al. (2020), Eq. 2; z of unit length.
    """

    def unit(x: list[float]) -> list[float]:
        length = math.hypot(*x)
        return [v / length for v in x] if length else x

    has_references = ref_z is not None
    right, right_labels = (ref_z, ref_labels) if has_references else (z, labels)
    assert right is not None and right_labels is not None
    left, right = [unit(x) for x in z], [unit(x) for x in right]
    losses = []
    for i in range(len(left)):
        logits = {
            a: math.fsum(x * y for x, y in zip(left[i], right[a], strict=True)) / temperature
            for a in range(len(right))
            if has_references or a != i
        }
        positives = [a for a in logits if right_labels[a] == labels[i]]
        if not positives:
            losses.append(0.0)
            continue
        top = max(logits.values())
        log_z = top + math.log(math.fsum(math.exp(x - top) for x in logits.values()))
        losses.append(math.fsum(log_z - logits[p] for p in positives) / len(positives))
    return losses


@pytest.mark.parametrize(
    ("batch", "temperature", "expected"),
    [
        (T4, 1.0, 0.8020786721),
        (T4, 0.5, 0.6680402017),
        (T4, 0.1, 1.0648499783),
        (T5, 0.5, 0.9639273917),
        ((torch.ones(8, 3, dtype=torch.float64), torch.arange(8) // 2), 0.1, math.log(7)),
        ((torch.ones(8, 3, dtype=torch.float64), torch.zeros(8).long()), 0.1, math.log(7)),
    ],
)
def test_gold_values(batch: tuple[Tensor, Tensor], temperature: float, expected: float) -> None:
    assert SupCon(temperature)(*batch).item() == pytest.approx(expected, abs=1e-9)


def test_gold_values_per_anchor() -> None:
    """One anchor with the other rows as references."""
    z, labels = T4
    for i, expected in enumerate([0.3089573461, 1.0271230573, 1.0271230573, 0.3089573461]):
        others = torch.arange(4) != i
        references = {"references": z[others], "reference_labels": labels[others]}
        value = SupCon(0.5)(z[i : i + 1], labels[i : i + 1], **references)
        assert value.item() == pytest.approx(expected, abs=1e-9)


def test_loss_scale_gives_the_values_of_the_original_code() -> None:
    original = SupCon(0.1, loss_scale=0.1 / 0.07)
    assert original(*T4).item() == pytest.approx(1.5212142547, abs=1e-9)
    equal = original(torch.ones(8, 3, dtype=torch.float64), torch.arange(8) // 2)
    assert equal.item() == pytest.approx(2.7798716415, abs=1e-9)


temperatures = st.sampled_from([0.01, 0.07, 0.5, 3.0])


@given(batches(), temperatures)
def test_the_loss_equals_the_reference(batch: tuple[Tensor, Tensor], temperature: float) -> None:
    z, labels = batch
    losses = reference(z.tolist(), labels.tolist(), temperature)
    expected = math.fsum(losses) / max(len(losses), 1)
    assert SupCon(temperature)(z, labels).item() == pytest.approx(expected, rel=1e-10, abs=1e-13)


@given(batches(), batches(), temperatures)
def test_the_loss_with_references_equals_the_reference(
    batch: tuple[Tensor, Tensor], others: tuple[Tensor, Tensor], temperature: float
) -> None:
    (z, labels), (ref_z, ref_labels) = batch, others
    losses = reference(
        z.tolist(), labels.tolist(), temperature, ref_z.tolist(), ref_labels.tolist()
    )
    value = SupCon(temperature)(z, labels, references=ref_z, reference_labels=ref_labels)
    expected = math.fsum(losses) / max(len(losses), 1)
    assert value.item() == pytest.approx(expected, rel=1e-10, abs=1e-13)


@settings(max_examples=25)
@given(st.integers(2, 5), st.integers(2, 4), temperatures, st.integers(0, 1 << 20))
def test_the_loss_equals_pytorch_metric_learning(
    classes: int, each: int, temperature: float, seed: int
) -> None:
    """Compare value and gradient; every anchor has a positive, and there are negatives."""
    source = torch.Generator().manual_seed(seed)
    labels = torch.arange(classes).repeat(each)
    ours = torch.randn(len(labels), 5, generator=source, dtype=torch.float64).requires_grad_()
    theirs = ours.detach().clone().requires_grad_()
    loss = SupCon(temperature)(ours, labels)
    peer = SupConLoss(temperature, reducer=MeanReducer())(theirs, labels)
    loss.backward()
    peer.backward()
    torch.testing.assert_close(loss, peer, rtol=1e-10, atol=1e-13)
    assert ours.grad is not None and theirs.grad is not None
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize("temperature", [0.01, 0.1])
def test_many_rows_equal_pytorch_metric_learning(temperature: float) -> None:
    """The rows need more than one tile."""
    labels = torch.arange(1100) % 40
    ours = torch.randn(1100, 6, dtype=torch.float64, requires_grad=True)
    theirs = ours.detach().clone().requires_grad_()
    loss = SupCon(temperature)(ours, labels)
    peer = SupConLoss(temperature, reducer=MeanReducer())(theirs, labels)
    torch.autograd.backward([loss, peer])
    torch.testing.assert_close(loss, peer, rtol=1e-10, atol=0)
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-8, atol=1e-13)


@pytest.mark.parametrize("temperature", [0.05, 1.0])
def test_gradcheck(temperature: float) -> None:
    z = torch.randn(6, 4, dtype=torch.float64, requires_grad=True)
    refs = torch.randn(4, 4, dtype=torch.float64, requires_grad=True)
    labels, ref_labels = torch.tensor([0, 1, 0, 2, 1, 1]), torch.tensor([1, 0, 3, 1])
    loss = SupCon(temperature)

    def value(z: Tensor, refs: Tensor) -> Tensor:
        return loss(z, labels) + loss(z, labels, references=refs, reference_labels=ref_labels)

    assert torch.autograd.gradcheck(value, (z, refs), eps=1e-7, rtol=1e-4)


def test_an_anchor_without_positives_contributes_zero_to_the_mean() -> None:
    z, labels = T4
    with_single = torch.cat([z, -z[:1]]), torch.cat([labels, torch.tensor([9])])
    anchors = reference(with_single[0].tolist(), with_single[1].tolist(), 0.5)
    assert anchors[-1] == 0
    assert SupCon(0.5)(*with_single).item() == pytest.approx(math.fsum(anchors) / 5, rel=1e-12)


@given(batches(), batches(), temperatures)
def test_the_mean_over_anchors_with_positives(
    batch: tuple[Tensor, Tensor], others: tuple[Tensor, Tensor], temperature: float
) -> None:
    """The convention of pytorch-metric-learning; with weights, too."""
    (z, labels), (ref_z, ref_labels) = batch, others
    loss = SupCon(temperature, anchors="with positives")

    def mean(losses: list[float], classes: list[int], right: list[int], itself: int) -> float:
        number = sum(right.count(y) > itself for y in classes)
        return math.fsum(losses) / max(number, 1)

    y, ref_y = labels.tolist(), ref_labels.tolist()
    expected = mean(reference(z.tolist(), y, temperature), y, y, 1)
    assert loss(z, labels).item() == pytest.approx(expected, rel=1e-10, abs=1e-13)
    weighted = loss(z, labels, sample_weights=torch.ones(len(z)))
    assert weighted.item() == pytest.approx(expected, rel=1e-6, abs=1e-6)
    losses = reference(z.tolist(), y, temperature, ref_z.tolist(), ref_y)
    value = loss(z, labels, references=ref_z, reference_labels=ref_labels)
    assert value.item() == pytest.approx(mean(losses, y, ref_y, 0), rel=1e-10, abs=1e-13)


def test_the_default_reducer_of_pytorch_metric_learning() -> None:
    source = torch.Generator().manual_seed(0)
    z = torch.randn(7, 6, generator=source, dtype=torch.float64)
    labels = torch.tensor([0, 0, 1, 1, 1, 5, 6])
    ours = SupCon(0.2, anchors="with positives")(z, labels)
    torch.testing.assert_close(ours, SupConLoss(0.2)(z, labels), rtol=1e-10, atol=0)


def test_one_anchor_per_image() -> None:
    """`contrast_mode="one"` of the original code: the first views are anchors."""
    source = torch.Generator().manual_seed(0)
    z = torch.randn(5, 3, 6, generator=source, dtype=torch.float64)
    labels = torch.tensor([0, 1, 0, 2, 1])
    every = z.transpose(0, 1).flatten(0, 1)
    value = SupCon(0.5)(
        z[:, 0],
        labels,
        references=every,
        reference_labels=labels.repeat(3),
        pair_weights=~torch.eye(5, 15, dtype=torch.bool),
    )
    anchors = reference(every.tolist(), labels.repeat(3).tolist(), 0.5)[:5]
    assert value.item() == pytest.approx(math.fsum(anchors) / 5, rel=1e-10)


def test_float32_from_raw_embeddings() -> None:
    """Absolute error of the value, relative error of the gradient: within 8 eps (1 + 1/τ)."""
    z = 3 * torch.randn(160, 8)
    results = {}
    for dtype in (torch.float32, torch.float64):
        x = z.to(dtype, copy=True).requires_grad_()
        loss = SupCon(0.07)(x, torch.arange(160) % 5)
        loss.backward()
        assert x.grad is not None
        results[dtype] = loss.detach().double(), x.grad.double()
    (value, grad), (exact, exact_grad) = results[torch.float32], results[torch.float64]
    bound = 8 * torch.finfo(torch.float32).eps * (1 + 1 / 0.07)
    assert abs(value - exact) <= bound
    norm = torch.linalg.vector_norm
    assert norm(grad - exact_grad) <= bound * norm(exact_grad)


@pytest.mark.parametrize("temperature", [0.0, -0.1, math.nan, math.inf])
def test_the_temperature_must_be_positive(temperature: float) -> None:
    with pytest.raises(UserError, match=f"temperature must be .*, got {temperature}"):
        SupCon(temperature)
