"""Methods that judge the joined batch: every process computes the loss of all rows.

A process's own rows carry their gradient, its copies of the others' rows do not. So the value, the
gradient of the own rows and the gradients of the method's own parameters are what one process with
all rows would have; the price is that each process computes the whole loss.
"""

from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from scs_supcon.errors import UserError
from scs_supcon.kernels import gather_rows, softmax_pairs
from scs_supcon.methods.shared.base import Batch, Method, flatten, prepare
from scs_supcon.methods.shared.common_style import several_processes
from scs_supcon.nn.head import unit


class GatheredBatch(NamedTuple):
    """What a network makes of a batch: rows of all processes, view-major, at least float32."""

    features: Tensor
    embeddings: Tensor
    labels: Tensor


class JointMethod(Method):
    """A method that writes `compute_loss`: the terms of a joined batch.

    Args:
        gather_across_devices: judge the rows of all processes together.
    """

    def __init__(self, *, gather_across_devices: bool = False) -> None:
        super().__init__()
        self.gather_across_devices = gather_across_devices

    def compute_loss(self, rows: Tensor, labels: Tensor, views: int) -> dict[str, Tensor]:
        """Return the terms of `views` × B rows, view 1 of every image first."""
        raise NotImplementedError

    def loss_terms(self, embeddings: Tensor, labels: Tensor | None) -> dict[str, Tensor]:
        rows, labels = flatten(embeddings, labels)
        views = embeddings.shape[1] if embeddings.dim() == 3 else 1
        return self.compute_loss(self.gather(rows, views), self.gather(labels, views), views)

    def training_step(self, batch: Batch, network: nn.Module) -> dict[str, Tensor]:
        seen = self.forward_batch(batch, network)
        return self.compute_loss(seen.embeddings, seen.labels, self.views)

    def forward_batch(self, batch: Batch, network: nn.Module) -> GatheredBatch:
        """Look at a batch through the network, together with all processes."""
        output = network(batch.images)
        rows, labels = flatten(output.embeddings, batch.labels.repeat(self.views))
        return GatheredBatch(
            self.gather(output.features, self.views),
            self.gather(rows, self.views),
            self.gather(labels, self.views),
        )

    def gather(self, rows: Tensor, views: int = 1) -> Tensor:
        """`gather`, where processes are to be joined."""
        return gather(rows, views) if self.gather_across_devices else rows


def gather(rows: Tensor, views: int = 1) -> Tensor:
    """Rows of all processes, view-major; this process's keep their gradient."""
    if not several_processes():
        return rows
    tail = rows.shape[1:]
    packed = rows.reshape(views, len(rows) // views, *tail).transpose(0, 1).flatten(1)
    ids = torch.arange(len(packed), device=rows.device) + (dist.get_rank() << 40)
    joined, order = gather_rows(packed, ids)
    assert order.own is not None
    if rows.requires_grad:
        joined = joined.index_copy(0, order.own, packed)
    return joined.view(len(joined), views, *tail).transpose(0, 1).flatten(0, 1)


def supcon(rows: Tensor, labels: Tensor, temperature: float) -> Tensor:
    """The loss of `supcon.py` on rows of any length."""
    ordered, order = prepare(rows, labels)
    return softmax_pairs(unit(ordered), order, temperature)


def several_views(method: Method, views: int) -> None:
    """Refuse rows that do not say which of them show one image."""
    if views < 2:
        raise UserError(
            f"{type(method).__name__} compares the views of an image, and rows of (N, D) do not "
            "say whose views they are: give embeddings of (B, V, D) with V ≥ 2"
        )


def two_views(method: Method, rows: Tensor, views: int) -> tuple[Tensor, Tensor]:
    """Cut view-major rows of two views into (view 1, view 2) of each image."""
    several_views(method, views)
    if views > 2:
        raise UserError(
            f"{type(method).__name__} compares two views, and {views} came: give (B, 2, D)"
        )
    first, second = rows.chunk(2)
    return first, second
