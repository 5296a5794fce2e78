"""LARS against its formula in plain loops, and in a run."""

import math

import pytest
import torch

from scs_supcon.training.lars import LARS
from scs_supcon.training.loop import make_optimizer


def norm(rows):
    return math.sqrt(sum(x * x for row in rows for x in row))


def reference(w, gradients, lr, momentum, decay, eta=0.001):
    """Return the matrix after steps with these gradients."""
    w = [list(row) for row in w]
    v = [[0.0] * len(w[0]) for _ in w]
    for g in gradients:
        weight, gradient = norm(w), norm(g)
        scale = eta * weight / (gradient + decay * weight) if weight and gradient else 1.0
        for i, row in enumerate(w):
            for j, x in enumerate(row):
                v[i][j] = momentum * v[i][j] + scale * (g[i][j] + decay * x)
        w = [
            [x - lr * step for x, step in zip(*rows, strict=True)]
            for rows in zip(w, v, strict=True)
        ]
    return w


@pytest.mark.parametrize(("momentum", "decay"), [(0.0, 0.0), (0.9, 0.0), (0.9, 0.1)])
def test_matrices_follow_the_formula(momentum, decay):
    w = torch.nn.Parameter(torch.randn(3, 4, dtype=torch.float64))
    start, gradients = w.tolist(), [torch.randn(3, 4, dtype=torch.float64) for _ in range(3)]
    group = {"params": [w], "weight_decay": decay}
    optimizer = make_optimizer("lars", [group], 0.5, momentum)
    for gradient in gradients:
        w.grad = gradient.clone()
        optimizer.step()
    expected = reference(start, [g.tolist() for g in gradients], 0.5, momentum, decay)
    torch.testing.assert_close(w.detach(), torch.tensor(expected, dtype=torch.float64))
    assert optimizer.param_groups[0]["weight_decay"] == decay


def test_vectors_take_plain_steps_of_sgd():
    values, gradient = torch.randn(5), torch.randn(5)
    steps = []
    for kind in (LARS, torch.optim.SGD):
        b = torch.nn.Parameter(values.clone())
        optimizer = kind([b], lr=0.1, momentum=0.9, weight_decay=0.01)
        for _ in range(2):
            b.grad = gradient.clone()
            optimizer.step()
        steps.append(b.detach())
    torch.testing.assert_close(*steps)


@pytest.mark.parametrize("zero", ["weight", "gradient"])
def test_a_zero_norm_does_not_scale(zero):
    w = torch.nn.Parameter(torch.zeros(2, 2) if zero == "weight" else torch.ones(2, 2))
    w.grad = torch.zeros(2, 2) if zero == "gradient" else torch.ones(2, 2)
    expected = w.detach() - 0.1 * (w.grad + 0.5 * w.detach())
    LARS([w], lr=0.1, weight_decay=0.5).step()
    torch.testing.assert_close(w.detach(), expected)


def test_the_size_of_the_gradient_does_not_change_the_step():
    """What large batches need: the step depends on the direction of the gradient only."""
    steps = []
    for factor in (1, 1000):
        w = torch.nn.Parameter(torch.ones(2, 3))
        w.grad = factor * torch.arange(6.0).reshape(2, 3)
        LARS([w], lr=0.1).step()
        steps.append(w.detach())
    torch.testing.assert_close(*steps)


def test_a_run_with_lars_is_trained_with_it(shapes, train_small, tmp_path, monkeypatch):
    steps = []
    original = LARS.step
    monkeypatch.setattr(LARS, "step", lambda self, *args: steps.append(1) or original(self, *args))
    settings = ["pretrain.optimizer=lars", "pretrain.lr=1"]
    run = train_small(shapes, tmp_path / "run", settings=settings)
    assert 'optimizer = "lars"' in (run.path / "recipe.toml").read_text()
    assert len(steps) == 4, "two epochs of 16 images in batches of 8"
