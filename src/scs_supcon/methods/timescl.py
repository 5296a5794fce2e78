"""TimeSCL: SupCon whose weights of positive pairs sharpen during training.

    L = −(1/n) Σ_i log softmax(W h_i + a)_{y_i} + λ (1/n) Σ_i L_i

    L_i = −Σ_{p∈P_i} w_ip log [ exp(z_i·z_p/τ) / Σ_{a≠i} exp(z_i·z_a/τ) ]
    w_ip = softmax over p∈P_i of z_i·z_p/κ, without gradient

z are the unit embeddings, h the features. κ falls from 10 in the first epoch to 0.5 in the last,
evenly on a logarithmic scale: at first all positives have nearly the same weight, later unlikely
ones (noisy labels) have less. κ = ∞ is SupCon. Anchors without positives contribute 0 to the mean.

Adapted: the original (cited as huang2025noise) could not be found; the paper calls it "a supervised
contrastive method with adaptive temporal weighting" for time series, in one stage. Images have no
time axis, so the weights depend on training time. The whole formula is ours.
"""

from typing import Self

import torch
from torch import Tensor

from scs_supcon.kernels import full_precision, positives
from scs_supcon.methods.shared.base import (
    EncodeTrainingSet,
    TaskInfo,
    check_not_negative,
    check_positive,
)
from scs_supcon.methods.shared.classifier import ClassifierMethod
from scs_supcon.nn.head import unit


class TimeSCL(ClassifierMethod):
    """Weighted SupCon and cross-entropy; `forward` returns λ × the former.

    Args:
        temperature: τ; similarities are divided by it.
        weight: λ.
        first: κ of the first epoch.
        last: κ of the last epoch.
        gather_across_devices: use the pairs of the rows of all processes.
    """

    adapted = True
    kappa: Tensor

    def __init__(
        self,
        temperature: float = 0.1,
        *,
        weight: float = 0.5,
        first: float = 10.0,
        last: float = 0.5,
        gather_across_devices: bool = False,
    ) -> None:
        super().__init__(gather_across_devices=gather_across_devices)
        check_positive(temperature=temperature, first=first, last=last)
        check_not_negative(weight=weight)
        self.temperature, self.weight, self.first, self.last = temperature, weight, first, last
        self.register_buffer("kappa", torch.tensor(first, dtype=torch.float64))
        self.epochs = 1

    def setup(self, task: TaskInfo) -> Self:
        """Create the classifier and store the number of epochs."""
        self.epochs = task.epochs
        return super().setup(task)

    def on_epoch_start(self, epoch: int, encode_training_set: EncodeTrainingSet) -> None:
        progress = epoch / max(self.epochs - 1, 1)
        self.kappa.fill_(self.first * (self.last / self.first) ** progress)

    def compute_loss(self, rows: Tensor, labels: Tensor, views: int) -> dict[str, Tensor]:
        contrast = weighted_contrast(unit(rows), labels, self.temperature, float(self.kappa))
        return {"contrast": self.weight * contrast}

    def scalars(self) -> dict[str, float]:
        return {"kappa": float(self.kappa)}


def weighted_contrast(z: Tensor, labels: Tensor, temperature: float, kappa: float) -> Tensor:
    """Return (1/n) Σ_i L_i."""
    with full_precision(z):
        same = positives(labels)
        anchors = same.any(1)  # the softmax over no positives is undefined
        r, same = z[anchors] @ z.T, same[anchors]
        self_pairs = torch.eye(len(z), dtype=torch.bool, device=z.device)[anchors]
        weights = (r.detach() / kappa).masked_fill(~same, -torch.inf).softmax(1)
        log_z = (r / temperature).masked_fill(self_pairs, -torch.inf).logsumexp(1)
        return (log_z - (weights * r).sum(1) / temperature).sum() / max(len(z), 1)
