"""A momentum encoder: an exponential moving average (EMA) of the network."""

import copy

import torch
from torch import Tensor, nn

from scs_supcon.methods.shared.base import Method, after_setup
from scs_supcon.nn.network import Output

NAME_IN_CHECKPOINTS = "twin"  # vocabulary: ok


class MomentumEncoder(nn.Module):
    """An exponential moving average of a network, without gradients.

    Not `torch.optim.swa_utils.AveragedModel`: its state has other names, and its first update
    copies the network.
    """

    steps: Tensor

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = copy.deepcopy(network).requires_grad_(False)
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))

    def forward(self, images: Tensor) -> Output:
        with torch.no_grad():
            output: Output = self.network(images)
        return output

    @torch.no_grad()
    def update(self, network: nn.Module, momentum: float) -> None:
        """Update the weights, ξ ← m ξ + (1 − m) θ, and copy the batch statistics."""
        for average, parameter in zip(self.network.parameters(), network.parameters(), strict=True):
            average.lerp_(parameter, 1 - momentum)
        for running, buffer in zip(self.network.buffers(), network.buffers(), strict=True):
            running.copy_(buffer)
        self.steps += 1

    def warmup_momentum(self, momentum: float) -> float:
        """Return `momentum`, or less in the first steps, so that the initial weights fade fast."""
        steps = int(self.steps)
        return min(momentum, (1 + steps) / (10 + steps))


def add_momentum_encoder(method: Method, network: nn.Module) -> None:
    """Add a momentum encoder of the network to a method."""
    method.add_module(NAME_IN_CHECKPOINTS, MomentumEncoder(network))


def momentum_encoder(method: Method) -> MomentumEncoder:
    """Return the momentum encoder of a method."""
    module = after_setup(method, method._modules.get(NAME_IN_CHECKPOINTS))
    assert isinstance(module, MomentumEncoder)
    return module
