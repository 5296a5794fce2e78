"""The lines before epoch 1, with their numbers counted by hand."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

from scs_supcon.data.builtin import shapes
from scs_supcon.data.dataset import Problem
from scs_supcon.methods import Batch, Network, build_method
from scs_supcon.methods.shared.base import TaskInfo
from scs_supcon.recipe import make_recipe
from scs_supcon.training import estimate as forecast

CPU = torch.device("cpu")


def recipe(**pretrain):
    return make_recipe({"data": {"source": "drawn"}, "pretrain": pretrain})


def test_images_classes_and_problems_are_counted():
    images = shapes(per_class=2)
    splits = np.array(["train"] * 8 + ["val"] * 4)
    problems = [
        Problem("truncated", "b.png", ""),
        Problem("duplicate", "c.png", ""),
        Problem("truncated", "a.png", ""),
    ]
    assert forecast.describe_data(images, splits, problems) == [
        "data      12 images of 6 classes: 8 train, 4 val",
        "problem   duplicate: 1, first c.png",
        "problem   truncated: 2, first b.png",
    ]


def test_positives_and_lonely_anchors_of_one_batch():
    labels = np.array([0, 0, 0, 1, 1, 2])  # 3·2 + 2·1 + 0 ordered pairs; one of six is alone
    batches, pairs = forecast.describe_batches(labels, recipe(batch_size=100), views=2)
    assert batches == "batches   1 of about 6 images × 2 views, shuffled"
    assert pairs == (
        "pairs     1.3 other images of its class per anchor; "
        "16.7% of the anchors have only their own views"
    )


@pytest.mark.parametrize(
    ("kind", "text"),
    [("balanced", "balanced, 2 of a class"), ("long_tail", "long tail, 2 of a class")],
)
def test_the_kind_of_batches_is_told(kind, text):
    labels = np.repeat(np.arange(4), 4)
    lines = forecast.describe_batches(labels, recipe(batch_size=8, batches=kind, per_class=2), 3)
    assert lines == [
        f"batches   2 of about 8 images × 3 views, {text}",
        "pairs     1.0 other images of its class per anchor; "
        "0.0% of the anchors have only their own views",
    ]


@pytest.mark.parametrize(("frozen", "what"), [(False, "whole network"), (True, "head on cached")])
def test_the_cost_is_told_in_minutes_and_mebibytes(frozen, what):
    asked = make_recipe({"data": {"source": "drawn"}, "encoder": {"frozen": frozen}})
    (line,) = forecast.describe_cost(forecast.Cost(600, 5 * 2**20), asked)
    assert line.startswith("stage 1   100 epochs of scs_supcon, ")
    assert what in line
    assert line.endswith("about 10 min and 5 MiB for a step")


class Noisy(nn.Module):
    """Draws random numbers and counts its passes, as dropout and batch statistics do."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 4)
        self.register_buffer("passes", torch.zeros(()))

    def forward(self, x):
        self.passes += 1
        return self.linear(x + torch.rand_like(x))


@pytest.mark.parametrize("name", ["scs_supcon", "paco", "byol"])
def test_the_trial_leaves_everything_as_it_was(name):
    network = Network(Noisy(), nn.Linear(4, 8)).eval()
    method = build_method(name)
    method.setup(TaskInfo(network, torch.arange(16) % 2, 2, 4, 8, 1))
    labels = torch.arange(16) % 2
    batch = Batch(torch.randn(16 * method.views, 3), labels, torch.arange(16))
    before = copy.deepcopy((network.state_dict(), method.state_dict()))
    state = torch.get_rng_state()
    cost = forecast.estimate(network, method, batch, size=64, steps=10, device=CPU)
    assert torch.equal(torch.get_rng_state(), state)
    assert not network.training
    for old, new in zip(before, (network.state_dict(), method.state_dict()), strict=True):
        assert all(torch.equal(old[key], new[key]) for key in old)
    assert all(p.grad is None for p in network.parameters())
    assert cost.seconds > 0
    assert cost.bytes > 0


def test_memory_grows_with_the_batch_and_counts_weights():
    network = Network(nn.Linear(3, 4), nn.Linear(4, 8))
    weights = 4 * sum(p.numel() for p in network.parameters())
    method = build_method("supcon")
    batch = Batch(torch.randn(32, 3), torch.arange(16) % 2, torch.arange(16))
    small, large = (forecast.estimate(network, method, batch, n, 1, CPU).bytes for n in (16, 64))
    assert small > 3 * weights, "values, gradients and momentum"
    assert large - 3 * weights == pytest.approx(4 * (small - 3 * weights), abs=4)


def test_the_time_of_a_few_images_is_scaled_to_the_batch_and_the_steps(monkeypatch):
    seconds = iter((0.0, 9.0, 10.0, 10.5))  # two passes, of which the second counts
    monkeypatch.setattr(forecast.time, "perf_counter", lambda: next(seconds))
    network = Network(nn.Linear(3, 4), nn.Linear(4, 8))
    batch = Batch(torch.randn(32, 3), torch.arange(16) % 2, torch.arange(16))
    cost = forecast.estimate(network, build_method("supcon"), batch, size=64, steps=10, device=CPU)
    assert cost.seconds == 0.5 * (64 / 16) * 10


def test_micro_batches_hold_less_and_take_a_third_longer(monkeypatch):
    seconds = iter((0.0, 9.0, 10.0, 10.5) * 2)
    monkeypatch.setattr(forecast.time, "perf_counter", lambda: next(seconds))
    batch = Batch(torch.randn(32, 3), torch.arange(16) % 2, torch.arange(16))
    whole, chunked = (
        forecast.estimate(
            Network(nn.Linear(3, 4), nn.Linear(4, 8), size),
            build_method("supcon"),
            batch,
            64,
            1,
            CPU,
        )
        for size in (0, 8)
    )
    assert chunked.seconds == pytest.approx(whole.seconds * 4 / 3)
    weights = 3 * 4 * (3 * 4 + 4 + 4 * 8 + 8)
    assert chunked.bytes - weights == pytest.approx((whole.bytes - weights) * 8 / 128, abs=1)


def test_a_batch_smaller_than_the_sample_is_enough():
    network = Network(nn.Linear(3, 4), nn.Linear(4, 8))
    batch = Batch(torch.randn(6, 3), torch.arange(3), torch.arange(3))
    assert forecast.estimate(network, build_method("simclr"), batch, 3, 1, CPU).bytes > 0
