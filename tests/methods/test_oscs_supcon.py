import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from scs_supcon import SCSSupCon
from scs_supcon.errors import UserError
from scs_supcon.kernels import Pairs
from scs_supcon.methods import build_method
from scs_supcon.methods.oscs_supcon import (
    Orthogonality,
    OSCSSupCon,
    projected,
    projection,
    xcov,
)
from scs_supcon.nn.head import unit

Vectors = list[list[float]]


def reference_projected(c: Vectors, s: Vectors, w: Vectors) -> float:
    """(1/n) Σ_i (c_i·u_i)², u_i = ReLU(W s_i) of unit length; c, s of unit length."""
    total = 0.0
    for common, style in zip(c, s, strict=True):
        u = [max(math.fsum(a * b for a, b in zip(row, style, strict=True)), 0.0) for row in w]
        length = math.hypot(*u)
        if length:
            total += (math.fsum(a * b for a, b in zip(common, u, strict=True)) / length) ** 2
    return total / max(len(c), 1)


def reference_xcov(c: Vectors, s: Vectors) -> float:
    """Σ_kl ((1/n) Σ_i c_ik s_il)²; c, s of unit length."""
    total = 0.0
    for k in range(len(c[0]) if c else 0):
        for l in range(len(s[0])):
            total += (math.fsum(x[k] * y[l] for x, y in zip(c, s, strict=True)) / len(c)) ** 2
    return total


@st.composite
def batches(draw: st.DrawFn) -> tuple[Tensor, Tensor]:
    labels = draw(st.lists(st.integers(0, 2), max_size=7))
    source = torch.Generator().manual_seed(draw(st.integers(0, 1 << 20)))
    z = 2 * torch.randn(len(labels), 8, generator=source, dtype=torch.float64)
    if len(labels) > 2 and draw(st.booleans()):
        z[1], z[2] = z[0], 0
    return z, torch.tensor(labels, dtype=torch.long)


@given(
    batches(), st.sampled_from(["projected", "xcov"]), st.integers(1, 7), st.sampled_from([0, 1])
)
def test_the_loss_equals_the_reference(
    batch: tuple[Tensor, Tensor], orthogonality: Orthogonality, common_dim: int, overlap: int
) -> None:
    z, labels = batch
    loss = OSCSSupCon(common_dim, orthogonality=orthogonality, weight=0.3, overlap=overlap)
    terms = loss.loss_terms(z, labels)
    c, s = unit(z[:, :common_dim]).tolist(), unit(z[:, common_dim - overlap :]).tolist()
    if orthogonality == "projected":
        w = projection(common_dim, 8 - common_dim + overlap).tolist()
        expected = reference_projected(c, s, w)
    else:
        expected = reference_xcov(c, s)
    assert terms["orthogonality"].item() == pytest.approx(0.3 * expected, rel=1e-10, abs=1e-13)
    expected_terms = SCSSupCon(common_dim, overlap=overlap).loss_terms(z, labels)
    assert {name: terms[name] for name in expected_terms} == expected_terms


@given(batches())
def test_with_weight_zero_the_loss_is_scs_supcon(batch: tuple[Tensor, Tensor]) -> None:
    for preset in ("solved", "paper"):
        terms = OSCSSupCon(weight=0.0, preset=preset).loss_terms(*batch)
        assert terms == SCSSupCon(preset=preset).loss_terms(*batch)


def test_gold_values() -> None:
    """c = (0.6, 0.8) and u = (1, 0) give 0.36; orthogonal fields give 0."""
    w = projection(2, 2)
    style = torch.tensor([[1.0, 0.0]], dtype=torch.float64) @ w  # W is orthogonal: W s = (1, 0)
    common = torch.tensor([[0.6, 0.8]], dtype=torch.float64)
    assert projected(common, style).item() == pytest.approx(0.36, abs=1e-12)
    across = torch.tensor([[0.0, 1.0]], dtype=torch.float64)
    assert projected(across, style).item() == pytest.approx(0, abs=1e-24)
    assert xcov(common, torch.tensor([[1.0, 0.0]], dtype=torch.float64)).item() == pytest.approx(1)
    both = torch.tensor([[1.0, 0.0], [1.0, 0.0]], dtype=torch.float64)
    assert xcov(both, torch.tensor([[0.0, 1.0], [0.0, -1.0]], dtype=torch.float64)) == 0


