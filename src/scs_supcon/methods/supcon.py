"""SupCon: pull rows of one class together, away from all others (Khosla et al., NeurIPS 2020).

    L = (1/n) Σ_i (−1/|P_i|) Σ_{p∈P_i} log [ exp(z_i·z_p/τ) / Σ_{a≠i} exp(z_i·z_a/τ) ]

The "out" form: the mean over positives is outside the logarithm. z has unit length; all views are
anchors. Anchors without positives contribute 0 to the mean. The original code multiplies the loss
by τ/0.07; this factor is `loss_scale` here and 1 by default.
"""

from collections.abc import Sequence

from torch import Tensor

from scs_supcon.kernels import Anchors, Gather, Pairs, Sides, softmax_pairs
from scs_supcon.methods.shared.base import check_positive, set_processes
from scs_supcon.methods.shared.pair_loss import PairLoss, Reduction
from scs_supcon.nn.head import unit


class SupCon(PairLoss):
    """Supervised contrastive loss.

    Args:
        temperature: τ; similarities are divided by it.
        loss_scale: factor of the loss; 0.1/0.07 gives the values of the original code.
        anchors: "all": mean over all anchors. "with positives": mean over anchors that have
            positives, as in pytorch-metric-learning.
        ignore_index: label of rows that are left out. Other negative labels are errors.
        class_weights: weight of each class: anchors and positives are averaged with the weights of
            their classes.
        reduction: "mean", or "none" for one value per row, whose mean is the loss.
        gather_across_devices: compare the rows with those of all processes. A `Gather` says which
            processes, and how the training loop combines their gradients.
    """

    def __init__(
        self,
        temperature: float = 0.1,
        *,
        loss_scale: float = 1.0,
        anchors: Anchors = "all",
        ignore_index: int | None = None,
        class_weights: Sequence[float] | Tensor | None = None,
        reduction: Reduction = "mean",
        gather_across_devices: bool | Gather = False,
    ) -> None:
        super().__init__()
        check_positive(temperature=temperature, loss_scale=loss_scale)
        self.temperature, self.loss_scale = temperature, loss_scale
        self.set_pair_options(ignore_index, class_weights, reduction, anchors)
        set_processes(self, gather_across_devices)

    def terms(self, rows: Tensor, pairs: Pairs) -> dict[str, Tensor]:
        """Return "contrast"; the denominator is the sum over pairs with a weight above 0."""
        references = pairs.references
        z = Sides(unit(rows), None if references is None else unit(references))
        return {"contrast": self.loss_scale * softmax_pairs(z, pairs, self.temperature)}
