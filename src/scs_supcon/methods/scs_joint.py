"""SCS joint: cross-entropy on the features plus the SCS-SupCon pair loss on the common field.

    L = −(1/n) Σ_i log softmax(W h_i + a)_{y_i} + η L_SCS(z)

h are the features and z the embeddings; W and a are the classifier, L_SCS is the loss of
`scs_supcon`, with its style term. Both terms are trained from the first step. Mixed images have
soft labels p: log softmax(…)_{y_i} becomes Σ_k p_ik log softmax(…)_k, and pairs have the targets
p_u·p_v.

A sum of cross-entropy and a contrastive loss with a memory of past rows is what Bi-Tuning uses for
fine-tuning (Zhong et al., 2020), with a softmax instead of the sigmoid and a momentum encoder,
which this method does not have.
"""

from typing import Any

from torch import Tensor, nn

from scs_supcon.methods.scs_supcon import SCSSupCon
from scs_supcon.methods.shared.base import Batch, check_not_negative
from scs_supcon.methods.shared.classifier import ClassifierOnFeatures


class SCSJoint(ClassifierOnFeatures, SCSSupCon):
    """Cross-entropy plus the pair loss; `forward` returns L_SCS alone, without η.

    Args:
        common_dim: columns of the common field; default: three quarters of the embedding.
        eta: η, weight of the pair loss.
        options: as in `SCSSupCon`.
    """

    def __init__(self, common_dim: int | None = None, *, eta: float = 1.0, **options: Any) -> None:
        super().__init__(common_dim, **options)
        check_not_negative(eta=eta)
        self.eta = eta

    def training_step(self, batch: Batch, network: nn.Module) -> dict[str, Tensor]:
        output = network(batch.images)
        terms = self.batch_terms(output.embeddings, batch)
        scaled = {name: self.eta * term for name, term in terms.items()}
        return scaled | {"classify": self.classification_loss(output.features, batch)}

    def pair_parameters(
        self, training_rows: tuple[Tensor, Tensor] | None = None
    ) -> tuple[float, float] | None:
        """Return None: t and b belong to common fields, and the classifier sees features."""
        return None
