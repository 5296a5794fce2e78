"""CS-SupCon: SupCon on the common field, its reverse on the style field (Dornaika & Wang, 2025).

    L = (1/n) Σ_i (1/|P_i|) Σ_{p∈P_i} { −log σ_c(i,p) + α log σ_s(i,p) − β ‖s_i − s_p‖ }

with σ_x(i,p) the softmax of x_i·x_p/τ over all a ≠ i. The paper sums over anchors; this is the
mean. It gives no values for α and τ: see docs/paper_choices.md. The total may be negative.
"""

from collections.abc import Sequence

from torch import Tensor

from scs_supcon.kernels import softmax_pair_loss, style_distance
from scs_supcon.kernels.gather import GradientReduction, Group
from scs_supcon.kernels.targets import (
    PairTargets,
    targeted_softmax_loss,
    targeted_style_distance,
)
from scs_supcon.methods.shared.base import check_not_negative, check_positive, flatten
from scs_supcon.methods.shared.common_style import CommonStyleMethod
from scs_supcon.methods.shared.pair_loss import PairLoss, Reduction, mean_one, weighted_rows
from scs_supcon.nn.head import Normalise


class CSSupCon(PairLoss, CommonStyleMethod):
    """Common and style supervised contrastive loss.

    Args:
        common_dim: columns of the common field; default: three quarters of the embedding.
        temperature: τ; similarities are divided by it.
        alpha: weight of the reversed loss on the style field.
        beta: weight of the style distance.
        overlap: columns that belong to both fields.
        normalize: "separate", "joint" or "none"; see `CommonStyleMethod`.
        gather_across_devices: compare the rows of each process with those of all processes.
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
        common_dim: int | None = None,
        *,
        temperature: float = 0.1,
        alpha: float = 0.01,
        beta: float = 1e-3,
        overlap: int = 0,
        normalize: Normalise = "separate",
        ignore_index: int | None = None,
        class_weights: Sequence[float] | Tensor | None = None,
        reduction: Reduction = "mean",
        gather_across_devices: bool = False,
        gradient_reduction: GradientReduction = "mean",
        group: Group = None,
    ) -> None:
        super().__init__(
            common_dim,
            overlap=overlap,
            normalize=normalize,
            gather_across_devices=gather_across_devices,
            gradient_reduction=gradient_reduction,
            group=group,
        )
        self.set_pair_options(ignore_index, class_weights, reduction)
        check_positive(temperature=temperature)
        check_not_negative(alpha=alpha, beta=beta)
        self.temperature, self.alpha, self.beta = temperature, alpha, beta

    def plain_terms(self, embeddings: Tensor, labels: Tensor | None) -> dict[str, Tensor]:
        rows, labels = flatten(embeddings, labels)
        common, style = self.fields(self.scaled(rows))
        terms = {"contrast": self._supcon(common, labels)}
        if self.alpha and style.shape[1]:
            terms["style_contrast"] = -self.alpha * self._supcon(style, labels)
        if self.beta and style.shape[1]:
            distance = style_distance(style, labels, gather=self.gathers, group=self.group)
            terms["style"] = -self.beta * distance
        return terms

    def _supcon(self, field: Tensor, labels: Tensor) -> Tensor:
        return softmax_pair_loss(
            field, labels, self.temperature, gather=self.gathers, group=self.group
        )

    def row_terms(
        self,
        rows: Tensor,
        references: Tensor,
        targets: PairTargets,
        weights: Tensor | None = None,
    ) -> dict[str, Tensor]:
        """As in `PairLoss`; the denominators are sums over pairs with a weight above 0."""
        common, style = self.fields(rows)
        ref_common, ref_style = (common, style) if references is rows else self.fields(references)

        def supcon(x: Tensor, y: Tensor) -> Tensor:
            mean = self.reduction == "mean"
            return targeted_softmax_loss(
                x, y, targets, self.temperature, mean_one(weights), mean=mean
            )

        terms = {"contrast": supcon(common, ref_common)}
        if self.alpha and style.shape[1]:
            terms["style_contrast"] = -self.alpha * supcon(style, ref_style)
        if self.beta and style.shape[1]:
            distance = targeted_style_distance(style, ref_style, targets)
            terms["style"] = -self.beta * weighted_rows(distance, weights)
        return terms

    def loss_with_references(
        self, embeddings: Tensor, labels: Tensor, ref_emb: Tensor, ref_labels: Tensor
    ) -> dict[str, Tensor]:
        """Return the terms of rows compared with references only."""
        rows, labels = flatten(embeddings, labels)
        references, ref_labels = flatten(ref_emb, ref_labels)
        (common, style), (ref_common, ref_style) = self.fields(rows), self.fields(references)

        def supcon(x: Tensor, y: Tensor) -> Tensor:
            return softmax_pair_loss(
                x, labels, self.temperature, references=y, reference_labels=ref_labels
            )

        terms = {"contrast": supcon(common, ref_common)}
        if self.alpha and style.shape[1]:
            terms["style_contrast"] = -self.alpha * supcon(style, ref_style)
        if self.beta and style.shape[1]:
            distance = style_distance(
                style, labels, references=ref_style, reference_labels=ref_labels
            )
            terms["style"] = -self.beta * distance
        return terms
