"""The losses in torch.compile, torch.func and double backward; numbers read on the host."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from pair_batches import check_second_derivative_is_an_error
from scs_supcon import CSSupCon, SCSSupCon, SimCLR, SupCon
from scs_supcon.errors import UserError
from scs_supcon.methods import Method
from scs_supcon.methods.circle_pair import CirclePair

LOSSES: dict[str, Callable[[], Method]] = {
    "solved": SCSSupCon,
    "solved without self": lambda: SCSSupCon(include_self=False),
    "learned": lambda: SCSSupCon(preset="learned", beta=0.1),
    "balanced": lambda: SCSSupCon(preset="paper", pairs="balanced"),
    "supcon": SupCon,
    "cs_supcon": lambda: CSSupCon(alpha=0.1, beta=0.1),
}
losses = pytest.mark.parametrize("make", LOSSES.values(), ids=LOSSES)


def results_of(run: Callable[[Tensor], Tensor], layer: torch.nn.Linear) -> list[Tensor]:
    x = torch.randn(10, 6, generator=torch.Generator().manual_seed(1))
    layer.zero_grad()
    value = run(x)
    value.backward()
    assert layer.weight.grad is not None
    return [value.detach(), layer.weight.grad.clone()]


@losses
def test_one_graph_of_encoder_and_loss(make: Callable[[], Method]) -> None:
    layer, labels, loss = torch.nn.Linear(6, 8), torch.arange(10) % 3, make()

    def step(x: Tensor) -> Tensor:
        value: Tensor = loss(torch.relu(layer(x)), labels) * 2
        return value

    expected = results_of(step, layer)
    compiled = torch.compile(step, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(results_of(compiled, layer), expected, rtol=1e-4, atol=1e-6)
    torch.compiler.reset()


def test_other_losses_stay_outside_of_the_graph() -> None:
    layer = torch.nn.Linear(6, 8)
    labels = torch.arange(10) % 3
    for loss in (CirclePair(), SimCLR(), SCSSupCon(reduction="none")):

        def step(x: Tensor, loss: torch.nn.Module = loss) -> Tensor:
            value: Tensor = loss(torch.relu(layer(x)), labels).sum() * 2
            return value

        expected = results_of(step, layer)
        compiled = results_of(torch.compile(step, backend="eager"), layer)
        torch.compiler.reset()
        torch.testing.assert_close(compiled, expected)


def batch(n: int = 9) -> tuple[Tensor, Tensor]:
    source = torch.Generator().manual_seed(2)
    return torch.randn(n, 8, generator=source, dtype=torch.float64), torch.arange(n) % 3


@losses
@pytest.mark.parametrize("n", [9, 140])
def test_gradients_by_torch_func(make: Callable[[], Method], n: int) -> None:
    z, labels = batch(n)
    loss = make()
    gradients = torch.func.grad(lambda x: loss(x, labels))(z)
    x = z.clone().requires_grad_()
    (expected,) = torch.autograd.grad(loss(x, labels), x)
    torch.testing.assert_close(gradients, expected, rtol=1e-4, atol=1e-9)


@losses
def test_second_derivatives_of_small_batches(make: Callable[[], Method]) -> None:
    z, labels = batch(5)
    loss = make()
    if isinstance(loss, SCSSupCon) and loss.bias == "solve":
        pytest.skip("b is solved again for every perturbed batch")
    assert torch.autograd.gradgradcheck(lambda x: loss(x, labels), z.requires_grad_())


@losses
def test_second_derivatives_of_large_batches_are_errors(make: Callable[[], Method]) -> None:
    z, labels = batch(600)
    check_second_derivative_is_an_error(lambda x: make()(x, labels), z)


class HostReads(TorchDispatchMode):
    """Count operations that a GPU's host has to wait for: numbers, lists, sizes from data."""

    waiting = (
        "_local_scalar_dense",
        "nonzero",
        "masked_select",
        "unique",
        "_unique2",
        "unique_consecutive",
        "unique_dim",
        "equal",
    )

    def __init__(self) -> None:
        super().__init__()
        self.gradients: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        booleans = name == "index" and any(
            i is not None and i.dtype == torch.bool for i in args[1] if isinstance(i, Tensor)
        )
        if name in self.waiting or booleans:
            self.gradients.append(name)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("n", [64, 300, 1500])
@pytest.mark.parametrize("preset", ["solved", "learned"])
def test_a_gpu_waits_at_most_three_times_per_step(
    n: int, preset: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The path of a GPU, with the dense formula in the place of the Triton kernel.

    `tolist` is counted as well: it is not an operation of its own on a CPU.
    """
    from scs_supcon.kernels import autograd, bias, distances, sigmoid, triton_sigmoid
    from scs_supcon.methods.shared import base, pair_scalars

    for module in (autograd, bias, distances, sigmoid, pair_scalars, base):
        monkeypatch.setattr(module, "reads_are_free", lambda _: False)
    monkeypatch.setattr(sigmoid, "_use_triton", lambda *_: True)
    monkeypatch.setattr(triton_sigmoid, "triton_sigmoid", fused)
    lists = []
    plain_tolist = Tensor.tolist
    monkeypatch.setattr(Tensor, "tolist", lambda x: lists.append(x) or plain_tolist(x))
    z = torch.randn(n, 16, requires_grad=True)
    labels = torch.arange(n) % 20
    loss = SCSSupCon(preset=preset)
    loss(z, labels).backward()  # the first step stores initial values
    lists.clear()
    with HostReads() as reads:
        value = loss(z, labels)
        value.backward()
    assert len(reads.gradients) + len(lists) <= 3, (reads.gradients, lists)
    expected = loss.eval()
    monkeypatch.undo()
    torch.testing.assert_close(expected(z, labels), value, rtol=1e-4, atol=1e-5)


def fused(
    queries: Tensor,
    others: Tensor | None,
    layout: Any,
    t: Tensor,
    b: Tensor,
    weights: tuple[Tensor, Tensor],
    include_self: bool,
) -> Tensor:
    """Stand for the kernel, which needs a GPU; tests/kernels/test_triton_sigmoid.py tests it."""
    assert others is None and include_self
    same = layout.rows.labels[:, None] == layout.rows.labels
    a = t.to(queries) * (queries @ queries.T) - b.to(queries)
    costs = torch.nn.functional.softplus(torch.where(same, -a, a))
    return (costs.sum() * weights[0]).to(queries.dtype)


def test_vmap_is_explained() -> None:
    z, labels = batch()
    with pytest.raises(UserError, match=r"cannot be used under torch\.vmap"):
        torch.vmap(lambda x: SCSSupCon()(x, labels))(z.expand(2, 9, 8))
