"""Baseline: cross-entropy of a linear layer on the features.

    L = −(1/n) Σ_i log softmax(W h_i + a)_{y_i}

h are the features of the encoder; W and a are the classifier. Mixed images (MixUp, CutMix) have
soft labels p: log softmax(…)_{y_i} becomes Σ_k p_ik log softmax(…)_k. One view, one stage, no label
smoothing. The paper mentions dropout before the layer for convolutional encoders but not its rate,
so there is no dropout here.
"""

from collections.abc import Mapping

from torch import Tensor, nn

from scs_supcon.methods.shared.base import Batch, Options, flatten_soft_labels
from scs_supcon.methods.shared.classifier import (
    ClassifierMethod,
    cross_entropy,
    soft_cross_entropy,
)


class Baseline(ClassifierMethod):
    """Cross-entropy; after `setup`, `forward` expects features.

    Args:
        gather_across_devices: average over the rows of all processes.
    """

    views = 1
    trains_head = False
    supports_soft_labels = True

    @classmethod
    def recipe_defaults(cls, preset: str | None) -> Mapping[str, Options]:
        """Return settings without centring, which is for contrastive methods."""
        return {"head": {"centre": False}}

    def compute_loss(self, rows: Tensor, labels: Tensor, views: int) -> dict[str, Tensor]:
        return {"classify": cross_entropy(self.logits(rows), labels)}

    def training_step(self, batch: Batch, network: nn.Module) -> dict[str, Tensor]:
        gathered = self.forward_batch(batch, network)
        if batch.label_probabilities is not None:
            _, soft = flatten_soft_labels(gathered.features, self.gather(batch.label_probabilities))
            return {"classify": soft_cross_entropy(self.logits(gathered.features), soft)}
        return self.compute_loss(gathered.features, gathered.labels, self.views)
