import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from scs_supcon import SupCon
from scs_supcon.errors import UserError
from scs_supcon.methods import Batch, Network, TaskInfo
from scs_supcon.methods.dacl import DACL, margin_contrast, project
from scs_supcon.nn.head import unit
from small_batches import T4, Vectors, batches, double


def reference(z: Vectors, labels: list[int], margins: list[float], tau: float) -> float:
    """(1/n) Σ_i (1/|P_i|) Σ_p −log [e_p/(e_p + Σ_{a≠i,p} exp(z_i·z_a/τ))].

    e_p = exp((z_i·z_p − m_i)/τ); z of unit length; a row without positives adds 0.
    """

    def dot(i: int, j: int) -> float:
        return math.fsum(a * b for a, b in zip(z[i], z[j], strict=True))

    total = 0.0
    for i in range(len(z)):
        others = [a for a in range(len(z)) if a != i]
        positives = [a for a in others if labels[a] == labels[i]]
        for p in positives:
            x = (dot(i, p) - margins[i]) / tau
            ratio = math.fsum(math.exp(dot(i, a) / tau - x) for a in others if a != p)
            total += math.log1p(ratio) / len(positives)
    return total / max(len(z), 1)


@pytest.mark.parametrize(
    ("margin", "expected"),
    [(0.0, 0.6680402017), (0.1, 0.7630787574), (0.2, 0.8666653052), (0.5, 1.2278269936)],
)
def test_gold_values(margin: float, expected: float) -> None:
    assert DACL(0.5, margin=margin)(*T4).item() == pytest.approx(expected, abs=1e-9)


temperatures = st.sampled_from([0.02, 0.1, 0.5, 3.0])


@given(batches(), temperatures, st.integers(0, 1 << 20))
def test_the_loss_equals_the_reference(
    batch: tuple[Tensor, Tensor], temperature: float, seed: int
) -> None:
    z, labels = batch
    source = torch.Generator().manual_seed(seed)
    margins = (torch.rand(9, generator=source, dtype=torch.float64) / 2)[labels]
    z.requires_grad_()
    value, _ = margin_contrast(unit(z), labels, margins, temperature)
    expected = reference(unit(z).tolist(), labels.tolist(), margins.tolist(), temperature)
    assert value.item() == pytest.approx(expected, rel=1e-10, abs=1e-13)
    value.backward()
    assert z.grad is not None and z.grad.isfinite().all()


@given(batches(), temperatures)
def test_with_margin_zero_the_loss_is_supcon(
    batch: tuple[Tensor, Tensor], temperature: float
) -> None:
    value = DACL(temperature, margin=0.0, weight=0.5)(*batch)
    expected = 0.5 * SupCon(temperature)(*batch)
    torch.testing.assert_close(value, expected, rtol=1e-10, atol=1e-12)


def test_gradients_by_embeddings_and_margins() -> None:
    source = torch.Generator().manual_seed(0)
    z = torch.randn(6, 3, generator=source, dtype=torch.float64, requires_grad=True)
    labels = torch.tensor([0, 1, 0, 0, 1, 2])
    margins = torch.tensor([0.1, 0.3, 0.1, 0.1, 0.3, 0.2], dtype=torch.float64)
    assert torch.autograd.gradcheck(
        lambda z: margin_contrast(unit(z), labels, margins, 0.5)[0], (z,)
    )
    slope = margin_contrast(unit(z), labels, margins, 0.5)[1]
    assert not slope.requires_grad
    rows, step = unit(z).tolist(), 1e-6
    for i in range(6):
        ends = []
        for sign in (1, -1):
            near = margins.tolist()
            near[i] += sign * step
            ends.append(reference(rows, labels.tolist(), near, 0.5))
        assert slope[i].item() == pytest.approx((ends[0] - ends[1]) / 2 / step, abs=1e-8)
    assert (slope[:5] > 0).all() and slope[5] == 0


def test_a_single_pair_costs_nothing_and_separated_rows_stay_finite() -> None:
    z = torch.tensor([[1.0, 0.0], [1.0, 0.0]], requires_grad=True)
    value = DACL(margin=0.4)(z, torch.zeros(2).long())
    value.backward()
    assert value.item() == 0 and z.grad is not None and not z.grad.any()
    far = torch.tensor([[1.0, 0.0], [1.0, 1e-4], [-1.0, 0.0], [-1.0, 1e-4]], requires_grad=True)
    value = DACL(0.01)(far, torch.tensor([0, 0, 1, 1]))
    value.backward()
    assert 0 <= value.item() < 1e-30 and far.grad is not None and far.grad.isfinite().all()


# The adversary.


@given(
    st.lists(st.floats(-0.5, 1.5), min_size=1, max_size=7),
    st.floats(0.0, 0.5),
    st.integers(0, 1 << 20),
)
def test_the_projection_is_the_nearest_point_with_the_given_mean(
    raised: list[float], mean: float, seed: int
) -> None:
    margins = double(raised)
    projected = project(margins, mean, 0.5)
    assert projected.mean().item() == pytest.approx(mean, abs=1e-12)
    assert projected.min() >= 0 and projected.max() <= 0.5
    source = torch.Generator().manual_seed(seed)
    for _ in range(5):
        point = project(torch.rand(len(raised), generator=source).double(), mean, 0.5)
        assert torch.dist(margins, projected) <= torch.dist(margins, point) + 1e-9


