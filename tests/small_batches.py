"""Small batches for many tests of losses, and central differences."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import strategies as st
from torch import Tensor

Vectors = list[list[float]]


def double(rows: Any) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)


# Chosen by hand; all rows have unit length.
T4 = double([[1, 0], [0.6, 0.8], [0, 1], [-0.8, 0.6]]), torch.tensor([0, 0, 1, 1])
T5 = double([[1, 0], [0.6, 0.8], [0.8, 0.6], [0, 1], [-0.8, 0.6]]), torch.tensor([0, 0, 0, 1, 1])


@st.composite
def batches(draw: st.DrawFn, width: int = 4) -> tuple[Tensor, Tensor]:
    """Rows and labels: none, few, one class, all different, equal rows, a zero row."""
    n = draw(st.integers(0, 8))
    mix = draw(st.sampled_from(["any", "one", "different"]))
    labels = {
        "any": draw(st.lists(st.integers(0, 4), min_size=n, max_size=n)),
        "one": [7] * n,
        "different": list(range(n, 0, -1)),
    }[mix]
    source = torch.Generator().manual_seed(draw(st.integers(0, 1 << 20)))
    z = 2 * torch.randn(n, width, generator=source, dtype=torch.float64)
    if n > 2 and draw(st.booleans()):
        z[1], z[2] = z[0], 0
    return z, torch.tensor(labels, dtype=torch.long)


def check_slopes(formula: Callable[[Vectors], float], rows: Tensor, tolerance: float) -> None:
    """Compare `rows.grad` with central differences of a formula."""
    assert rows.grad is not None
    base, step = rows.tolist(), 1e-6
    for i in range(len(base)):
        for j in range(len(base[i])):
            ends = []
            for sign in (1, -1):
                near = [row[:] for row in base]
                near[i][j] += sign * step
                ends.append(formula(near))
            slope = (ends[0] - ends[1]) / 2 / step
            assert rows.grad[i, j].item() == pytest.approx(slope, abs=tolerance)
