"""SCS-SupCon with soft labels; the formula itself is tested in tests/kernels/test_soft.py."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from scs_supcon import SCSSupCon
from scs_supcon.errors import UserError
from scs_supcon.kernels import soft_sigmoid_loss
from scs_supcon.methods import Batch, Network, build_method
from small_batches import batches

option_sets = st.fixed_dictionaries(
    {
        "pairs": st.sampled_from(["all", "balanced", "positives"]),
        "scale": st.sampled_from(["multiply", "divide"]),
        "include_self": st.booleans(),
        "margin": st.sampled_from([0.0, 0.2]),
        "overlap": st.sampled_from([0, 2]),
        "normalize": st.sampled_from(["separate", "joint", "none"]),
        "beta": st.sampled_from([0.0, 0.7]),
    }
)


@given(batches(6), option_sets, st.sampled_from(["fixed", "solve"]))
def test_one_hot_labels_give_the_terms_of_hard_labels(
    batch: tuple[Tensor, Tensor], options: dict[str, Any], bias: Any
) -> None:
    z, labels = batch
    classes, index = torch.unique(labels, return_inverse=True)
    p = F.one_hot(index, max(len(classes), 1)).double()
    soft = SCSSupCon(4, t0=2.0, b0=0.5, bias=bias, **options)
    hard = SCSSupCon(4, t0=2.0, b0=0.5, bias=bias, **options)
    terms, expected = soft.loss_with_soft_labels(z, p), hard.loss_terms(z, labels)
    assert terms.keys() == expected.keys()
    assert soft.b.item() == pytest.approx(hard.b.item(), abs=1e-5)
    for name, value in expected.items():
        rtol = 1e-10 if bias == "fixed" else 1e-4
        torch.testing.assert_close(terms[name], value, rtol=rtol, atol=1e-13)
    assert soft.scalars() == pytest.approx(hard.scalars(), abs=1e-4)


def test_the_other_style_terms_use_the_most_probable_class() -> None:
    z = torch.randn(4, 2, 6, dtype=torch.float64)
    p = torch.tensor([[0.8, 0.2], [0.1, 0.9], [0.7, 0.3], [0.4, 0.6]], dtype=torch.float64)
    options: dict[str, Any] = {"style": "instance", "style_scatter": 0.5, "style_floor": 0.5}
    terms = SCSSupCon(4, **options).loss_with_soft_labels(z, p)
    expected = SCSSupCon(4, **options).loss_terms(z, p.argmax(1))
    assert terms.keys() == expected.keys()
    for name in terms.keys() - {"contrast"}:
        torch.testing.assert_close(terms[name], expected[name], rtol=1e-12, atol=0)


@pytest.mark.parametrize("name", ["scs_supcon", "oscs_supcon"])
def test_a_batch_with_soft_labels(name: str) -> None:
    source = torch.Generator().manual_seed(0)
    images = torch.randn(8, 6, generator=source, dtype=torch.float64)
    p = torch.randn(4, 3, generator=source, dtype=torch.float64).softmax(1)
    method = build_method(name, preset="siglip", common_dim=4, beta=0.3)
    net = Network(nn.Identity(), nn.Identity())
    example = Batch(images, p.argmax(1), torch.arange(4), p)
    terms = method.training_step(example, net)
    common = F.normalize(images[:, :4])
    t, b = (torch.tensor(10.0, dtype=torch.float64) for _ in range(2))
    contrast, _ = soft_sigmoid_loss(common, p.repeat(2, 1), t, b)
    torch.testing.assert_close(terms["contrast"], contrast, rtol=1e-12, atol=0)
    hard = method.training_step(replace(example, label_probabilities=None), net)
    assert terms.keys() == hard.keys()
    assert ("orthogonality" in terms) == (name == "oscs_supcon")
    if name == "oscs_supcon":
        assert torch.equal(terms["orthogonality"], hard["orthogonality"])


def test_views_and_half_precision() -> None:
    z = torch.randn(3, 2, 6, dtype=torch.float64)
    p = torch.tensor([[0.5, 0.5], [1, 0], [0.25, 0.75]])
    loss = SCSSupCon(4)
    terms = loss.loss_with_soft_labels(z, p)
    flat = loss.loss_with_soft_labels(z.transpose(0, 1).flatten(0, 1), p.repeat(2, 1))
    assert all(torch.equal(terms[name], flat[name]) for name in terms)
    half = loss.loss_with_soft_labels(z.to(torch.bfloat16), p)
    assert all(value.dtype == torch.float32 and value.isfinite() for value in half.values())


@pytest.mark.parametrize("preset", ["paper", "siglip"])
def test_gradcheck(preset: str) -> None:
    loss = SCSSupCon(4, preset=preset, beta=0.5, pairs="positives")
    p = torch.randn(5, 3, dtype=torch.float64).softmax(1)
    z = torch.randn(5, 6, dtype=torch.float64, requires_grad=True)

    def value(z: Tensor, *_: Tensor) -> Tensor:
        return torch.stack(list(loss.loss_with_soft_labels(z, p).values())).sum()

    assert torch.autograd.gradcheck(value, (z, loss.log_t, loss.b))


def test_wrong_probabilities_are_explained() -> None:
    with pytest.raises(UserError, match="sum to 1"):
        SCSSupCon().loss_with_soft_labels(torch.randn(2, 8), torch.ones(2, 3))
