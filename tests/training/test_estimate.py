"""The description of a run before its first epoch, and the estimated cost of stage 1.

Run as a script, this file is one of two processes.
"""

import copy
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import distributed, nn

from scs_supcon.data.builtin import shapes
from scs_supcon.data.dataset import Problem, problem_title
from scs_supcon.methods import Batch, Network, build_method
from scs_supcon.methods.shared.base import TaskInfo
from scs_supcon.recipe import PretrainRecipe, make_recipe
from scs_supcon.training import estimate
from scs_supcon.training.pretrain import training_set_from_features

CPU = torch.device("cpu")


def recipe(**pretrain):
    return make_recipe({"data": {"source": "shapes"}, "pretrain": pretrain})


def test_images_classes_and_problems_are_counted():
    images = shapes(per_class=2)
    splits = np.array(["train"] * 8 + ["val"] * 4)
    problems = [
        Problem("truncated", "b.png", ""),
        Problem("duplicate", "c.png", ""),
        Problem("truncated", "a.png", ""),
    ]
    assert estimate.describe_data(images, splits, problems).splitlines() == [
        "data      12 images of 6 classes: 8 train, 4 val",
        "caution   8 training images of 6 classes are few: expect unreliable results with less "
        "than 5 per class",
        f"problem   {problem_title('duplicate')}: 1, first c.png",
        f"problem   {problem_title('truncated')}: 2, first b.png",
    ]


def test_positive_pairs_of_a_batch_are_counted():
    labels = np.array([0, 0, 0, 1, 1, 2])  # 3·2 + 2·1 + 0 ordered pairs; one of six has none
    text = estimate.describe_batches(labels, recipe(batch_size=100), views=2)
    assert text.splitlines() == [
        "batches   1 per epoch, about 6 images × 2 views each, shuffled",
        "pairs     1.3 other images of the same class per anchor; none for 16.7% of the anchors",
    ]


@pytest.mark.parametrize(
    ("kind", "description"),
    [("balanced", "balanced, 2 per class"), ("long_tail", "long tail, 2 per class")],
)
def test_the_kind_of_batches_is_described(kind, description):
    labels = np.repeat(np.arange(4), 4)
    settings = recipe(batch_size=8, batches=kind, per_class=2)
    assert estimate.describe_batches(labels, settings, 3).splitlines() == [
        f"batches   2 per epoch, about 8 images × 3 views each, {description}",
        "pairs     1.0 other images of the same class per anchor; none for 0.0% of the anchors",
    ]


@pytest.mark.parametrize(
    ("frozen", "trained"), [(False, "whole network"), (True, "head on cached features")]
)
def test_the_cost_is_described_in_minutes_and_mebibytes(frozen, trained, monkeypatch):
    cost = estimate.StageCost(600, 5 * 2**20)
    monkeypatch.setattr(estimate, "estimate_stage_1", lambda *_: cost)
    settings = make_recipe({"data": {"source": "shapes"}, "encoder": {"frozen": frozen}})
    images = shapes(per_class=2)
    training_set = training_set_from_features(
        torch.zeros(12, 2, 3), images, np.arange(12), settings, 2
    )
    network = Network(nn.Linear(3, 4), nn.Linear(4, 8))
    method = build_method("supcon")
    assert estimate.describe_stage_1(network, method, training_set, settings, CPU) == (
        f"stage 1   100 epochs of scs_supcon, {trained}: about 10 min, 5 MiB of memory per step",
        0.0,
    )


@pytest.mark.parametrize(("image_size", "expected"), [(64, 36), (65, 16)])
def test_whole_batches_of_small_images_are_timed(image_size, expected, monkeypatch):
    """The time of a few images, multiplied, is too long for small images."""
    timed = []
    cost = estimate.StageCost(1.0, 1)
    monkeypatch.setattr(
        estimate, "estimate_stage_1", lambda *a: timed.append(len(a[2].labels)) or cost
    )
    settings = make_recipe({"data": {"source": "shapes", "image_size": image_size}})
    training_set = training_set_from_features(
        torch.zeros(36, 2, 3), shapes(per_class=6), np.arange(36), settings, 2
    )
    network = Network(nn.Linear(3, 4), nn.Linear(4, 8))
    estimate.describe_stage_1(network, build_method("supcon"), training_set, settings, CPU)
    assert timed == [expected]


