"""SCS-SupCon with soft labels; the formula itself is tested in tests/kernels/test_pairs.py."""

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
from scs_supcon.kernels import Pairs, Sides, sigmoid_pairs
from scs_supcon.methods import Batch, Network, build_method
from small_batches import batches

option_sets = st.fixed_dictionaries(
    {
        "pairs": st.sampled_from(["all", "balanced", "positives"]),
        "include_self": st.booleans(),
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
    b0 = None if bias == "solve" else 0.5
    soft = SCSSupCon(4, t0=2.0, b0=b0, bias=bias, **options)
    hard = SCSSupCon(4, t0=2.0, b0=b0, bias=bias, **options)
    terms, expected = soft.loss_terms(z, p), hard.loss_terms(z, labels)
    assert terms.keys() == expected.keys()
    assert soft.b.item() == pytest.approx(hard.b.item(), abs=1e-5)
    for name, value in expected.items():
        rtol = 1e-10 if bias == "fixed" else 1e-4
        torch.testing.assert_close(terms[name], value, rtol=rtol, atol=1e-13)
    assert soft.scalars() == pytest.approx(hard.scalars(), abs=1e-4)


@pytest.mark.parametrize("name", ["scs_supcon", "oscs_supcon"])
def test_a_batch_with_soft_labels(name: str) -> None:
    source = torch.Generator().manual_seed(0)
    images = torch.randn(8, 6, generator=source, dtype=torch.float64)
    p = torch.randn(4, 3, generator=source, dtype=torch.float64).softmax(1)
    method = build_method(name, preset="learned", common_dim=4, beta=0.3)
    net = Network(nn.Identity(), nn.Identity())
    example = Batch(images, p.argmax(1), torch.arange(4), p)
    terms = method.training_step(example, net)
    common = F.normalize(images[:, :4])
    t, b = (torch.tensor(10.0, dtype=torch.float64) for _ in range(2))
    contrast, _ = sigmoid_pairs(Sides(common), Pairs.of_soft(p.repeat(2, 1)), t, b)
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
    terms = loss.loss_terms(z, p)
    flat = loss.loss_terms(z.transpose(0, 1).flatten(0, 1), p.repeat(2, 1))
    assert all(torch.equal(terms[name], flat[name]) for name in terms)
    half = loss.loss_terms(z.to(torch.bfloat16), p)
    assert all(value.dtype == torch.float32 and value.isfinite() for value in half.values())


@pytest.mark.parametrize("preset", ["paper", "learned"])
def test_gradcheck(preset: str) -> None:
    loss = SCSSupCon(4, preset=preset, beta=0.5, pairs="positives")
    p = torch.randn(5, 3, dtype=torch.float64).softmax(1)
    z = torch.randn(5, 6, dtype=torch.float64, requires_grad=True)

    def value(z: Tensor, *_: Tensor) -> Tensor:
        return torch.stack(list(loss.loss_terms(z, p).values())).sum()

    assert torch.autograd.gradcheck(value, (z, loss.log_t, loss.b))


def test_wrong_probabilities_are_explained() -> None:
    with pytest.raises(UserError, match="sum to 1"):
        SCSSupCon()(torch.randn(2, 8), torch.ones(2, 3))
