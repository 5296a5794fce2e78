"""Circle loss, class form: each class has a direction (Sun et al., CVPR 2020).

    L = (1/n) Σ_i softplus( log Σ_{j≠y} exp(γ α_j (s_j − m)) − γ α_y (s_y − (1 − m)) )

    α_y = [1 + m − s_y]₊,   α_j = [s_j + m]₊,   both without gradient

s_j is the cosine of the embedding of row i and the direction w_j of class j, y its own class. The
further a similarity is from where it should be, the harder it is pulled. m = 0.25, γ = 256. With
α = 1 and the two m's removed from the brackets it is cross-entropy with scale γ. With one class
only there is nothing to tell apart: L = 0.

Adapted: the paper cites a variant (gui2025cross) that could not be found and describes "angular
margin constraints through class prototypes", which fits this form of the original; `circle_pair`
is the other one. Losses of 100 and more are normal at the start: clip the gradient.
"""

from typing import Self

import torch
from torch import Tensor, nn

from scs_supcon.errors import UserError
from scs_supcon.methods.shared.base import TaskInfo, positive
from scs_supcon.methods.shared.joint import JointMethod
from scs_supcon.methods.shared.momentum import check_classes, like, ready
from scs_supcon.nn.head import unit


class Circle(JointMethod):
    """Circle loss between embeddings and class directions; it classifies by the nearest one.

    Args:
        margin: m, between 0 and 1.
        gamma: γ; scale of the logits.
        gather_across_devices: mean over the rows of all processes.
    """

    adapted = True

    def __init__(
        self, *, margin: float = 0.25, gamma: float = 256.0, gather_across_devices: bool = False
    ) -> None:
        super().__init__(gather_across_devices=gather_across_devices)
        positive(gamma=gamma)
        if not 0 <= margin < 1:
            raise UserError(f"margin is {margin}: choose 0 ≤ margin < 1")
        self.margin, self.gamma = margin, gamma
        self.directions: nn.Parameter | None = None

    def setup(self, task: TaskInfo) -> Self:
        """Draw a direction for every class."""
        drawn = torch.randn(task.classes, task.embedding_dim).to(like(task.network))
        self.directions = nn.Parameter(unit(drawn))
        return self

    def compute_loss(self, rows: Tensor, labels: Tensor, views: int) -> dict[str, Tensor]:
        s = self._similarities(rows)
        check_classes(labels, s.shape[1])
        return {"circle": class_circle(s, labels, self.margin, self.gamma)}

    def classify(self, features: Tensor, embeddings: Tensor) -> Tensor | None:
        return None if self.directions is None else self.gamma * self._similarities(embeddings)

    def own_classifier(self, reads: str) -> tuple[Tensor, Tensor] | None:
        if self.directions is None or reads != "embeddings":
            return None
        weight = self.gamma * unit(self.directions.detach())
        return weight, torch.zeros_like(weight[:, 0])

    def _similarities(self, rows: Tensor) -> Tensor:
        directions = ready(self, self.directions)
        with torch.autocast(rows.device.type, enabled=False):
            return unit(rows) @ unit(directions.to(rows.dtype)).T


def class_circle(s: Tensor, labels: Tensor, m: float, gamma: float) -> Tensor:
    """The loss of similarities `(n, classes)`."""
    mine = labels[:, None] == torch.arange(s.shape[1], device=s.device)
    other = s.masked_select(~mine).view(len(s), s.shape[1] - 1)
    if not other.shape[1]:
        return (s * 0).sum()
    s_y = s.masked_select(mine)
    push = gamma * (other.detach() + m).clamp_min(0) * (other - m)
    pull = gamma * (1 + m - s_y.detach()).clamp_min(0) * (s_y - (1 - m))
    return tell_apart(push, pull)


def tell_apart(push: Tensor, pull: Tensor) -> Tensor:
    """Mean over rows of softplus(log Σ_j exp(push_j) − pull): cross-entropy of these logits."""
    x = push.logsumexp(1) - pull
    return torch.logaddexp(x, torch.zeros_like(x)).sum() / max(len(x), 1)
