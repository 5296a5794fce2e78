"""One temperature: the most likely one."""

import math

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar

from scs_supcon.evaluation.calibration import fit_temperature


def likelihood_reference(sharpness: float, logits: list[list[float]], labels: list[int]) -> float:
    """Mean of −Σ_c q_c ln p_c, with q = 1 − 1/(n + 2) on the label and the rest shared out."""
    wrong = 1 / (len(labels) + 2)
    total = 0.0
    for row, label in zip(logits, labels, strict=True):
        top = max(row)
        log_sum = sharpness * top + math.log(sum(math.exp(sharpness * (v - top)) for v in row))
        for c, value in enumerate(row):
            share = 1 - wrong if c == label else wrong / (len(row) - 1)
            total -= share * (sharpness * value - log_sum)
    return total / len(labels)


@pytest.mark.parametrize("scale", [0.05, 1.0, 40.0])
def test_the_temperature_is_the_most_likely_one(scale: float) -> None:
    draw = np.random.default_rng(3)
    logits = draw.normal(size=(80, 6)) * scale
    labels = draw.integers(0, 6, 80)
    logits[np.arange(80), labels] += 1.5 * scale
    found = fit_temperature(torch.tensor(logits), torch.tensor(labels))
    expected = minimize_scalar(
        lambda s: likelihood_reference(s, logits.tolist(), labels.tolist()),
        bounds=(1e-3, 1e3),
        method="bounded",
        options={"xatol": 1e-10},
    )
    assert 1 / found == pytest.approx(expected.x, rel=1e-5)
    assert found == fit_temperature(torch.tensor(logits), torch.tensor(labels))
    shifted = torch.tensor(logits) + torch.arange(80)[:, None]
    assert fit_temperature(shifted, torch.tensor(labels)) == pytest.approx(found, rel=1e-9)


def test_the_temperature_undoes_over_confidence() -> None:
    draw = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(20_000, 5, generator=draw, dtype=torch.float64)
    labels = torch.multinomial(logits.softmax(1), 1, generator=draw)[:, 0]
    assert fit_temperature(7 * logits, labels) == pytest.approx(7, rel=0.03)


@pytest.mark.parametrize("n", [1, 10, 1000])
def test_perfect_validation_does_not_mean_certainty(n: int) -> None:
    logits = 3 * torch.eye(4)[torch.arange(n) % 4]
    labels = torch.arange(n) % 4
    p = (logits.double() / fit_temperature(logits, labels)).softmax(1).amax(1)
    torch.testing.assert_close(p, torch.full_like(p, 1 - 1 / (n + 2)))


def test_worthless_logits_give_a_high_temperature() -> None:
    logits = torch.eye(4)
    assert fit_temperature(logits, torch.tensor([1, 2, 3, 0])) == pytest.approx(1e6, rel=1e-3)
    assert math.isfinite(fit_temperature(torch.zeros(3, 4), torch.tensor([0, 1, 2])))
    assert math.isfinite(fit_temperature(torch.zeros(3, 1), torch.tensor([0, 0, 0])))