class Noisy(nn.Module):
    """Draws random numbers and counts its passes, like dropout and batch statistics."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 4)
        self.register_buffer("passes", torch.zeros(()))

    def forward(self, x):
        self.passes += 1
        return self.linear(x + torch.rand_like(x))


@pytest.mark.parametrize("name", ["scs_supcon", "paco", "byol"])
def test_the_estimate_changes_nothing(name):
    network = Network(Noisy(), nn.Linear(4, 8)).eval()
    method = build_method(name)
    method.setup(TaskInfo(network, torch.arange(16) % 2, 2, 4, 8, 1))
    labels = torch.arange(16) % 2
    batch = Batch(torch.randn(16 * method.views, 3), labels, torch.arange(16))
    before = copy.deepcopy((network.state_dict(), method.state_dict()))
    state = torch.get_rng_state()
    cost = estimate.estimate_stage_1(network, method, batch, size=64, steps=10, device=CPU)
    assert torch.equal(torch.get_rng_state(), state)
    assert not network.training
    for old, new in zip(before, (network.state_dict(), method.state_dict()), strict=True):
        assert all(torch.equal(old[key], new[key]) for key in old)
    assert all(p.grad is None for p in network.parameters())
    assert cost.seconds > 0
    assert cost.bytes > 0


def test_the_memory_includes_weights_and_grows_with_the_batch():
    network = Network(nn.Linear(3, 4), nn.Linear(4, 8))
    weights = 4 * sum(p.numel() for p in network.parameters())
    method = build_method("supcon")
    batch = Batch(torch.randn(32, 3), torch.arange(16) % 2, torch.arange(16))
    small, large = (
        estimate.estimate_stage_1(network, method, batch, n, 1, CPU).bytes for n in (16, 64)
    )
    assert small > 3 * weights, "values, gradients and momentum"
    assert large - 3 * weights == pytest.approx(4 * (small - 3 * weights), abs=4)


def test_the_time_is_scaled_to_the_batch_and_the_steps(monkeypatch):
    seconds = iter((0.0, 9.0, 10.0, 11.5))  # two slow passes; the second is timed
    monkeypatch.setattr(estimate.time, "perf_counter", lambda: next(seconds))
    network = Network(nn.Linear(3, 4), nn.Linear(4, 8))
    batch = Batch(torch.randn(32, 3), torch.arange(16) % 2, torch.arange(16))
    cost = estimate.estimate_stage_1(
        network, build_method("supcon"), batch, size=64, steps=10, device=CPU
    )
    assert cost.seconds == 1.5 * (64 / 16) * 10


def test_micro_batches_need_less_memory_and_a_third_more_time(monkeypatch):
    seconds = iter((0.0, 9.0, 10.0, 11.5) * 2)
    monkeypatch.setattr(estimate.time, "perf_counter", lambda: next(seconds))
    batch = Batch(torch.randn(32, 3), torch.arange(16) % 2, torch.arange(16))
    whole, chunked = (
        estimate.estimate_stage_1(
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


def test_a_batch_may_have_soft_labels():
    network, method = Network(nn.Linear(3, 4), nn.Linear(4, 8)), build_method("baseline")
    method.setup(TaskInfo(network, torch.arange(2), 2, 4, 8, 1))
    soft = torch.full((40, 2), 0.5)
    batch = Batch(torch.randn(40, 3), torch.arange(40) % 2, torch.arange(40), soft)
    assert estimate.estimate_stage_1(network, method, batch, 40, 1, CPU).bytes > 0


def test_a_batch_may_be_smaller_than_the_sample():
    network = Network(nn.Linear(3, 4), nn.Linear(4, 8))
    batch = Batch(torch.randn(6, 3), torch.arange(3), torch.arange(3))
    assert estimate.estimate_stage_1(network, build_method("simclr"), batch, 3, 1, CPU).bytes > 0


@pytest.mark.parametrize(("images", "expected"), [(64, 10 * 0.3), (16, 10 * 0.3 * 4)])
def test_several_real_steps_are_timed_if_they_are_quick(monkeypatch, images, expected):
    """A step of 16 images takes almost as long as one of 64: scaling it would be four times off."""
    timed = []

    def time_step(method, network, batch, device):
        timed.append(len(batch.labels))
        return [0.9, 0.2, 0.35, 0.3, 0.25][len(timed) - 1]

    monkeypatch.setattr(estimate, "_time_step", time_step)
    network = Network(nn.Linear(3, 4), nn.Linear(4, 8))
    batch = Batch(torch.randn(2 * images, 3), torch.arange(images) % 2, torch.arange(images))
    cost = estimate.estimate_stage_1(network, build_method("supcon"), batch, 64, 10, CPU)
    assert timed == [16, 16, images, images, images]
    assert cost.seconds == pytest.approx(expected)


def test_slow_steps_are_timed_with_a_few_images(monkeypatch):
    timed = []
    monkeypatch.setattr(estimate, "_time_step", lambda *a: timed.append(len(a[2].labels)) or 0.5)
    network = Network(nn.Linear(3, 4), nn.Linear(4, 8))
    batch = Batch(torch.randn(128, 3), torch.arange(64) % 2, torch.arange(64))
    cost = estimate.estimate_stage_1(network, build_method("supcon"), batch, 64, 10, CPU)
    assert timed == [16, 16]
    assert cost.seconds == pytest.approx(10 * 0.5 * 4)


def test_processes_of_different_speed_time_the_same_steps(on_ranks):
    """Otherwise one of them would wait for the other forever."""
    steps = [int(arrays["steps"]) for arrays in on_ranks(__file__, 2)]
    assert steps == [2, 2], "the second process is slow"


def estimate_on_rank(rank, world, folder):
    store = distributed.FileStore(str(folder / "store"), world)
    distributed.init_process_group("gloo", store=store, rank=rank, world_size=world)
    timed = []

    def time_step(method, network, batch, device):
        distributed.all_reduce(torch.ones(1))
        timed.append(len(batch.labels))
        return 0.5 if rank else 0.01

    estimate._time_step = time_step
    network = Network(nn.Linear(3, 4), nn.Linear(4, 8))
    batch = Batch(torch.randn(128, 3), torch.arange(64) % 2, torch.arange(64))
    estimate.estimate_stage_1(network, build_method("supcon"), batch, 64, 10, CPU)
    distributed.barrier()
    np.savez(folder / f"{rank}.npz", steps=len(timed))


def test_zero_epochs_come_with_a_caution():
    settings = recipe(epochs=0)
    training_set = training_set_from_features(
        torch.zeros(12, 2, 3), shapes(per_class=2), np.arange(12), settings, 2
    )
    network = Network(nn.Linear(3, 4), nn.Linear(4, 8))
    text, later = estimate.describe_stage_1(
        network, build_method("supcon"), training_set, settings, CPU
    )
    assert text == "caution   stage 1 has 0 epochs: the head keeps its random weights"
    assert later == 0


def test_enough_images_come_without_a_caution():
    images = shapes(per_class=6)
    text = estimate.describe_data(images, np.array(["train"] * 36), [])
    assert "caution" not in text


@pytest.mark.parametrize(
    ("settings", "images", "expected"),
    [
        ({"batch_size": 512}, 10_000, ""),
        ({"batch_size": 2048}, 300, ""),
        (
            {"batch_size": 2048, "lr": 0.1, "warmup_epochs": 2},
            10_000,
            "rate      0.1 for batches of 2,048 images, 2 epochs of warm-up; the linear rule gives "
            "0.8 (0.1 × 2,048/256); set it with --set pretrain.lr=VALUE",
        ),
        (
            {"batch_size": 4096, "lr": 1.6},
            10_000,
            "rate      1.6 for batches of 4,096 images, 0 epochs of warm-up; the linear rule gives "
            "1.6 (0.1 × 4,096/256); set it with --set pretrain.lr=VALUE; try optimizer=lars",
        ),
        (
            {"batch_size": 4096, "lr": 4.8, "optimizer": "lars", "warmup_epochs": 10},
            10_000,
            "rate      4.8 for batches of 4,096 images, 10 epochs of warm-up; the linear rule "
            "gives 4.8 (0.3 × 4,096/256); set it with --set pretrain.lr=VALUE",
        ),
        (
            {"batch_size": 1024, "lr": 0.001, "optimizer": "adamw"},
            10_000,
            "rate      0.001 for batches of 1,024 images; the square root rule multiplies a rate "
            "for 256 images by 2; set it with --set pretrain.lr=VALUE",
        ),
    ],
)
def test_large_batches_are_told_the_usual_rates(settings, images, expected):
    assert estimate.describe_large_batches(PretrainRecipe(**settings), images) == expected


if __name__ == "__main__":
    estimate_on_rank(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))


def test_the_input_of_the_style_field_is_described():
    assert estimate.describe_style(5, 128).endswith("fitted after stage 1")
    assert "100 classes are too many to erase" in estimate.describe_style(100, 128)