def set_up(**options: float) -> tuple[DACL, Network]:
    torch.manual_seed(0)
    network = Network(nn.Linear(6, 5), nn.Linear(5, 4)).double()
    return DACL(**options).setup(
        TaskInfo(network, torch.arange(3).repeat(5), 3, 5, 4, epochs=3)
    ), network


def test_margins_of_hard_classes_rise_and_the_mean_stays() -> None:
    method, network = set_up(rate=0.05)
    assert method.margins is not None and method.margins.tolist() == [0.1] * 3
    images = torch.randn(12, 6).double()
    batch = Batch(images, torch.tensor([0, 0, 1, 1, 2, 2]), torch.arange(6))
    labels = batch.labels.repeat(2)
    margins = torch.full((12,), 0.1, dtype=torch.float64)
    slope = margin_contrast(unit(network(images).embeddings), labels, margins, 0.1)[1]
    by_class = torch.stack([slope[labels == k].sum() for k in range(3)])
    method.training_step(batch, network)
    assert method.margins.tolist() == [0.1] * 3
    method.after_step(network, 0.1)
    torch.testing.assert_close(method.margins, 0.1 + 0.05 * (by_class - by_class.mean()))
    raised = method.margins.clone()
    method.after_step(network, 0.1)  # without a new loss the margins stay
    assert torch.equal(method.margins, raised)
    for _ in range(30):
        method.training_step(batch, network)
        method.after_step(network, 0.5)
    assert method.margins.mean().item() == pytest.approx(0.1, abs=1e-12)
    assert method.margins.min() >= 0 and method.margins.max() <= 0.5
    assert method.scalars() == {
        "least_margin": method.margins.min().item(),
        "largest_margin": method.margins.max().item(),
    }


def test_margins_are_part_of_the_state_but_not_parameters() -> None:
    method, network = set_up()
    assert {name for name, _ in method.named_parameters()} == {
        "classifier.weight",
        "classifier.bias",
    }
    images = torch.randn(8, 6).double()
    method.training_step(Batch(images, torch.tensor([0, 0, 1, 2]), torch.arange(4)), network)
    method.after_step(network, 0.1)
    other, _ = set_up()
    other.load_state_dict(method.state_dict())
    assert method.margins is not None and other.margins is not None
    assert torch.equal(other.margins, method.margins)
    assert DACL().scalars() == {} and DACL.adapted


def test_training_adds_cross_entropy() -> None:
    method, network = set_up()
    images, labels = torch.randn(8, 6).double(), torch.tensor([0, 1, 2, 1])
    terms = method.training_step(Batch(images, labels, torch.arange(4)), network)
    features, embeddings = network(images)
    logits = method.class_logits(features, embeddings)
    assert logits is not None
    expected = nn.functional.cross_entropy(logits, labels.repeat(2))
    torch.testing.assert_close(terms["classify"], expected)
    torch.testing.assert_close(terms["contrast"], method(embeddings, labels.repeat(2)))


@pytest.mark.parametrize(
    "options",
    [{"temperature": 0.0}, {"margin": -0.1}, {"cap": 0.05}, {"cap": 3.0}, {"rate": -1.0}],
    ids=str,
)
def test_options_are_checked(options: dict[str, float]) -> None:
    with pytest.raises(UserError, match=f"{next(iter(options))} must be"):
        DACL(**options)  # type: ignore[arg-type]


@pytest.mark.parametrize("temperature", [0.005, 0.02, 0.05])
@pytest.mark.parametrize("margin", [0.1, 0.5])
def test_a_tiny_loss_keeps_its_digits_in_float32(temperature: float, margin: float) -> None:
    """Pairs far from all others: the value is as exact as rounded logits allow."""
    source = torch.Generator().manual_seed(4)
    labels = torch.arange(8).repeat_interleave(2)
    z = unit(torch.eye(8)[labels] + 0.02 * torch.randn(16, 8, generator=source))
    results = {}
    for dtype in (torch.float32, torch.float64):
        x = z.to(dtype, copy=True).requires_grad_()
        value, slope = margin_contrast(x, labels, x.new_full((16,), margin), temperature)
        value.backward()
        assert x.grad is not None
        results[dtype] = value.detach().double(), slope.double(), x.grad.double()
    assert 0 < results[torch.float64][0] < 1e-2
    expected = reference(z.double().tolist(), labels.tolist(), [margin] * 16, temperature)
    assert results[torch.float64][0].item() == pytest.approx(expected, rel=1e-9)
    close = 4 * torch.finfo(torch.float32).eps / temperature
    for rounded, exact in zip(results[torch.float32], results[torch.float64], strict=True):
        assert (rounded - exact).abs().max() <= close * exact.abs().max() + 1e-37
