"""FNCL: SimCLR without false negatives (Huynh et al., WACV 2022, where it is called FNC).

    L = (1/n) Σ_i −(1/|Q_i|) Σ_{q∈Q_i} log [ exp(z_i·z_q/τ) / Σ_{a∈Q_i∪N_i} exp(z_i·z_a/τ) ]

z are the unit embeddings, Q_i the other views of i's image and N_i the rows of other classes:
other images of the same class are neither attracted nor repelled ("elimination"). With `attract`
= k, the k images of the same class that are most similar to any view of the image join Q_i if
their cosine is above 0.7 ("attraction"). The selection has no gradient. If every image is its own
class, this is NT-Xent.

Adapted: the original has no labels and finds false negatives by that threshold, in support views
and a memory of momentum features; here the labels identify them. Attracting all images of the
same class would be SupCon, so elimination is the default. The paper counts the method as
single-stage: `classifier_weight` = 1 adds cross-entropy on the features.
"""

from typing import Self

import torch
from torch import Tensor, nn

from scs_supcon.errors import UserError
from scs_supcon.kernels import full_precision, positives
from scs_supcon.methods.shared.base import Batch, TaskInfo, check_not_negative, check_positive
from scs_supcon.methods.shared.classifier import ClassifierMethod, cross_entropy
from scs_supcon.methods.shared.joint import check_views
from scs_supcon.nn.head import unit


class FNCL(ClassifierMethod):
    """SimCLR without negatives of the same class; `forward` expects `(B, V, D)` embeddings.

    Args:
        temperature: τ; similarities are divided by it.
        attract: maximum number of rows of the same class that an image attracts.
        threshold: cosine that an attracted row must exceed.
        classifier_weight: weight of the cross-entropy of a classifier on the features; 0 means no
            classifier.
        gather_across_devices: use the pairs of the rows of all processes.
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
        check_positive(temperature=temperature)
        check_not_negative(attract=attract, classifier_weight=classifier_weight)
        if not -1 <= threshold <= 1:
            raise UserError(f"threshold must be between -1 and 1, got {threshold}")
        self.temperature, self.attract, self.threshold = temperature, attract, threshold
        self.classifier_weight = classifier_weight

    def setup(self, task: TaskInfo) -> Self:
        """Create the classifier if it has a weight."""
        return super().setup(task) if self.classifier_weight else self

    def training_step(self, batch: Batch, network: nn.Module) -> dict[str, Tensor]:
        gathered = self.forward_batch(batch, network)
        terms = self.compute_loss(gathered.embeddings, gathered.labels, self.views)
        if self.classifier_weight:
            loss = cross_entropy(self.logits(gathered.features), gathered.labels)
            terms["classify"] = self.classifier_weight * loss
        return terms

    def compute_loss(self, rows: Tensor, labels: Tensor, views: int) -> dict[str, Tensor]:
        check_views(self, views)
        with full_precision(rows):
            z = unit(rows)
            r = z @ z.T
        image = torch.arange(len(r) // views, device=r.device).repeat(views)
        views_of_image = positives(image)
        candidates = positives(labels) & ~views_of_image
        attracted = views_of_image | self._attracted(r.detach(), candidates, views)
        logits = r / self.temperature
        negatives = labels[:, None] != labels
        log_z = logits.masked_fill(~(attracted | negatives), -torch.inf).logsumexp(1)
        mean = logits.masked_fill(~attracted, 0).sum(1) / attracted.sum(1)
        return {"contrast": (log_z - mean).sum() / max(len(r), 1)}

    def _attracted(self, r: Tensor, candidates: Tensor, views: int) -> Tensor:
        """Return a mask of the candidates that each row attracts, as do all views of its image."""
        if not self.attract:
            return torch.zeros_like(candidates)
        n = len(r)
        score = r.masked_fill(~candidates, -torch.inf).view(views, n // views, n).amax(0)
        best, columns = score.topk(min(self.attract, len(r)), dim=1)
        attracted = torch.zeros_like(score, dtype=torch.bool)
        attracted.scatter_(1, columns, best > self.threshold)
        return attracted.repeat(views, 1)
