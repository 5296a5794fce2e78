"""SimCLR: contrast the views of an image with all other images (Chen et al., ICML 2020).

    L = (1/n) Σ_i −log [ exp(z_i·z_{p(i)}/τ) / Σ_{a≠i} exp(z_i·z_a/τ) ],   p(i): the other view of i

NT-Xent, which is SupCon with each image as a class. Class labels are not used. The original adds
the two directions of a pair instead of averaging them, which doubles the value. As in the original,
half of the views are blurred if the images are large.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from scs_supcon.errors import UserError
from scs_supcon.kernels import several_processes
from scs_supcon.kernels.gather import Group
from scs_supcon.methods.shared.base import Batch
from scs_supcon.methods.supcon import SupCon


class SimCLR(SupCon):
    """Contrastive loss without class labels.

    Args:
        temperature: τ; similarities are divided by it.
        options: as in `SupCon`. With `gather_across_devices` image ids must be unique over all
            processes.
    """

    uses_labels = False
    large_views: ClassVar[Mapping[str, tuple[float, ...]]] = {"blur": (0.5,)}

    def __init__(self, temperature: float = 0.5, **options: Any) -> None:
        super().__init__(temperature, **options)

    def loss_terms(
        self, embeddings: Tensor, labels: Tensor | None, **options: Tensor | None
    ) -> dict[str, Tensor]:
        """Return the loss of the views of `(B, V, D)`; for `(N, D)` the labels are image ids."""
        if isinstance(embeddings, Tensor) and embeddings.dim() == 3:
            ids = torch.arange(len(embeddings), device=embeddings.device) + _first_id(self.group)
            if self.ignore_index is not None:
                ids += ids >= self.ignore_index  # the label is not an id
                if labels is not None:
                    ids[labels.to(ids.device) == self.ignore_index] = self.ignore_index
            labels = ids
        elif labels is None:
            raise UserError("labels are missing: pass image ids with (N, D) embeddings")
        return super().loss_terms(embeddings, labels, **options)

    def training_step(self, batch: Batch, network: nn.Module) -> dict[str, Tensor]:
        embeddings = network(batch.images).embeddings
        return self.loss_terms(embeddings, batch.indices.repeat(self.views))


def _first_id(group: Group) -> int:
    """Return the first image id of this process, so that gathered images have different ids."""
    return dist.get_rank(group) << 40 if several_processes(group) else 0
