"""FNCL: SimCLR without false negatives (Huynh et al., WACV 2022; there "FNC").

    L = (1/n) Σ_i −(1/|Q_i|) Σ_{q∈Q_i} log [ exp(z_i·z_q/τ) / Σ_{a∈Q_i∪N_i} exp(z_i·z_a/τ) ]

z are the embeddings of unit length, Q_i the other views of i's image and N_i the rows of other
classes: classmates are neither pulled nor pushed ("elimination"). With `attract` = k, the k
classmates most similar to any view of the image, if their cosine is above 0.7, join Q_i
("attraction"). The choice carries no gradient. With every label its own class it is NT-Xent.

Adapted: the original has no labels and finds false negatives by that threshold, in support views
and a memory of momentum features; here the labels tell them. Its attraction with labels would be
SupCon (all classmates attracted: equal to it here too), so elimination is the default. The paper
counts the method as single-stage: `classifier_weight` = 1 adds cross-entropy on the features.
"""

from typing import Self

import torch
from torch import Tensor, nn

from scs_supcon.errors import UserError
from scs_supcon.methods.shared.base import Batch, TaskInfo, not_negative, positive
from scs_supcon.methods.shared.joint import JointMethod, several_views
from scs_supcon.methods.shared.momentum import ClassifierMethod
from scs_supcon.nn.head import unit


class FNCL(ClassifierMethod):
    """Contrast that leaves classmates out; `forward` takes `(B, V, D)`.

    Args:
        temperature: τ; similarities are divided by it.
        attract: how many classmates of an image are pulled, at most.
        threshold: cosine that such a classmate must exceed.
        classifier_weight: of the cross-entropy of an own classifier; 0: there is none.
        gather_across_devices: hold the rows against those of all processes.
    """

    adapted = True

    def __init__(
        self,
        temperature: float = 0.1,
        *,
        attract: int = 0,
        threshold: float = 0.7,
        classifier_weight: float = 0.0,
        gather_across_devices: bool = False,
    ) -> None:
        super().__init__(gather_across_devices=gather_across_devices)
        positive(temperature=temperature)
        not_negative(attract=attract, classifier_weight=classifier_weight)
        if not -1 <= threshold <= 1:
            raise UserError(f"threshold is {threshold}: a cosine lies between −1 and 1")
        self.temperature, self.attract, self.threshold = temperature, attract, threshold
        self.classifier_weight = classifier_weight

    def setup(self, task: TaskInfo) -> Self:
        """Make the classifier, if there is to be one."""
        return super().setup(task) if self.classifier_weight else self

    def training_step(self, batch: Batch, network: nn.Module) -> dict[str, Tensor]:
        if not self.classifier_weight:
            return JointMethod.training_step(self, batch, network)
        parts = super().training_step(batch, network)
        return parts | {"classify": self.classifier_weight * parts["classify"]}

    def compute_loss(self, rows: Tensor, labels: Tensor, views: int) -> dict[str, Tensor]:
        several_views(self, views)
        with torch.autocast(rows.device.type, enabled=False):
            z = unit(rows)
            r = z @ z.T
        own = torch.eye(len(r), dtype=torch.bool, device=r.device)
        image = torch.arange(len(r) // views, device=r.device).repeat(views)
        siblings = (image[:, None] == image[None, :]) & ~own
        same = labels[:, None] == labels[None, :]
        pulled = siblings | self._attracted(r.detach(), same & ~siblings & ~own, views)
        logits = r / self.temperature
        log_z = logits.masked_fill(~(pulled | ~same), -torch.inf).logsumexp(1)
        mean = logits.masked_fill(~pulled, 0).sum(1) / pulled.sum(1)
        return {"contrast": (log_z - mean).sum() / max(len(r), 1)}

    def _attracted(self, r: Tensor, candidates: Tensor, views: int) -> Tensor:
        """Which rows each row attracts; all views of an image attract the same."""
        if not self.attract:
            return torch.zeros_like(candidates)
        n = len(r)
        score = r.masked_fill(~candidates, -torch.inf).view(views, n // views, n).amax(0)
        best, place = score.topk(min(self.attract, len(r)), dim=1)
        chosen = torch.zeros_like(score, dtype=torch.bool)
        chosen.scatter_(1, place, best > self.threshold)
        return chosen.repeat(views, 1)
