"""SupCon: pull rows of one class together, away from all others (Khosla et al., NeurIPS 2020).

    L = (1/n) Σ_i (−1/|P_i|) Σ_{p∈P_i} log [ exp(z_i·z_p/τ) / Σ_{a≠i} exp(z_i·z_a/τ) ]

The "out" form: the mean over positives is outside the logarithm. z has unit length; all views are
anchors. Anchors without positives contribute 0 to the mean. The original code multiplies the loss
by τ/0.07; this factor is `loss_scale` here and 1 by default.
"""

from torch import Tensor

from scs_supcon.kernels import softmax_pair_loss
from scs_supcon.methods.shared.base import Method, check_positive, flatten
from scs_supcon.nn.head import unit


class SupCon(Method):
    """Supervised contrastive loss.

    Args:
        temperature: τ; similarities are divided by it.
        loss_scale: factor of the loss; 0.1/0.07 gives the values of the original code.
        gather_across_devices: compare the rows with those of all processes.
    """

    def __init__(
        self,
        temperature: float = 0.1,
        *,
        loss_scale: float = 1.0,
        gather_across_devices: bool = False,
    ) -> None:
        super().__init__()
        check_positive(temperature=temperature, loss_scale=loss_scale)
        self.temperature, self.loss_scale = temperature, loss_scale
        self.gather_across_devices = gather_across_devices

    def loss_terms(self, embeddings: Tensor, labels: Tensor | None) -> dict[str, Tensor]:
        rows, labels = flatten(embeddings, labels)
        contrast = softmax_pair_loss(
            unit(rows), labels, self.temperature, gather=self.gather_across_devices
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
