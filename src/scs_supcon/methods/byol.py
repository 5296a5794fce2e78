"""BYOL: predict a momentum encoder's embedding of the other view (Grill et al., NeurIPS 2020).

    L = (1/B) Σ_i [ 2 − 2 cos(q(z_i¹), ξ(x_i²)) ] + [ 2 − 2 cos(q(z_i²), ξ(x_i¹)) ]

z = g(f(x)) are the embeddings, q is the predictor (Linear → BatchNorm → ReLU → Linear) and ξ the
momentum encoder, an average of the network (f and g without the predictor) that has no gradient.
After each step ξ ← m ξ + (1 − m) θ, where m rises from 0.996 to 1 along half a cosine. The loss
uses no labels. As in the original, the first view of a large image is always blurred; of the second
views a tenth is blurred and a fifth solarised.

Differences from the original: all methods share one projection head, so its batch norm is the
centring of its output (`head.centre`), not a layer inside it; the predictor gets both views in one
batch. Without any batch norm BYOL tends to collapse.
"""

import math
from collections.abc import Mapping
from typing import ClassVar, Self

from torch import Tensor, nn

from scs_supcon.errors import UserError
from scs_supcon.kernels import full_precision
from scs_supcon.methods.shared.base import (
    Batch,
    TaskInfo,
    after_setup,
    check_share,
    like,
    needs_images,
)
from scs_supcon.methods.shared.joint import JointMethod
from scs_supcon.methods.shared.momentum import add_momentum_encoder, momentum_encoder
from scs_supcon.nn.head import unit


class BYOL(JointMethod):
    """Self-supervised prediction of a momentum encoder's embeddings.

    Args:
        momentum: initial value of m, which rises to 1.
        hidden: width of the predictor's hidden layer.
        gather_across_devices: compute the mean and the batch norm over the rows of all processes.
    """

    uses_labels = False
    large_views: ClassVar[Mapping[str, tuple[float, ...]]] = {
        "blur": (1.0, 0.1),
        "solarize": (0.0, 0.2),
    }

    def __init__(
        self,
        *,
        momentum: float = 0.996,
        hidden: int = 4096,
        gather_across_devices: bool = False,
    ) -> None:
        super().__init__(gather_across_devices=gather_across_devices)
        check_share(momentum=momentum)
        if hidden < 1:
            raise UserError(f"hidden must be at least 1, got {hidden}")
        self.momentum, self.hidden = momentum, hidden
        self.predictor: nn.Module | None = None

    def setup(self, task: TaskInfo) -> Self:
        """Copy the network and create the predictor."""
        add_momentum_encoder(self, task.network)
        self.predictor = nn.Sequential(
            nn.Linear(task.embedding_dim, self.hidden),
            nn.BatchNorm1d(self.hidden),
            nn.ReLU(),
            nn.Linear(self.hidden, task.embedding_dim),
        ).to(like(task.network))
        return self

    def loss_terms(self, embeddings: Tensor, labels: Tensor | None) -> dict[str, Tensor]:
        raise needs_images(self, "compares the network with its momentum encoder")

    def training_step(self, batch: Batch, network: nn.Module) -> dict[str, Tensor]:
        predictor = after_setup(self, self.predictor)
        rows = self.forward_batch(batch, network).embeddings
        first, second = predictor(rows).to(rows.dtype).chunk(2)
        targets = self.gather(momentum_encoder(self)(batch.images).embeddings, 2)
        first_target, second_target = targets.chunk(2)
        return {"predict": distance(first, second_target) + distance(second, first_target)}

    def after_step(self, network: nn.Module, progress: float) -> None:
        momentum_encoder(self).update(network, self.momentum_at(progress))

    def momentum_at(self, progress: float) -> float:
        """Return m at a point of training: 0 is the start, 1 the end."""
        return 1 - (1 - self.momentum) * (1 + math.cos(math.pi * progress)) / 2


def distance(predicted: Tensor, target: Tensor) -> Tensor:
    """Return the mean of 2 − 2 cos: 0 for equal directions, 4 for opposite ones."""
    with full_precision(predicted):
        cosine = (unit(predicted) * unit(target.detach().to(predicted.dtype))).sum(1)
        return 2 - 2 * cosine.sum() / max(len(cosine), 1)