@pytest.mark.parametrize("orthogonality", ["projected", "xcov"])
def test_gradcheck(orthogonality: Orthogonality) -> None:
    source = torch.Generator().manual_seed(0)
    z = torch.randn(5, 8, generator=source, dtype=torch.float64, requires_grad=True)
    labels = torch.tensor([0, 1, 0, 2, 1])
    loss = OSCSSupCon(orthogonality=orthogonality, weight=1.0)

    def value(z: Tensor) -> Tensor:
        return loss.loss_terms(z, labels)["orthogonality"]

    assert torch.autograd.gradcheck(value, (z,))


@pytest.mark.parametrize(("common_dim", "style_dim"), [(192, 64), (3, 5), (4, 4), (1, 1)])
def test_the_projection_is_orthogonal_and_always_the_same(common_dim: int, style_dim: int) -> None:
    w = projection(common_dim, style_dim)
    assert w.shape == (common_dim, style_dim)
    small = w.T @ w if style_dim <= common_dim else w @ w.T
    torch.testing.assert_close(small, torch.eye(len(small), dtype=torch.float64))
    before = torch.get_rng_state()
    projection.cache_clear()
    assert torch.equal(projection(common_dim, style_dim), w)
    assert torch.equal(torch.get_rng_state(), before)


def test_the_projection_does_not_learn() -> None:
    assert not OSCSSupCon().state_dict().keys() - SCSSupCon().state_dict().keys()
    loss = OSCSSupCon(preset="paper")
    assert {name for name, _ in loss.named_parameters()} == {
        "bias_log_t",
        "bias_b",
    } and loss.adapted


def test_a_row_without_positive_projections_gets_no_gradient() -> None:
    sign = -torch.sign(projection(1, 1)).item()
    style = torch.full((1, 1), sign, dtype=torch.float64, requires_grad=True)
    common = torch.ones(1, 1, dtype=torch.float64, requires_grad=True)
    value = projected(common, style)
    value.backward()
    assert value.item() == 0
    assert common.grad is not None and not common.grad.any()
    assert style.grad is not None and not style.grad.any()


def test_presets_and_options_reach_the_method() -> None:
    method = build_method("oscs_supcon", preset="paper", orthogonality="xcov", beta=0.5)
    assert isinstance(method, OSCSSupCon)
    assert (method.pairs, method.orthogonality, method.beta) == ("all", "xcov", 0.5)
    assert method.probe_input == "common"


@pytest.mark.parametrize("options", [{"orthogonality": "both"}, {"weight": -1.0}], ids=str)
def test_options_are_checked(options: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=f"{next(iter(options))} must be"):
        OSCSSupCon(**options)


def test_references_and_listed_pairs_keep_the_orthogonality() -> None:
    source = torch.Generator().manual_seed(0)
    z, others = (torch.randn(6, 8, generator=source, dtype=torch.float64) for _ in range(2))
    labels = torch.arange(6) % 2
    loss = OSCSSupCon(5, weight=3.0, preset="learned")
    expected = loss.loss_terms(z, labels)["orthogonality"].item()
    terms = loss.loss_terms(z, labels, references=others, reference_labels=labels)
    assert terms["orthogonality"].item() == expected
    positives = torch.tensor([0, 1]), torch.tensor([2, 5])
    pairs = Pairs.listed(6, positives, (positives[0][:0],) * 2, references=others)
    assert loss.terms(z, pairs)["orthogonality"].item() == pytest.approx(expected, rel=1e-12)
