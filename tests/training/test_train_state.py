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
    Progress,
    Stage,
    make_optimizer,
    optimise,
    parameter_groups,
)
from scs_supcon.training.train_state import restore_snapshot, take_snapshot

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


@pytest.mark.parametrize("name", ["sgd", "adamw"])
@pytest.mark.parametrize("stop_at", [0, 1, 5, 6])
def test_a_fresh_restore_goes_on_as_the_run_itself(tmp_path, name, stop_at):
    """Through files: a run is saved, goes on, and is compared with one restored from the save."""
    fabric = make_fabric("cpu")
    stage = make_stage(fabric, name)
    progress = Progress()
    memo = {"best": [0.1, None, "x"]}

    def save(progress, _):
        if progress.global_step == stop_at:
            write_checkpoint(tmp_path, "pretrain", take_snapshot(fabric, stage, progress, memo))

    seed_all(3)
    random.gauss(0, 1)  # Python keeps the second of a pair of numbers; so does NumPy
    np.random.standard_normal()  # noqa: NPY002
    save(progress, None)
    optimise(fabric, stage, progress, Hooks(after_step=save))
    expected = take_snapshot(fabric, stage, progress, {})

    seed_all(4)
    other = make_stage(fabric, name, seed=1)
    found = read_checkpoint(tmp_path, "pretrain")
    progress, again = restore_snapshot(fabric, other, found)
    assert again == memo
    assert progress.global_step == stop_at
    optimise(fabric, other, progress, Hooks())
    result = take_snapshot(fabric, other, progress, {})
    assert result.state == expected.state
    assert result.tensors.keys() == expected.tensors.keys()
    for key, tensor in expected.tensors.items():
        # View as bytes: NaN stands for "no number kept" and equals nothing.
        assert torch.equal(
            tensor.reshape(-1).view(torch.uint8), result.tensors[key].reshape(-1).view(torch.uint8)
        ), key


def test_another_network_is_refused_by_name():
    fabric = make_fabric("cpu")
    snapshot = take_snapshot(fabric, make_stage(fabric, "sgd"), Progress(), {})
    other = make_stage(fabric, "sgd", network=lambda: nn.Linear(3, 3))
    with pytest.raises(UserError, match="does not fit the network of this version"):
        restore_snapshot(fabric, other, snapshot)
