"""Circle loss, class form: one learnable direction per class (Sun et al., CVPR 2020).

    L = (1/n) Σ_i softplus( log Σ_{j≠y} exp(γ α_j (s_j − m)) − γ α_y (s_y − (1 − m)) )

    α_y = [1 + m − s_y]₊,   α_j = [s_j + m]₊,   both without gradient

s_j is the cosine of the embedding of row i and the direction w_j of class j; y is the class of
row i. The further a similarity is from its target, the larger its weight. m = 0.25, γ = 256. With
α = 1 and the two m's removed from the brackets this is cross-entropy with scale γ. With a single
class there are no negatives and L = 0.

Adapted: the paper cites a variant (gui2025cross) that could not be found and describes "angular
margin constraints through class prototypes", which fits this form of the original; `circle_pair`
is the other form. Initial losses of 100 and more are normal: clip the gradient.
"""

from typing import Self

import torch
from torch import Tensor, nn

from scs_supcon.errors import UserError
from scs_supcon.kernels import full_precision
from scs_supcon.methods.shared.base import TaskInfo, after_setup, check_positive, like
from scs_supcon.methods.shared.classifier import check_labels
from scs_supcon.methods.shared.joint import JointMethod
from scs_supcon.nn.head import unit
from scs_supcon.nn.network import ProbeInput


class Circle(JointMethod):
    """Circle loss between embeddings and class directions, which are also the classifier.

    Args:
        margin: m, between 0 and 1.
        gamma: γ, the scale of the logits.
        gather_across_devices: average over the rows of all processes.
    """

    adapted = True

    def __init__(
        self, *, margin: float = 0.25, gamma: float = 256.0, gather_across_devices: bool = False
    ) -> None:
        super().__init__(gather_across_devices=gather_across_devices)
        check_positive(gamma=gamma)
        if not 0 <= margin < 1:
            raise UserError(f"margin must be at least 0 and below 1, got {margin}")
        self.margin, self.gamma = margin, gamma
        self.directions: nn.Parameter | None = None

    def setup(self, task: TaskInfo) -> Self:
        """Create a random direction for every class."""
        directions = torch.randn(task.classes, task.embedding_dim).to(like(task.network))
        self.directions = nn.Parameter(unit(directions))
        return self

    def compute_loss(self, rows: Tensor, labels: Tensor, views: int) -> dict[str, Tensor]:
        s = self._similarities(rows)
        check_labels(labels, s.shape[1])
        return {"circle": class_circle(s, labels, self.margin, self.gamma)}

    def class_logits(self, features: Tensor, embeddings: Tensor) -> Tensor | None:
        return None if self.directions is None else self.gamma * self._similarities(embeddings)

    def linear_classifier(self, probe_input: ProbeInput) -> tuple[Tensor, Tensor] | None:
        if self.directions is None or probe_input != "embeddings":
            return None
        weight = self.gamma * unit(self.directions.detach())
        return weight, torch.zeros_like(weight[:, 0])

    def _similarities(self, rows: Tensor) -> Tensor:
        directions = after_setup(self, self.directions)
        with full_precision(rows):
            return unit(rows) @ unit(directions.to(rows.dtype)).T


def class_circle(s: Tensor, labels: Tensor, m: float, gamma: float) -> Tensor:
    """Return the loss of `(n, classes)` similarities."""
    target = labels[:, None] == torch.arange(s.shape[1], device=s.device)
    others = s.masked_select(~target).view(len(s), s.shape[1] - 1)
    if not others.shape[1]:
        return (s * 0).sum()
    s_y = s.masked_select(target)
    push = gamma * (others.detach() + m).clamp_min(0) * (others - m)
    pull = gamma * (1 + m - s_y.detach()).clamp_min(0) * (s_y - (1 - m))
    return mean_softplus(push.logsumexp(1) - pull)


def mean_softplus(x: Tensor) -> Tensor:
    """Return the mean of log(1 + exp(x)); 0 for an empty tensor."""
    return torch.logaddexp(x, torch.zeros_like(x)).sum() / max(len(x), 1)
