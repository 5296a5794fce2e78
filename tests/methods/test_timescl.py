import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from scs_supcon import SupCon
from scs_supcon.errors import UserError
from scs_supcon.methods import Batch, Network, Output, TaskInfo
from scs_supcon.methods.timescl import TimeSCL, weighted_contrast
from scs_supcon.nn.head import unit
from small_batches import T5, Vectors, batches, check_slopes


def reference(
    z: Vectors, labels: list[int], tau: float, kappa: float, frozen: Vectors | None = None
) -> float:
    """(1/n) Σ_i −Σ_p w_ip log softmax_{a≠i}(z_i·z_a/τ)_p, w_ip = softmax_p(z_i·z_p/κ).

    z of unit length; w from `frozen`; a row without positives adds 0.
    """
    total = 0.0
    for i in range(len(z)):
        others = [a for a in range(len(z)) if a != i]
        positives = [a for a in others if labels[a] == labels[i]]
        if not positives:
            continue
        source = z if frozen is None else frozen
        raw = {p: math.exp(dot(source[i], source[p]) / kappa) for p in positives}
        log_z = math.log(math.fsum(math.exp(dot(z[i], z[a]) / tau) for a in others))
        for p in positives:
            w = raw[p] / math.fsum(raw.values())
            total += w * (log_z - dot(z[i], z[p]) / tau)
    return total / max(len(z), 1)


def dot(x: list[float], y: list[float]) -> float:
    return math.fsum(a * b for a, b in zip(x, y, strict=True))


@pytest.mark.parametrize(
    ("kappa", "expected"), [(math.inf, 0.9639273917), (1.0, 0.9445642968), (0.1, 0.8440444159)]
)
def test_gold_values(kappa: float, expected: float) -> None:
    assert weighted_contrast(*T5, 0.5, kappa).item() == pytest.approx(expected, abs=1e-9)
    if math.isfinite(kappa):
        loss = TimeSCL(0.5, weight=1.0, first=kappa)
        assert loss(*T5).item() == pytest.approx(expected, abs=1e-9)


@given(batches(), st.sampled_from([0.05, 0.5, 3.0]), st.sampled_from([0.1, 0.5, 10.0]))
def test_the_loss_equals_the_reference(
    batch: tuple[Tensor, Tensor], temperature: float, kappa: float
) -> None:
    z, labels = batch
    z.requires_grad_()
    value = TimeSCL(temperature, weight=0.7, first=kappa)(z, labels)
    expected = 0.7 * reference(unit(z).tolist(), labels.tolist(), temperature, kappa)
    assert value.item() == pytest.approx(expected, rel=1e-10, abs=1e-13)
    value.backward()
    assert z.grad is not None and z.grad.isfinite().all()


@given(batches())
def test_with_equal_weights_the_loss_is_supcon(batch: tuple[Tensor, Tensor]) -> None:
    z, labels = batch
    value = weighted_contrast(unit(z), labels, 0.1, math.inf)
    torch.testing.assert_close(value, SupCon(0.1)(z, labels), rtol=1e-10, atol=1e-12)


def test_the_weights_have_no_gradient() -> None:
    """Compare with central differences of the formula with constant weights."""
    source = torch.Generator().manual_seed(0)
    z = unit(torch.randn(6, 3, generator=source, dtype=torch.float64)).requires_grad_()
    labels = torch.tensor([0, 1, 0, 0, 1, 2])
    weighted_contrast(z, labels, 0.5, 0.3).backward()
    base = z.tolist()

    def formula(near: Vectors) -> float:
        return reference(near, labels.tolist(), 0.5, 0.3, frozen=base)

    check_slopes(formula, z, 1e-8)


def encode(_network: nn.Module) -> Output:
    raise AssertionError("the training set is not needed")


def set_up(epochs: int) -> tuple[TimeSCL, Network]:
    network = Network(nn.Linear(6, 5), nn.Linear(5, 4)).double()
    return TimeSCL().setup(TaskInfo(network, torch.arange(3).repeat(5), 3, 5, 4, epochs)), network


def test_kappa_falls_evenly_on_a_logarithmic_scale() -> None:
    method, _ = set_up(epochs=5)
    kappas = []
    for epoch in range(5):
        method.on_epoch_start(epoch, encode)
        kappas.append(method.scalars()["kappa"])
    assert kappas[0] == 10 and kappas[-1] == pytest.approx(0.5)
    assert [b / a for a, b in pairwise(kappas)] == pytest.approx([0.05**0.25] * 4)
    other, _ = set_up(epochs=5)
    other.load_state_dict(method.state_dict())
    assert other.kappa == method.kappa
    alone, _ = set_up(epochs=1)
    alone.on_epoch_start(0, encode)
    assert alone.kappa == 10


def test_training_adds_cross_entropy() -> None:
    method, network = set_up(epochs=2)
    images, labels = torch.randn(8, 6).double(), torch.tensor([0, 1, 2, 1])
    terms = method.training_step(Batch(images, labels, torch.arange(4)), network)
    features, embeddings = network(images)
    logits = method.class_logits(features, embeddings)
    assert logits is not None and method.adapted
    expected = nn.functional.cross_entropy(logits, labels.repeat(2))
    torch.testing.assert_close(terms["classify"], expected)
    torch.testing.assert_close(terms["contrast"], method(embeddings, labels.repeat(2)))


@pytest.mark.parametrize(
    "options",
    [{"temperature": 0.0}, {"first": math.inf}, {"last": -1.0}, {"weight": -1.0}],
    ids=str,
)
def test_options_are_checked(options: dict[str, float]) -> None:
    with pytest.raises(UserError, match=f"{next(iter(options))} must be"):
        TimeSCL(**options)  # type: ignore[arg-type]
