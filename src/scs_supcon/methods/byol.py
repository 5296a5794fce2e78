"""BYOL: predict what a slow twin makes of the other view (Grill et al., NeurIPS 2020).

    L = (1/B) Σ_i [ 2 − 2 cos(q(z_i¹), ξ(x_i²)) ] + [ 2 − 2 cos(q(z_i²), ξ(x_i¹)) ]

z = g(f(x)) are the embeddings, q is the predictor (Linear → BatchNorm → ReLU → Linear) and ξ the
twin, an average of the network (f and g, no predictor) that has no gradient. After each step
ξ ← m ξ + (1 − m) θ with m from 0.996 to 1 along half a cosine. No class label is used.

Ours: the projection is the one all methods share, so its batch norm is the centring of its output
(`head.centre`), not one in its hidden layer; the predictor sees both views in one batch. Without
any batch norm BYOL tends to collapse.
"""

import math
from typing import Any, Self

import torch
from torch import Tensor, nn

from scs_supcon.errors import UserError
from scs_supcon.methods.shared.base import Batch, TaskInfo, share
from scs_supcon.methods.shared.joint import JointMethod
from scs_supcon.methods.shared.momentum import MomentumEncoder, like, needs_images, ready
from scs_supcon.nn.head import unit


class BYOL(JointMethod):
    """Self-supervised prediction of a momentum twin.

    Args:
        momentum: m at the start; it rises to 1.
        hidden: width of the predictor's hidden layer.
        gather_across_devices: mean and batch norm over the rows of all processes.
    """

    def __init__(
        self,
        *,
        momentum: float = 0.996,
        hidden: int = 4096,
        gather_across_devices: bool = False,
    ) -> None:
        super().__init__(gather_across_devices=gather_across_devices)
        share(momentum=momentum)
        if hidden < 1:
            raise UserError(f"hidden is {hidden}: give the predictor at least one hidden unit")
        self.momentum, self.hidden = momentum, hidden
        self.twin: MomentumEncoder | None = None
        self.predictor: nn.Module | None = None

    def setup(self, task: TaskInfo) -> Self:
        """Copy the network and make the predictor."""
        self.twin = MomentumEncoder(task.network)
        self.predictor = nn.Sequential(
            nn.Linear(task.embedding_dim, self.hidden),
            nn.BatchNorm1d(self.hidden),
            nn.ReLU(),
            nn.Linear(self.hidden, task.embedding_dim),
        ).to(like(task.network))
        return self

    @classmethod
    def recipe_defaults(cls, preset: str | None) -> dict[str, dict[str, Any]]:
        """Batch norm in the projection, where this one has room for it."""
        return {"head": {"centre": True}}

    def loss_terms(self, embeddings: Tensor, labels: Tensor | None) -> dict[str, Tensor]:
        raise needs_images(self, "compares the network with its twin")

    def training_step(self, batch: Batch, network: nn.Module) -> dict[str, Tensor]:
        twin, predictor = ready(self, self.twin), ready(self, self.predictor)
        rows = self.forward_batch(batch, network).embeddings
        first, second = predictor(rows).to(rows.dtype).chunk(2)
        slow_first, slow_second = self.gather(twin(batch.images).embeddings, 2).chunk(2)
        return {"predict": distance(first, slow_second) + distance(second, slow_first)}

    def after_step(self, network: nn.Module, done: float) -> None:
        ready(self, self.twin).follow(network, self.momentum_at(done))

    def momentum_at(self, done: float) -> float:
        """m when a share `done` of training is behind."""
        return 1 - (1 - self.momentum) * (1 + math.cos(math.pi * done)) / 2


def distance(predicted: Tensor, target: Tensor) -> Tensor:
    """Mean of 2 − 2 cos: 0 for equal directions, 4 for opposite ones."""
    with torch.autocast(predicted.device.type, enabled=False):
        cosine = (unit(predicted) * unit(target.detach().to(predicted.dtype))).sum(1)
        return 2 - 2 * cosine.sum() / max(len(cosine), 1)
