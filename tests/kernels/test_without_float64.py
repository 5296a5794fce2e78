"""Losses on a device without float64, such as Apple's mps, which no test machine has.

The CPU stands for it: its sums are those of mps, and an operation that returns float64 is an error.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from scs_supcon import CSSupCon, SCSSupCon, SimCLR, SupCon
from scs_supcon.kernels import autograd
from scs_supcon.methods import Method

LOSSES: dict[str, Callable[[], Method]] = {
    "solved": SCSSupCon,
    "learned": lambda: SCSSupCon(preset="learned"),
    "balanced": lambda: SCSSupCon(preset="learned", pairs="balanced"),
    "supcon": SupCon,
    "simclr": SimCLR,
    "cs_supcon": CSSupCon,
}


class NoFloat64(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor) and leaf.dtype == torch.float64:
                raise AssertionError(f"{func} returned float64")
        return result


def gradients(loss: Method, z: Tensor, labels: Tensor, **options: Tensor) -> tuple[Tensor, Tensor]:
    z = z.clone().requires_grad_()
    value = loss(z, labels, **options)
    value.backward()
    assert z.grad is not None
    return value.detach(), z.grad


@pytest.mark.parametrize("rows", [24, 700])  # dense and tiled
@pytest.mark.parametrize("name", LOSSES)
def test_no_operation_needs_float64(name: str, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    z = torch.randn(rows, 2, 16, generator=torch.Generator().manual_seed(rows))
    labels = torch.arange(rows) % 5
    value, grad = gradients(LOSSES[name](), z, labels)
    monkeypatch.setattr(autograd, "WITHOUT_FLOAT64", ("mps", "cpu"))
    loss = LOSSES[name]().float()
    with NoFloat64():
        narrow_value, narrow_grad = gradients(loss, z, labels)
    torch.testing.assert_close(narrow_value, value.float(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(narrow_grad, grad, rtol=1e-3, atol=1e-5 * float(grad.abs().max()))


@pytest.mark.parametrize("name", ["learned", "solved", "supcon"])
@pytest.mark.parametrize("case", ["weights", "several labels"])
def test_weights_and_several_labels(name: str, case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    source = torch.Generator().manual_seed(1)
    z = torch.randn(20, 16, generator=source)
    labels = torch.arange(20) % 3
    options = {"sample_weights": torch.rand(20, generator=source)}
    if case == "several labels":
        labels = torch.randint(0, 2, (20, 4), generator=source)
    value, grad = gradients(LOSSES[name](), z, labels, **options)
    monkeypatch.setattr(autograd, "WITHOUT_FLOAT64", ("mps", "cpu"))
    loss = LOSSES[name]().float()
    with NoFloat64():
        narrow_value, narrow_grad = gradients(loss, z, labels, **options)
    torch.testing.assert_close(narrow_value, value.float(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(narrow_grad, grad, rtol=1e-3, atol=1e-5 * float(grad.abs().max()))
