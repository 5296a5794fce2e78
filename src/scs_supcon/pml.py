"""Adapters for pytorch-metric-learning: losses, miners, memories and wrappers."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from scs_supcon.errors import UserError
from scs_supcon.kernels import Pairs
from scs_supcon.methods.shared.base import Method, flatten, flatten_embeddings, total
from scs_supcon.methods.shared.pair_loss import PairLoss
from scs_supcon.methods.shared.pair_scalars import PairScalars

try:
    from pytorch_metric_learning import losses
    from pytorch_metric_learning.utils import distributed
except ImportError as error:
    raise ImportError(
        "scs_supcon.pml needs pytorch-metric-learning: pip install pytorch-metric-learning. The "
        "losses of scs_supcon work without it."
    ) from error

IndicesTuple = tuple[Tensor, Tensor, Tensor] | tuple[Tensor, Tensor, Tensor, Tensor]


class MetricLearningLoss(losses.BaseMetricLossFunction):  # type: ignore[misc]
    """A method as a loss of pytorch-metric-learning.

    It is called as `loss(embeddings, labels, indices_tuple, ref_emb, ref_labels)`. If a miner
    selects pairs or triplets, only the selected pairs count, each once, with the divisors of the
    loss (`pairs` of `SCSSupCon`): a miner that keeps every pair changes nothing. If there are
    references, each pair consists of a row and a reference.

    Reducers, distances and regularisers of pytorch-metric-learning do not apply: the method has its
    own. Memories and wrappers are those of this module.

    Args:
        method: the loss, for example `SCSSupCon()`.
    """

    def __init__(self, method: Method, **unsupported: Any) -> None:
        for name in unsupported:
            raise UserError(
                f"MetricLearningLoss does not support {name}: choose the reduction, the similarity "
                f"and the weights of terms with the arguments of {type(method).__name__}"
            )
        if getattr(method, "reduction", "mean") == "none":
            raise UserError('pytorch-metric-learning needs one value: use reduction="mean"')
        super().__init__()
        self.method = method

    def forward(
        self,
        embeddings: Tensor,
        labels: Tensor | None = None,
        indices_tuple: IndicesTuple | None = None,
        ref_emb: Tensor | None = None,
        ref_labels: Tensor | None = None,
    ) -> Tensor:
        """Return the loss of all pairs, or of the pairs in `indices_tuple`."""
        if indices_tuple is not None:
            return total(self._listed_terms, embeddings, labels, indices_tuple, ref_emb)
        if ref_emb is None:
            return total(self.method.loss_terms, embeddings, labels)
        if ref_labels is None:
            raise UserError("ref_emb is given without ref_labels: give one integer per reference")
        method = pair_loss(self, "ref_emb")
        return total(
            method.loss_terms, embeddings, labels, references=ref_emb, reference_labels=ref_labels
        )

    def _listed_terms(
        self,
        embeddings: Tensor,
        labels: Tensor | None,
        indices: IndicesTuple,
        ref_emb: Tensor | None,
    ) -> dict[str, Tensor]:
        """Return the terms over listed pairs.

        A list does not contain pairs (u, u). If they belong to the loss, they are weighted by the
        share of positive pairs that are listed, so that a list of all pairs changes nothing.
        """
        method = pair_loss(self, "indices_tuple")
        if len(indices) == 3:
            anchors, positives, negatives = indices
            negative_anchors = anchors
        else:
            anchors, positives, negative_anchors, negatives = indices
        rows = flatten_embeddings(embeddings)
        if labels is not None:
            rows, labels = flatten(embeddings, labels)
        lists = (anchors, positives), (negative_anchors, negatives)
        settings = method.pair_settings()
        if ref_emb is not None:
            if ref_emb.shape[-1] != rows.shape[1]:
                raise UserError(
                    f"ref_emb has {ref_emb.shape[-1]} columns but embeddings have "
                    f"{rows.shape[1]}: both must have the same number"
                )
            settings["references"] = flatten_embeddings(ref_emb)
        elif method.include_self and labels is not None:
            same = Pairs.of(labels, self_weight=0.0).layout.count(include_self=False)[1]
            listed = torch.unique(anchors * len(rows) + positives)
            settings["self_weight"] = len(listed) / same if same else 1.0
        terms: dict[str, Tensor] = method.terms(rows, Pairs.listed(len(rows), *lists, **settings))
        return terms


class CrossBatchMemory(losses.CrossBatchMemory):  # type: ignore[misc]
    """The memory of past batches of pytorch-metric-learning, for the losses of this package.

    Args:
        loss: a `MetricLearningLoss` of SCSSupCon, SupCon or CSSupCon.
        embedding_size: columns of the embeddings.
        memory_size: number of embeddings in the memory.
        miner: selects pairs of the batch and the memory; default: all.
    """

    def __init__(
        self, loss: MetricLearningLoss, embedding_size: int, memory_size: int = 1024, **options: Any
    ) -> None:
        pair_loss(loss, "CrossBatchMemory")
        super().__init__(loss, embedding_size, memory_size, **options)

    @staticmethod
    def supported_losses() -> list[str]:
        """Return the names of the classes of losses."""
        return ["MetricLearningLoss"]


class SelfSupervisedLoss(losses.SelfSupervisedLoss):  # type: ignore[misc]
    """`SelfSupervisedLoss(loss)(embeddings, ref_emb)`: ref_emb are other views of the rows."""

    def __init__(self, loss: MetricLearningLoss, symmetric: bool = True, **options: Any) -> None:
        if not symmetric:
            pair_loss(loss, "SelfSupervisedLoss(symmetric=False)")
        super().__init__(loss, symmetric, **options)

    @staticmethod
    def supported_losses() -> list[str]:
        """Return the names of the classes of losses."""
        return ["MetricLearningLoss"]


class DistributedLossWrapper(distributed.DistributedLossWrapper):  # type: ignore[misc]
    """pytorch-metric-learning's wrapper, with exact gradients of learned t and b.

    It multiplies the loss by the number of processes, because DistributedDataParallel averages
    gradients, but t and b already have the gradient of the whole batch. Without a miner,
    `gather_across_devices=True` does the same with less work.

    Args:
        loss: a `MetricLearningLoss`, or a `CrossBatchMemory` with one.
    """

    def __init__(self, loss: Any, efficient: bool = False) -> None:
        adapter = loss.loss if isinstance(loss, CrossBatchMemory) else loss
        if efficient:
            raise UserError(
                "efficient=True leaves out a part of the gradient: use efficient=False, or "
                "gather_across_devices=True, which is exact and efficient"
            )
        if adapter.method.gather_across_devices:
            raise UserError(
                "the rows would be gathered twice: use either DistributedLossWrapper or "
                "gather_across_devices=True"
            )
        super().__init__(loss)
        self.adapter = [adapter]  # in a list: it is already a submodule

    def forward(self, *arguments: Any, **options: Any) -> Tensor:
        """Return the loss of the rows of all processes, times the number of processes."""
        method = self.adapter[0].method
        if isinstance(method, PairScalars) and dist.is_initialized():
            method.gradient_divisor = dist.get_world_size()
        try:
            value: Tensor = super().forward(*arguments, **options)
        finally:
            if isinstance(method, PairScalars):
                method.gradient_divisor = 1
        return value


def pair_loss(loss: Any, what: str) -> Any:
    """Return the method of a loss if it is a sum over pairs, else raise an error."""
    if not isinstance(loss, MetricLearningLoss):
        raise UserError(
            f"{what} needs a MetricLearningLoss, got {type(loss).__name__}: use "
            "MetricLearningLoss(SCSSupCon())"
        )
    if not isinstance(loss.method, PairLoss):
        raise UserError(
            f"{type(loss.method).__name__} does not support {what}: use SCSSupCon, SupCon or "
            "CSSupCon"
        )
    return loss.method
