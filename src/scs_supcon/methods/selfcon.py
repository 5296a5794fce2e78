"""SelfCon: the exits of one network are the views of an image (Bae et al., AAAI 2023).

    L = (1/n) Σ_i (−1/|P_i|) Σ_{p∈P_i} log [ exp(z_i·z_p/τ) / Σ_{a≠i} exp(z_i·z_a/τ) ]

SupCon over n = B·(K+1) rows: of each image, seen in one view, the embedding z = g(h) and K exits
ω_k = g_k(A_k pool(t_k)), where t_k is what the encoder holds after an inner stage, A_k a linear
layer to the width of the features and g_k a projection of its own. All rows are anchors and of unit
length; nothing is detached. The exits serve training only.

One tap, as in the original's default: after the second of the last four stages of the encoder
(layer2 of a ResNet, stages.1 of a ConvNeXt or TinyViT); maps are averaged over space, tokens over
their sequence. Ours: where an encoder has no taps the features themselves are tapped, so that only
the heads of the two exits differ. The original multiplies the loss by τ/0.07.
"""

from typing import Any, Self

import torch
from torch import Tensor, nn

from scs_supcon.methods.shared.base import Batch, TaskInfo, flatten, positive
from scs_supcon.methods.shared.joint import JointMethod, supcon
from scs_supcon.methods.shared.momentum import like, ready
from scs_supcon.nn.head import Projection
from scs_supcon.nn.taps import tapped, taps_of


class SelfCon(JointMethod):
    """SupCon between the exits of one network; `forward` takes `(B, exits, D)`.

    Args:
        temperature: τ; similarities are divided by it.
        gather_across_devices: hold the rows against those of all processes.
    """

    views = 1
    uses_taps = True

    def __init__(self, temperature: float = 0.1, *, gather_across_devices: bool = False) -> None:
        super().__init__(gather_across_devices=gather_across_devices)
        positive(temperature=temperature)
        self.temperature = temperature
        self.exits: nn.ModuleList | None = None
        self.widths: list[int] = []

    def setup(self, task: TaskInfo) -> Self:
        """Make an exit for each tap of the encoder."""
        self.widths = list(taps_of(task.network.encoder, task.feature_dim).values())
        self.exits = nn.ModuleList(
            nn.Sequential(
                nn.Linear(width, task.feature_dim), Projection(task.feature_dim, task.embedding_dim)
            )
            for width in self.widths
        ).to(like(task.network))
        return self

    def compute_loss(self, rows: Tensor, labels: Tensor, views: int) -> dict[str, Tensor]:
        return {"contrast": supcon(rows, labels, self.temperature)}

    def training_step(self, batch: Batch, network: nn.Module) -> dict[str, Tensor]:
        exits = ready(self, self.exits)
        encoder: Any = network.encoder
        with tapped(encoder, self.widths) as taps:
            embeddings = network(batch.images).embeddings
        labels = self.gather(batch.labels)
        rows = [self.gather(flatten(embeddings, batch.labels)[0])]
        for way, tap in zip(exits, taps, strict=True):
            rows.append(way(self.gather(torch.cat(tap)).to(rows[0].dtype)))
        return self.compute_loss(torch.cat(rows), labels.repeat(len(rows)), len(rows))
