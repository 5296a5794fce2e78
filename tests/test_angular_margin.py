"""The method of experiments/claims/angular_margin.py."""

import math
import runpy
from pathlib import Path
from typing import Any

import pytest
import torch

from scs_supcon import SCSSupCon

SCRIPT = Path(__file__).parents[1] / "experiments" / "claims" / "angular_margin.py"


@pytest.fixture(scope="module")
def script() -> dict[str, Any]:
    return runpy.run_path(str(SCRIPT))


def test_without_a_margin_it_is_the_loss(script: dict[str, Any]) -> None:
    z, labels = torch.randn(20, 8, dtype=torch.float64), torch.arange(20) % 4
    value = script["AngularMargin"](6, margin=0.0, beta=0.0)(z, labels)
    torch.testing.assert_close(value, SCSSupCon(6, beta=0.0)(z, labels))


def test_positive_pairs_have_the_cosine_of_a_larger_angle(script: dict[str, Any]) -> None:
    angles = torch.linspace(0.01, 3.13, 200, dtype=torch.float64)
    values = script["with_margin"](angles.cos(), 0.3)
    assert (values.diff() < 0).all()
    for angle, value in zip(angles.tolist(), values.tolist(), strict=True):
        if angle <= math.pi - 0.3:
            assert value == pytest.approx(math.cos(angle + 0.3))


def test_equal_and_opposite_rows_have_finite_gradients(script: dict[str, Any]) -> None:
    z = torch.tensor([[1.0, 2], [1, 2], [-1, -2], [3, -1]], requires_grad=True)
    value = script["AngularMargin"](2, margin=0.4)(z, torch.tensor([0, 0, 0, 1]))
    value.backward()
    assert torch.isfinite(z.grad).all() and value.isfinite()
