"""Baseline: cross-entropy of a linear layer on the features.

    L = −(1/n) Σ_i log softmax(W h_i + a)_{y_i}

h are the features of the encoder; W and a are the classifier. One view, one stage, no label
smoothing. The paper mentions dropout before the layer for convolutional encoders but not its rate,
so there is no dropout here.
"""

from torch import Tensor, nn

from scs_supcon.methods.shared.base import Batch
from scs_supcon.methods.shared.classifier import ClassifierMethod, cross_entropy


class Baseline(ClassifierMethod):
    """Cross-entropy; after `setup`, `forward` expects features.

    Args:
        gather_across_devices: average over the rows of all processes.
    """

    views = 1
    trains_head = False

    def compute_loss(self, rows: Tensor, labels: Tensor, views: int) -> dict[str, Tensor]:
        return {"classify": cross_entropy(self.logits(rows), labels)}

    def training_step(self, batch: Batch, network: nn.Module) -> dict[str, Tensor]:
        gathered = self.forward_batch(batch, network)
        return self.compute_loss(gathered.features, gathered.labels, self.views)
