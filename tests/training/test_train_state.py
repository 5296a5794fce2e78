"""The state of training survives a round trip through files bit for bit."""

import random

import numpy as np
import pytest
import torch
from torch import nn

from scs_supcon.errors import UserError
from scs_supcon.runs.checkpoint_io import read_checkpoint, write_checkpoint
from scs_supcon.training.distributed import make_fabric
from scs_supcon.training.loop import (
    Hooks,
    Stage,
    TrainPosition,
    make_optimizer,
    parameter_groups,
    train_loop,
)
from scs_supcon.training.train_state import capture_state, restore_state

EPOCHS = 4


class Network(nn.Module):
    """Batch statistics, dropout, tied weights and a scalar, channels last."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)
        self.norm = nn.BatchNorm2d(8)
        self.first = nn.Linear(8, 8)
        self.second = nn.Linear(8, 8)
        self.second.weight = self.first.weight
        self.log_t = nn.Parameter(torch.zeros(()))
        self.to(memory_format=torch.channels_last)

    def forward(self, images):
        x = torch.relu(self.norm(self.conv(images))).mean((2, 3))
        x = nn.functional.dropout(self.second(torch.relu(self.first(x))), 0.5, self.training)
        return self.log_t.exp() * x


def losses(network):
    def noisy(images):
        noise = random.gauss(0, 1) + np.random.standard_normal()  # noqa: NPY002
        return {"loss": (network(images) - noise).square().mean()}

    return noisy


def make_stage(fabric, name, seed=0, network=Network):
    torch.manual_seed(seed)
    net = network()
    groups = parameter_groups([net], 0.1, 0.01)
    wrapped, optimizer = fabric.setup(net, make_optimizer(name, groups, 0.1))
    return Stage(
        name="pretrain",
        modules={"network": wrapped},
        losses=losses(wrapped),
        optimizer=optimizer,
        schedule=lambda step: 0.1 / (1 + step),
        batches=lambda epoch, skip: [torch.full((4, 3, 5, 5), 0.1 * i) for i in range(skip, 3)],
        epochs=EPOCHS,
    )


def seed_all(seed):
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002


@pytest.mark.parametrize("name", ["sgd", "lars", "adamw"])
@pytest.mark.parametrize("stop_at", [0, 1, 5, 6])
def test_a_restored_run_continues_like_the_original(tmp_path, name, stop_at):
    """A run is saved and continues; a run restored from the file must end equal."""
    fabric = make_fabric("cpu")
    stage = make_stage(fabric, name)
    position = TrainPosition()
    memo = {"best": [0.1, None, "x"]}

    def save(position, _):
        if position.global_step == stop_at:
            write_checkpoint(tmp_path, "pretrain", capture_state(fabric, stage, position, memo))

    seed_all(3)
    random.gauss(0, 1)  # Python and NumPy cache the second number of a pair
    np.random.standard_normal()  # noqa: NPY002
    save(position, None)
    train_loop(fabric, stage, position, Hooks(after_step=save))
    expected = capture_state(fabric, stage, position, {})

    seed_all(4)
    other = make_stage(fabric, name, seed=1)
    checkpoint = read_checkpoint(tmp_path, "pretrain")
    position, again = restore_state(fabric, other, checkpoint)
    assert again == memo
    assert position.global_step == stop_at
    train_loop(fabric, other, position, Hooks())
    result = capture_state(fabric, other, position, {})
    assert result.state == expected.state
    assert result.tensors.keys() == expected.tensors.keys()
    for key, tensor in expected.tensors.items():
        # Compared as bytes: NaN means "no cached number" and is not equal to itself.
        assert torch.equal(
            tensor.reshape(-1).view(torch.uint8), result.tensors[key].reshape(-1).view(torch.uint8)
        ), key


def test_a_checkpoint_of_another_network_is_an_error():
    fabric = make_fabric("cpu")
    checkpoint = capture_state(fabric, make_stage(fabric, "sgd"), TrainPosition(), {})
    other = make_stage(fabric, "sgd", network=lambda: nn.Linear(3, 3))
    with pytest.raises(UserError, match="does not fit the network of this version"):
        restore_state(fabric, other, checkpoint)
