"""Cross-entropy MLP: cross-entropy of a linear layer on the embeddings.

    L = −(1/n) Σ_i log softmax(W z_i + a)_{y_i},   z = g(h)

h are the features of the encoder, g is the projection head (Linear → ReLU → Linear), W and a are
the classifier. z is not normalised. One view, one stage. With a frozen encoder this is a classifier
with one hidden layer: a baseline with the same head as the contrastive methods, whereas
`baseline` has none. Mixed images have soft labels, as in `baseline`.
"""

from dataclasses import replace
from typing import Self

from torch import Tensor, nn

from scs_supcon.methods.baseline import Baseline
from scs_supcon.methods.shared.base import Batch, TaskInfo
from scs_supcon.methods.shared.joint import GatheredBatch
from scs_supcon.nn.network import ProbeInput


class CrossEntropyMLP(Baseline):
    """Cross-entropy on the projection head; after `setup`, `forward` expects embeddings.

    Args:
        gather_across_devices: average over the rows of all processes.
    """

    probe_input: ProbeInput = "embeddings"
    trains_head = True

    def setup(self, task: TaskInfo) -> Self:
        """Create the classifier."""
        return super().setup(replace(task, feature_dim=task.embedding_dim))

    def forward_batch(self, batch: Batch, network: nn.Module) -> GatheredBatch:
        """Return the embeddings as the features that the classifier sees."""
        gathered = super().forward_batch(batch, network)
        return gathered._replace(features=gathered.embeddings)

    def class_logits(self, features: Tensor, embeddings: Tensor) -> Tensor | None:
        return super().class_logits(embeddings, embeddings)

    def linear_classifier(self, probe_input: ProbeInput) -> tuple[Tensor, Tensor] | None:
        return super().linear_classifier("features") if probe_input == "embeddings" else None
