"""CS-SupCon: SupCon on the common field, its reverse on the style field (Dornaika & Wang, 2025).

    L = (1/n) Σ_i (1/|P_i|) Σ_{p∈P_i} { −log σ_c(i,p) + α log σ_s(i,p) − β ‖s_i − s_p‖ }

with σ_x(i,p) the softmax of x_i·x_p/τ over all a ≠ i. The paper sums over anchors; this is the
mean. It gives no values for α and τ: see docs/paper_choices.md. The total may be negative.
"""

from collections.abc import Sequence

from torch import Tensor

from scs_supcon.kernels import Anchors, Gather, Pairs, mean_distance, softmax_pairs
from scs_supcon.methods.shared.base import check_not_negative, check_positive
from scs_supcon.methods.shared.common_style import CommonStyleMethod
from scs_supcon.methods.shared.pair_loss import PairLoss, Reduction
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
        anchors: "all": mean over all anchors. "with positives": mean over anchors that have
            positives, as in pytorch-metric-learning.
        ignore_index: label of rows that are left out. Other negative labels are errors.
        class_weights: weight of each class: anchors and positives are averaged with the weights of
            their classes.
        reduction: "mean", or "none" for one value per row, whose mean is the loss.
        gather_across_devices: compare the rows of each process with those of all processes. A
            `Gather` says which processes, and how the training loop combines their gradients.
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
        anchors: Anchors = "all",
        ignore_index: int | None = None,
        class_weights: Sequence[float] | Tensor | None = None,
        reduction: Reduction = "mean",
        gather_across_devices: bool | Gather = False,
    ) -> None:
        super().__init__(
            common_dim,
            overlap=overlap,
            normalize=normalize,
            gather_across_devices=gather_across_devices,
        )
        self.set_pair_options(ignore_index, class_weights, reduction, anchors)
        check_positive(temperature=temperature)
        check_not_negative(alpha=alpha, beta=beta)
        self.temperature, self.alpha, self.beta = temperature, alpha, beta

    def terms(self, rows: Tensor, pairs: Pairs) -> dict[str, Tensor]:
        """Return the three terms; denominators are sums over pairs with a weight above 0."""
        c, s = self.sides(rows, pairs, style=self.alpha > 0 or self.beta > 0)
        terms = {"contrast": softmax_pairs(c, pairs, self.temperature)}
        if s is not None and self.alpha:
            contrast = softmax_pairs(s, pairs, self.temperature)
            terms["style_contrast"] = -self.alpha * contrast
        if s is not None and self.beta:
            terms["style"] = -self.beta * mean_distance(s, pairs)
        return terms
