"""Sorted batches that the sums over pairs are tried on, and what their tests share."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from scs_supcon.kernels import Rows, sort_rows


@st.composite
def sorted_batches(draw: st.DrawFn, least: int = 0, most: int = 9) -> tuple[Tensor, Rows]:
    """Rows of unit length, or of any: classes of any size, singletons, one class, all different."""
    n, d = draw(st.integers(least, most)), draw(st.integers(1, 4))
    mix = draw(st.sampled_from(["any", "one", "different"]))
    labels = {
        "any": draw(st.lists(st.integers(-2, 2), min_size=n, max_size=n)),
        "one": [7] * n,
        "different": list(range(n)),
    }[mix]
    source = torch.Generator().manual_seed(draw(st.integers(0, 1 << 20)))
    x = torch.randn(n, d, generator=source, dtype=torch.float64)
    if draw(st.booleans()):
        x = torch.nn.functional.normalize(x)
    if n > 2 and draw(st.booleans()):
        x[1], x[2] = x[0], 0  # a duplicate and a zero row
    return sort_rows(x, torch.tensor(labels, dtype=torch.long))


def close(got: Tensor | None, expected: Any) -> None:
    """Within 1e-10 of what a plain loop found."""
    want = torch.tensor(expected, dtype=torch.float64)
    assert got is not None
    room = 1e-10 * max(float(want.abs().max()) if want.numel() else 0.0, 1e-3)
    torch.testing.assert_close(got.double(), want.reshape(got.shape), rtol=1e-10, atol=room)


def refuses_a_second_derivative(loss: Callable[[Tensor], Tensor], x: Tensor) -> None:
    """Also where another term has one: ours must not silently count as 0."""
    x.requires_grad_()
    with pytest.raises(RuntimeError, match="twice"):
        torch.autograd.grad(loss(x) + x.pow(3).sum(), x, create_graph=True)[0].sum().backward()


class Largest(TorchDispatchMode):
    """Notes the most numbers that any operation returned at once."""

    most = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for x in out if isinstance(out, tuple | list) else [out]:
            if isinstance(x, Tensor):
                self.most = max(self.most, x.numel())
        return out
