"""SupCon: pull classmates together against everyone else (Khosla et al., NeurIPS 2020).

    L = (1/n) Σ_i (−1/|P_i|) Σ_{p∈P_i} log [ exp(z_i·z_p/τ) / Σ_{a≠i} exp(z_i·z_a/τ) ]

The "out" form: the mean over classmates stands outside the logarithm. z has unit length; all views
are anchors. An anchor without classmates adds 0 and counts in the mean; the original code
multiplies the loss by τ/0.07, which is `loss_scale` here and 1 by default.
"""

from torch import Tensor

from scs_supcon.kernels import Rows, gather_rows, softmax_pairs, sort_rows
from scs_supcon.kernels.layout import TILE
from scs_supcon.methods.shared.base import Method, flatten, positive, prepare
from scs_supcon.methods.shared.common_style import several_processes
from scs_supcon.nn.head import unit


class SupCon(Method):
    """Supervised contrastive loss.

    Args:
        temperature: τ; similarities are divided by it.
        loss_scale: factor on the loss; 0.1/0.07 gives the values of the original code.
        gather_across_devices: hold the rows against those of all processes.
    """

    def __init__(
        self,
        temperature: float = 0.1,
        *,
        loss_scale: float = 1.0,
        gather_across_devices: bool = False,
    ) -> None:
        super().__init__()
        positive(temperature=temperature, loss_scale=loss_scale)
        self.temperature, self.loss_scale = temperature, loss_scale
        self.gather_across_devices = gather_across_devices

    def loss_terms(self, embeddings: Tensor, labels: Tensor | None) -> dict[str, Tensor]:
        rows, labels = flatten(embeddings, labels)
        contrast = self._contrast(rows, labels)
        return {"contrast": contrast if self.loss_scale == 1 else self.loss_scale * contrast}

    def against(
        self, embeddings: Tensor, labels: Tensor, ref_emb: Tensor, ref_labels: Tensor
    ) -> dict[str, Tensor]:
        """The terms of rows held against references only."""
        rows, order = prepare(embeddings, labels)
        others, columns = prepare(ref_emb, ref_labels)
        contrast = softmax_pairs(
            unit(rows), order, self.temperature, references=unit(others), columns=columns
        )
        return {"contrast": self.loss_scale * contrast}

    def _contrast(self, rows: Tensor, labels: Tensor) -> Tensor:
        gathers = self.gather_across_devices and several_processes()
        if len(rows) <= TILE and not gathers:  # all pairs are one tile, which needs no order
            return softmax_pairs(unit(rows), Rows(labels), self.temperature)
        rows, order = sort_rows(rows, labels)
        z = unit(rows)
        if not gathers:
            return softmax_pairs(z, order, self.temperature)
        everyone, columns = gather_rows(z, order.labels)
        return softmax_pairs(z, order, self.temperature, references=everyone, columns=columns)
