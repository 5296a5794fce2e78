"""SelfCon: contrast an intermediate exit of the network with the final one (Bae et al., AAAI 2023).

    L = (1/n) Σ_i (−1/|P_i|) Σ_{p∈P_i} log [ exp(z_i·z_p/τ) / Σ_{a≠i} exp(z_i·z_a/τ) ]

SupCon over n = B·(K+1) rows: for one view of each image, the embedding z = g(h) and K exits
ω_k = g_k(A_k pool(t_k)), where t_k is the output of an inner stage of the encoder, A_k a linear
layer to the width of the features and g_k a separate projection head. All rows are anchors and have
unit length; nothing is detached. The exits are used in training only.

There is one exit, as in the original's default, in the middle of the encoder: after the second of
its last four stages (layer2 of a ResNet, stages.1 of a ConvNeXt or TinyViT), or after the middle
block of a ViT (the sixth of 12). Feature maps are averaged over space,
tokens over their sequence. The original multiplies the loss by τ/0.07.

Difference from the original: for an encoder without such stages the exit starts from the features,
so that only the heads of the two exits differ.
"""

from typing import Any, Self

import torch
from torch import Tensor, nn

from scs_supcon.methods.shared.base import (
    Batch,
    TaskInfo,
    after_setup,
    check_positive,
    flatten,
    like,
)
from scs_supcon.methods.shared.joint import JointMethod, supcon
from scs_supcon.nn.head import Projection
from scs_supcon.nn.taps import record_taps, taps_of


class SelfCon(JointMethod):
    """SupCon between the exits of one network; `forward` expects `(B, exits, D)` embeddings.

    Args:
        temperature: τ; similarities are divided by it.
        gather_across_devices: use the pairs of the rows of all processes.
    """

    views = 1
    uses_taps = True

    def __init__(self, temperature: float = 0.1, *, gather_across_devices: bool = False) -> None:
        super().__init__(gather_across_devices=gather_across_devices)
        check_positive(temperature=temperature)
        self.temperature = temperature
        self.exits: nn.ModuleList | None = None
        self.widths: list[int] = []

    def setup(self, task: TaskInfo) -> Self:
        """Create an exit for each tap of the encoder."""
        self.widths = list(taps_of(task.network.encoder, task.feature_dim).values())
        self.exits = nn.ModuleList(
            nn.Sequential(
                nn.Linear(width, task.feature_dim),
                Projection(task.feature_dim, task.embedding_dim),
            )
            for width in self.widths
        ).to(like(task.network))
        return self

    def compute_loss(self, rows: Tensor, labels: Tensor, views: int) -> dict[str, Tensor]:
        return {"contrast": supcon(rows, labels, self.temperature)}

    def training_step(self, batch: Batch, network: nn.Module) -> dict[str, Tensor]:
        exits = after_setup(self, self.exits)
        encoder: Any = network.encoder
        with record_taps(encoder, self.widths) as taps:
            embeddings = network(batch.images).embeddings
        labels = self.gather(batch.labels)
        rows = [self.gather(flatten(embeddings, batch.labels)[0])]
        for exit_head, tap in zip(exits, taps, strict=True):
            rows.append(exit_head(self.gather(torch.cat(tap)).to(rows[0].dtype)))
        return self.compute_loss(torch.cat(rows), labels.repeat(len(rows)), len(rows))
