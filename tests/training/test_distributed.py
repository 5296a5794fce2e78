"""Two processes compute the same result as one, in float64.

Under torchrun, this file is one of the processes.
"""

import os
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import distributed, nn

from scs_supcon.errors import UserError
from scs_supcon.nn.network import in_micro_batches
from scs_supcon.training.distributed import make_fabric
from scs_supcon.training.loop import (
    Hooks,
    Stage,
    TrainPosition,
    make_optimizer,
    parameter_groups,
    train_loop,
)

ROWS, LR = 10, 0.1
SETTINGS = {
    "step": {"epochs": 1, "clip_norm": 0.0},
    "steps": {"epochs": 4, "clip_norm": 0.2},
    # The first process has four micro-batches, the second one two; the exact loss is the same.
    "micro": {"epochs": 4, "clip_norm": 0.2, "micro_batch": 2},
}


class Network(nn.Module):
    """Two outputs, of which the loss uses one: the other has no gradient."""

    def __init__(self, micro_batch):
        super().__init__()
        self.micro_batch = micro_batch
        self.encoder = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3))
        self.unused = nn.Linear(3, 2)
        self.register_buffer("count", torch.zeros((), dtype=torch.long))

    def forward(self, images):
        self.count += len(images)
        embeddings = in_micro_batches(self.encoder, images, self.micro_batch)
        return embeddings, self.unused(embeddings)


class GatheredLoss(nn.Module):
    """L = t (‖Σ_i z_i‖² + Σ_i ‖z_i‖²) / n over the rows of all processes.

    The value is that of all rows, the gradient that of the local rows, and the gradient of t is
    complete: the contract between losses and loop.
    """

    def __init__(self):
        super().__init__()
        self.t = nn.Parameter(torch.ones((), dtype=torch.float64))

    def param_groups(self, lr, weight_decay=0.0):
        return [{"params": [self.t], "lr": lr, "weight_decay": weight_decay}]

    def forward(self, local):
        rows = local
        if distributed.is_initialized():
            gathered = [None] * distributed.get_world_size()
            distributed.all_gather_object(gathered, local.detach())
            gathered[distributed.get_rank()] = local
            rows = torch.cat(gathered)
        return {
            "attract": self.t * rows.sum(0).square().sum() / ROWS,
            "size": self.t * rows.square().sum() / ROWS,
        }


def train(out, epochs, clip_norm, micro_batch=0):
    fabric = make_fabric("cpu", "64-true")
    torch.manual_seed(fabric.global_rank)  # the weights of the first process are used
    network, loss = Network(micro_batch), GatheredLoss()
    optimizer = make_optimizer("sgd", parameter_groups([network, loss], LR, 0.01), LR)
    network, optimizer = fabric.setup(network, optimizer)
    images = torch.randn(ROWS, 5, generator=torch.Generator().manual_seed(9), dtype=torch.float64)
    # Uneven shares: 7 and 3 rows.
    shares = images.split([7, 3]) if fabric.world_size == 2 else [images]
    stage = Stage(
        name="pretrain",
        modules={"network": network, "method": loss},
        losses=lambda batch: loss(network(batch)[0]),
        optimizer=optimizer,
        schedule=lambda step: LR,
        batches=lambda epoch, skip: [shares[fabric.global_rank]],
        epochs=epochs,
        clip_norm=clip_norm,
    )
    terms = {}
    train_loop(fabric, stage, TrainPosition(), Hooks(after_step=lambda p, t: terms.update(t)))
    state = {key: value.clone() for key, value in network.state_dict().items()}
    state |= {f"term.{name}": torch.tensor(value) for name, value in terms.items()}
    state["t"] = loss.t.detach().clone()
    save_file(state, f"{out}-{fabric.global_rank}.safetensors")


def torchrun(out):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    result = subprocess.run(
        [*command, "--nproc-per-node", "2", __file__, str(out)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert result.returncode == 0, result.stderr


@pytest.mark.slow
def test_two_processes_compute_the_same_result_as_one(tmp_path):
    """After one plain step, after several with clipping and weight decay, and in micro-batches."""
    for out, settings in SETTINGS.items():
        train(tmp_path / out, **settings | {"micro_batch": 0})
    torchrun(tmp_path / "two-")
    for out, settings in SETTINGS.items():
        single = load_file(tmp_path / f"{out}-0.safetensors")
        first, second = (load_file(tmp_path / f"two-{out}-{rank}.safetensors") for rank in (0, 1))
        for key, value in single.items():
            assert torch.equal(first[key], second[key]), key
            if key == "count":  # batch statistics are those of the first process
                assert first[key] == 7 * settings["epochs"]
            else:
                torch.testing.assert_close(first[key], value, rtol=1e-12, atol=1e-14)


def test_an_unknown_device_is_an_error():
    with pytest.raises(UserError, match="device 'tpu' is not available: use one of auto, cpu"):
        make_fabric("tpu")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_missing_gpu_is_an_error():
    with pytest.raises(UserError, match="device 'cuda:1' is not available"):
        make_fabric("cuda:1")


def test_float16_needs_a_gpu():
    with pytest.raises(UserError, match="16-mixed needs a GPU"):
        make_fabric("cpu", "16-mixed")


def test_the_default_is_one_process():
    fabric = make_fabric()
    assert fabric.world_size == 1


if __name__ == "__main__":
    for out, settings in SETTINGS.items():
        train(sys.argv[1] + out, **settings)
