"""A small batch judged in one step gives what the longer way gives, digit for digit."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from scs_supcon import SCSSupCon
from scs_supcon.methods import scs_supcon


def long_way(loss: SCSSupCon, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scs_supcon, "MOST_ROWS", -1)
        return loss.loss_terms(x, labels)


def gradients(loss: SCSSupCon, terms: dict[str, Tensor], x: Tensor) -> list[Tensor]:
    """By the rows and by t and b, of terms that weigh differently."""
    total = sum(k * term for k, term in enumerate(terms.values(), 2))
    learned = [p for p in loss.parameters() if p.requires_grad]
    found = torch.autograd.grad(total, [x, *learned], allow_unused=True)
    return [torch.zeros(()) if g is None else g for g in found]


@given(
    st.integers(1, 40),
    st.sampled_from([1, 2, 5, 100]),
    st.sampled_from(
        [
            {},
            {"bias": "fixed"},
            {"bias": "fixed", "include_self": False},
            {"preset": "siglip"},
            {"preset": "paper", "pairs": "balanced"},
            {"bias": "fixed", "scale": "divide", "t0": 0.2, "pairs": "all"},
            {"bias": "fixed", "beta": 0.0},
            {"bias": "fixed", "common_dim": 6},
        ]
    ),
    st.integers(0, 1 << 20),
)
def test_one_step_or_many(n: int, classes: int, options: dict[str, Any], seed: int) -> None:
    source = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 6, generator=source, dtype=torch.float64)
    x[n // 2] = x[0]
    x[n // 3] = 0
    x.requires_grad_()
    labels = torch.randint(0, classes, (n,), generator=source)
    loss = SCSSupCon(**{"common_dim": 4, "beta": 0.5, **options})
    at_once = loss.loss_terms(x, labels)
    counted, b = loss.scalars(), loss.b.item()
    step_by_step = long_way(loss, x, labels)
    assert at_once.keys() == step_by_step.keys()
    assert b == pytest.approx(loss.b.item(), abs=1e-6)
    assert counted == pytest.approx(loss.scalars(), abs=1e-6)
    if loss.bias == "solve":  # which agrees to 1e-6; what follows holds at one and the same b
        return
    for name, term in at_once.items():
        torch.testing.assert_close(term, step_by_step[name], rtol=1e-11, atol=1e-14)
    for one, other in zip(
        gradients(loss, at_once, x), gradients(loss, step_by_step, x), strict=True
    ):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)


def test_the_gradient_is_that_of_the_value() -> None:
    x = torch.randn(7, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    labels = torch.tensor([2, 0, 1, 0, 2, 2, 5])
    loss = SCSSupCon(3, preset="siglip", beta=0.3)
    assert torch.autograd.gradcheck(
        lambda x: tuple(loss.loss_terms(x, labels).values()), x.requires_grad_()
    )


def test_solving_does_not_depend_on_the_way() -> None:
    """Solved b differs by rounding alone, so the loss and its gradient agree as well."""
    x = torch.randn(96, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(8))
    x.requires_grad_()
    labels = torch.arange(96) % 7
    loss = SCSSupCon(8)
    one, many = loss.loss_terms(x, labels), long_way(loss, x, labels)
    for a, b in zip(gradients(loss, one, x), gradients(loss, many, x), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize("rows", [511, 512, 513])
def test_nothing_jumps_where_the_way_changes(rows: int) -> None:
    x = torch.randn(rows, 8, generator=torch.Generator().manual_seed(1))
    x.requires_grad_()
    labels = torch.arange(rows) % 9
    loss = SCSSupCon(6, preset="siglip")
    one, many = loss.loss_terms(x, labels), long_way(loss, x, labels)
    torch.testing.assert_close(one["contrast"], many["contrast"], rtol=1e-6, atol=0)
    for a, b in zip(gradients(loss, one, x), gradients(loss, many, x), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-8)


def test_twice_is_refused() -> None:
    x = torch.randn(6, 4, dtype=torch.float64, requires_grad=True)
    loss = SCSSupCon()(x, torch.tensor([0, 0, 1, 1, 1, 2])) + x.pow(3).sum()
    with pytest.raises(RuntimeError, match="twice"):
        torch.autograd.grad(loss, x, create_graph=True)
