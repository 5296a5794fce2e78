"""The temperature of the logits."""

import math

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar

from scs_supcon.inference.classifier import fit_temperature, useful_temperature


def likelihood_reference(scale: float, logits: list[list[float]], labels: list[int]) -> float:
    """Mean of −Σ_c q_c ln p_c, with q = 1 − 1/(n + 2) on the label, the rest elsewhere."""
    wrong = 1 / (len(labels) + 2)
    total = 0.0
    for row, label in zip(logits, labels, strict=True):
        top = max(row)
        log_sum = scale * top + math.log(sum(math.exp(scale * (v - top)) for v in row))
        for c, value in enumerate(row):
            share = 1 - wrong if c == label else wrong / (len(row) - 1)
            total -= share * (scale * value - log_sum)
    return total / len(labels)


@pytest.mark.parametrize("size", [0.05, 1.0, 40.0])
def test_the_temperature_maximises_the_likelihood(size: float) -> None:
    draw = np.random.default_rng(3)
    logits = draw.normal(size=(80, 6)) * size
    labels = draw.integers(0, 6, 80)
    logits[np.arange(80), labels] += 1.5 * size
    temperature = fit_temperature(torch.tensor(logits), torch.tensor(labels))
    expected = minimize_scalar(
        lambda s: likelihood_reference(s, logits.tolist(), labels.tolist()),
        bounds=(1e-3, 1e3),
        method="bounded",
        options={"xatol": 1e-10},
    )
    assert 1 / temperature == pytest.approx(expected.x, rel=1e-5)
    assert temperature == fit_temperature(torch.tensor(logits), torch.tensor(labels))
    shifted = torch.tensor(logits) + torch.arange(80)[:, None]
    assert fit_temperature(shifted, torch.tensor(labels)) == pytest.approx(temperature, rel=1e-9)


def test_the_temperature_corrects_overconfidence() -> None:
    draw = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(20_000, 5, generator=draw, dtype=torch.float64)
    labels = torch.multinomial(logits.softmax(1), 1, generator=draw)[:, 0]
    assert fit_temperature(7 * logits, labels) == pytest.approx(7, rel=0.03)


@pytest.mark.parametrize("n", [1, 10, 1000])
def test_probabilities_stay_below_1_if_all_predictions_are_correct(n: int) -> None:
    logits = 3 * torch.eye(4)[torch.arange(n) % 4]
    labels = torch.arange(n) % 4
    p = (logits.double() / fit_temperature(logits, labels)).softmax(1).amax(1)
    torch.testing.assert_close(p, torch.full_like(p, 1 - 1 / (n + 2)))


def test_the_temperature_of_useless_logits_is_high_but_finite() -> None:
    logits = torch.eye(4)
    assert fit_temperature(logits, torch.tensor([1, 2, 3, 0])) == pytest.approx(1e6, rel=1e-3)
    assert math.isfinite(fit_temperature(torch.zeros(3, 4), torch.tensor([0, 1, 2])))
    assert math.isfinite(fit_temperature(torch.zeros(3, 1), torch.tensor([0, 0, 0])))


def useful_reference(logits: torch.Tensor, labels: torch.Tensor) -> float:
    """The definition: fit T without each fifth of the images, and compare on that fifth."""
    n, rows, names = len(labels), logits.tolist(), labels.tolist()
    order = torch.randperm(n, generator=torch.Generator().manual_seed(0)).tolist()
    scales = [0.0] * n
    for fold in range(5):
        rest = [i for i in range(n) if i not in order[fold::5]]
        for i in order[fold::5]:
            scales[i] = 1 / fit_temperature(logits[rest], labels[rest])
    scaled = [[scale * value for value in row] for scale, row in zip(scales, rows, strict=True)]
    helps = likelihood_reference(1.0, scaled, names) < likelihood_reference(1.0, rows, names)
    return fit_temperature(logits, labels) if helps else 1.0


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("scale", [0.95, 1.2, 4.0])
def test_scaling_is_kept_only_if_it_helps_out_of_fold(scale: float, seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(60, 4, generator=draw, dtype=torch.float64)
    labels = torch.multinomial(logits.softmax(1), 1, generator=draw)[:, 0]
    assert useful_temperature(scale * logits, labels) == pytest.approx(
        useful_reference(scale * logits, labels)
    )


def test_calibrated_logits_are_mostly_left_alone_and_others_scaled() -> None:
    temperatures = {1.0: [], 5.0: []}
    for seed in range(20):
        draw = torch.Generator().manual_seed(seed)
        logits = 2 * torch.randn(50, 5, generator=draw, dtype=torch.float64)
        labels = torch.multinomial(logits.softmax(1), 1, generator=draw)[:, 0]
        for scale, values in temperatures.items():
            values.append(useful_temperature(scale * logits, labels))
    assert sum(value == 1 for value in temperatures[1.0]) > 10
    assert all(3 < value < 9 for value in temperatures[5.0])


def test_one_image_does_not_show_that_scaling_helps() -> None:
    assert useful_temperature(torch.tensor([[3.0, 0.0]]), torch.tensor([1])) == 1
