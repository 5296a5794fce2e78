"""Batches and checks shared by the tests of the kernels."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from scs_supcon.kernels import Pairs, Sides

Rows = tuple[Tensor, Tensor]  # rows and labels
Vectors = list[list[float]]


@st.composite
def labelled_rows(draw: st.DrawFn, least: int = 0, most: int = 9) -> Rows:
    """Rows of unit or any length; classes of any size, single rows, one class, all different."""
    n, d = draw(st.integers(least, most)), draw(st.integers(1, 4))
    kind = draw(st.sampled_from(["any", "one", "different"]))
    labels = {
        "any": draw(st.lists(st.integers(-2, 2), min_size=n, max_size=n)),
        "one": [7] * n,
        "different": list(range(n, 0, -1)),
    }[kind]
    source = torch.Generator().manual_seed(draw(st.integers(0, 1 << 20)))
    x = torch.randn(n, d, generator=source, dtype=torch.float64)
    if draw(st.booleans()):
        x = torch.nn.functional.normalize(x)
    if n > 2 and draw(st.booleans()):
        x[1], x[2] = x[0], 0  # a duplicate and a zero row
    return x, torch.tensor(labels, dtype=torch.long)


def by_label(
    x: Tensor,
    labels: Tensor,
    references: Tensor | None = None,
    reference_labels: Tensor | None = None,
    **settings: Any,
) -> tuple[Sides, Pairs]:
    """Return both sides of the pairs, and the pairs, which are positive if labels are equal."""
    pairs = Pairs.of(labels, reference_labels, references=references, **settings)
    return Sides(x, references), pairs


def scalar(x: float, grad: bool = False) -> Tensor:
    return torch.tensor(x, dtype=torch.float64, requires_grad=grad)


def same_width(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Cut two sets of rows to the width of the narrower one; both require a gradient."""
    width = min(x.shape[1], y.shape[1])
    return x[:, :width].clone().requires_grad_(), y[:, :width].clone().requires_grad_()


def close(gradient: Tensor | None, expected: Any) -> None:
    """Check that a gradient is within 1e-10 of the reference, relative to its largest element.

    Where the exact gradient is nearly zero, rounding of the logits leaves up to eps · logits / τ.
    """
    reference = torch.tensor(expected, dtype=torch.float64)
    assert gradient is not None
    atol = 1e-10 * max(float(reference.abs().max()) if reference.numel() else 0.0, 0.1)
    torch.testing.assert_close(
        gradient.double(), reference.reshape(gradient.shape), rtol=1e-10, atol=atol
    )


def check_second_derivative_is_an_error(loss: Callable[[Tensor], Tensor], x: Tensor) -> None:
    """Check the error, even if another term has a second derivative."""
    x.requires_grad_()
    with pytest.raises(RuntimeError, match="twice"):
        torch.autograd.grad(loss(x) + x.pow(3).sum(), x, create_graph=True)[0].sum().backward()


def check_second_derivatives(loss: Callable[..., Tensor], *leaves: Tensor) -> None:
    """Check them, and that `create_graph=True` does not change the first derivatives."""
    for x in leaves:
        x.requires_grad_()
    once, twice = (
        torch.autograd.grad(loss(*leaves).sum(), leaves, create_graph=again)
        for again in (False, True)
    )
    for one, other in zip(once, twice, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-13)
    assert torch.autograd.gradgradcheck(loss, leaves)


class LargestTensor(TorchDispatchMode):
    """Record the size of the largest tensor that any operation returns."""

    numel = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for x in out if isinstance(out, tuple | list) else [out]:
            if isinstance(x, Tensor):
                self.numel = max(self.numel, x.numel())
        return out
