"""Base class of methods that compute the loss of the whole batch, gathered from all processes.

The rows of this process have a gradient, the copies of other processes' rows do not. The value, the
gradient of this process's rows and the gradients of the method's parameters therefore equal those
of one process with all rows. The drawback is that every process computes the whole loss.
"""

from typing import NamedTuple

from torch import Tensor, nn

from scs_supcon.errors import UserError
from scs_supcon.kernels import Pairs, Sides, join_rows, softmax_pairs
from scs_supcon.methods.shared.base import Batch, Method, flatten
from scs_supcon.nn.head import unit


class GatheredBatch(NamedTuple):
    """The network's output for the images of all processes: view-major, at least float32."""

    features: Tensor
    embeddings: Tensor
    labels: Tensor


class JointMethod(Method):
    """A method that computes its loss from the gathered batch; subclasses write `compute_loss`.

    Args:
        gather_across_devices: compute the loss of the rows of all processes.
    """

    def __init__(self, *, gather_across_devices: bool = False) -> None:
        super().__init__()
        self.gather_across_devices = gather_across_devices

    def compute_loss(self, rows: Tensor, labels: Tensor, views: int) -> dict[str, Tensor]:
        """Return the terms of `views` × B rows, in view-major order."""
        raise NotImplementedError

    def loss_terms(self, embeddings: Tensor, labels: Tensor | None) -> dict[str, Tensor]:
        rows, labels = flatten(embeddings, labels)
        views = embeddings.shape[1] if embeddings.dim() == 3 else 1
        return self.compute_loss(self.gather(rows, views), self.gather(labels, views), views)

    def training_step(self, batch: Batch, network: nn.Module) -> dict[str, Tensor]:
        gathered = self.forward_batch(batch, network)
        return self.compute_loss(gathered.embeddings, gathered.labels, self.views)

    def forward_batch(self, batch: Batch, network: nn.Module) -> GatheredBatch:
        """Run the network on a batch and gather the output of all processes."""
        output = network(batch.images)
        rows, labels = flatten(output.embeddings, batch.labels.repeat(self.views))
        return GatheredBatch(
            self.gather(output.features, self.views),
            self.gather(rows, self.views),
            self.gather(labels, self.views),
        )

    def gather(self, rows: Tensor, views: int = 1) -> Tensor:
        """Return the rows of all processes if `gather_across_devices` is set, else `rows`."""
        return join_rows(self.scaled(rows), views, self.group) if self.gathers else rows


def supcon(rows: Tensor, labels: Tensor, temperature: float) -> Tensor:
    """Return the SupCon loss of rows, which need not have unit length."""
    return softmax_pairs(Sides(unit(rows)), Pairs.of(labels), temperature)


def check_views(method: Method, views: int) -> None:
    """Raise an error if there is only one view per image."""
    if views < 2:
        raise UserError(
            f"{type(method).__name__} compares the views of an image: pass (B, V, D) embeddings "
            "with V ≥ 2; (N, D) embeddings count as one view"
        )


def two_views(method: Method, rows: Tensor, views: int) -> tuple[Tensor, Tensor]:
    """Split view-major rows into the first and the second view of all images."""
    check_views(method, views)
    if views > 2:
        raise UserError(
            f"{type(method).__name__} compares two views, got {views}: pass (B, 2, D) embeddings"
        )
    first, second = rows.chunk(2)
    return first, second
