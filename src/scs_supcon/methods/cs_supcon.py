"""CS-SupCon: SupCon on the common field, its reverse on the style field (Dornaika & Wang, 2025).

    L = (1/n) Σ_i (1/|P_i|) Σ_{p∈P_i} { −log σ_c(i,p) + α log σ_s(i,p) − β ‖s_i − s_p‖ }

with σ_x(i,p) the softmax of x_i·x_p/τ over all a ≠ i. The paper sums over anchors; this is the
mean. It gives no values for α and τ: see docs/paper_choices.md. The total may be negative.
"""

from torch import Tensor

from scs_supcon.kernels import softmax_pair_loss, style_distance
from scs_supcon.methods.shared.base import check_not_negative, check_positive, flatten
from scs_supcon.methods.shared.common_style import CommonStyleMethod
from scs_supcon.nn.head import Normalise


class CSSupCon(CommonStyleMethod):
    """Common and style supervised contrastive loss.

    Args:
        common_dim: columns of the common field; default: three quarters of the embedding.
        temperature: τ; similarities are divided by it.
        alpha: weight of the reversed loss on the style field.
        beta: weight of the style distance.
        overlap: columns that belong to both fields.
        normalize: "separate", "joint" or "none"; see `CommonStyleMethod`.
        gather_across_devices: compare the rows of each process with those of all processes.
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
        gather_across_devices: bool = False,
    ) -> None:
        super().__init__(
            common_dim,
            overlap=overlap,
            normalize=normalize,
            gather_across_devices=gather_across_devices,
        )
        check_positive(temperature=temperature)
        check_not_negative(alpha=alpha, beta=beta)
        self.temperature, self.alpha, self.beta = temperature, alpha, beta

    def loss_terms(self, embeddings: Tensor, labels: Tensor | None) -> dict[str, Tensor]:
        rows, labels = flatten(embeddings, labels)
        common, style = self.fields(rows)
        terms = {"contrast": self._supcon(common, labels)}
        if self.alpha and style.shape[1]:
            terms["style_contrast"] = -self.alpha * self._supcon(style, labels)
        if self.beta and style.shape[1]:
            terms["style"] = -self.beta * style_distance(style, labels, gather=self.gathers)
        return terms

    def _supcon(self, field: Tensor, labels: Tensor) -> Tensor:
        return softmax_pair_loss(field, labels, self.temperature, gather=self.gathers)
