"""SupCon: pull rows of one class together, away from all others (Khosla et al., NeurIPS 2020).

    L = (1/n) Σ_i (−1/|P_i|) Σ_{p∈P_i} log [ exp(z_i·z_p/τ) / Σ_{a≠i} exp(z_i·z_a/τ) ]

The "out" form: the mean over positives is outside the logarithm. z has unit length; all views are
anchors. Anchors without positives contribute 0 to the mean. The original code multiplies the loss
by τ/0.07; this factor is `loss_scale` here and 1 by default.
"""

from collections.abc import Sequence

from torch import Tensor

from scs_supcon.kernels import softmax_pair_loss
from scs_supcon.kernels.gather import GradientReduction, Group
from scs_supcon.kernels.targets import PairTargets, targeted_softmax_loss
from scs_supcon.methods.shared.base import check_positive, flatten, set_processes
from scs_supcon.methods.shared.pair_loss import PairLoss, Reduction, mean_one
from scs_supcon.nn.head import unit


class SupCon(PairLoss):
    """Supervised contrastive loss.

    Args:
        temperature: τ; similarities are divided by it.
        loss_scale: factor of the loss; 0.1/0.07 gives the values of the original code.
        gather_across_devices: compare the rows with those of all processes.
        ignore_index: label of rows that are left out. Other negative labels are errors.
        class_weights: weight of each class: anchors and positives are averaged with the weights of
            their classes.
        reduction: "mean", or "none" for one value per row, whose mean is the loss.
        gradient_reduction: how the training loop combines the gradients of the processes: "mean"
            (DistributedDataParallel, FSDP, Lightning, Accelerate, Hugging Face Trainer) or "sum".
        group: the processes whose rows are gathered; default: all.
    """

    def __init__(
        self,
        temperature: float = 0.1,
        *,
        loss_scale: float = 1.0,
        ignore_index: int | None = None,
        class_weights: Sequence[float] | Tensor | None = None,
        reduction: Reduction = "mean",
        gather_across_devices: bool = False,
        gradient_reduction: GradientReduction = "mean",
        group: Group = None,
    ) -> None:
        super().__init__()
        check_positive(temperature=temperature, loss_scale=loss_scale)
        self.temperature, self.loss_scale = temperature, loss_scale
        self.set_pair_options(ignore_index, class_weights, reduction)
        set_processes(self, gather_across_devices, gradient_reduction, group)

    def plain_terms(self, embeddings: Tensor, labels: Tensor | None) -> dict[str, Tensor]:
        rows, labels = flatten(embeddings, labels, any_integers=not self.uses_labels)
        contrast = softmax_pair_loss(
            unit(self.scaled(rows)),
            labels,
            self.temperature,
            gather=self.gathers,
            group=self.group,
        )
        return {"contrast": self.loss_scale * contrast}

    def row_terms(
        self,
        rows: Tensor,
        references: Tensor,
        targets: PairTargets,
        weights: Tensor | None = None,
    ) -> dict[str, Tensor]:
        """As in `PairLoss`; the denominator is the sum over pairs with a weight above 0."""
        z = unit(rows)
        others = z if references is rows else unit(references)
        mean = self.reduction == "mean"
        contrast = targeted_softmax_loss(
            z, others, targets, self.temperature, mean_one(weights), mean=mean
        )
        return {"contrast": self.loss_scale * contrast}

    def loss_with_references(
        self, embeddings: Tensor, labels: Tensor, ref_emb: Tensor, ref_labels: Tensor
    ) -> dict[str, Tensor]:
        """Return the terms of rows compared with references only."""
        rows, labels = flatten(embeddings, labels)
        references, ref_labels = flatten(ref_emb, ref_labels)
        contrast = softmax_pair_loss(
            unit(rows),
            labels,
            self.temperature,
            references=unit(references),
            reference_labels=ref_labels,
        )
        return {"contrast": self.loss_scale * contrast}

    def against(self, *arguments: Tensor) -> dict[str, Tensor]:
        """Deprecated name of `loss_with_references`."""
        return self.loss_with_references(*arguments)
