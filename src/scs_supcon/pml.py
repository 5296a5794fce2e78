"""An adapter for pytorch-metric-learning."""

import torch
from torch import Tensor, nn

from scs_supcon.errors import UserError
from scs_supcon.methods.scs_supcon import SCSSupCon
from scs_supcon.methods.shared.base import Method, flatten, total
from scs_supcon.methods.supcon import SupCon

IndicesTuple = tuple[Tensor, Tensor, Tensor] | tuple[Tensor, Tensor, Tensor, Tensor]


class MetricLearningLoss(nn.Module):
    """A method as a loss of pytorch-metric-learning.

    It is called as `loss(embeddings, labels, indices_tuple, ref_emb, ref_labels)`. If a miner
    selects pairs or triplets, `SCSSupCon` is the mean over the selected pairs. If there are
    references, each pair consists of a row and a reference. To use a memory of past batches, add
    this class to the losses that `CrossBatchMemory` of pytorch-metric-learning accepts:

        class Memory(CrossBatchMemory):
            @staticmethod
            def supported_losses():
                return ["MetricLearningLoss"]

    Args:
        method: the loss, for example `SCSSupCon()`.
    """

    def __init__(self, method: Method) -> None:
        super().__init__()
        self.method = method

    def forward(
        self,
        embeddings: Tensor,
        labels: Tensor,
        indices_tuple: IndicesTuple | None = None,
        ref_emb: Tensor | None = None,
        ref_labels: Tensor | None = None,
    ) -> Tensor:
        """Return the loss of all pairs, or of the pairs in `indices_tuple`."""
        if ref_emb is not None:
            ref_emb, ref_labels = _check_references(embeddings, ref_emb, ref_labels)
        if indices_tuple is not None:
            return total(self._loss_on_pairs, embeddings, labels, indices_tuple, ref_emb)
        if ref_emb is None or ref_labels is None:
            return total(self.method.loss_terms, embeddings, labels)
        if isinstance(self.method, SCSSupCon | SupCon):
            return total(self.method.loss_with_references, embeddings, labels, ref_emb, ref_labels)
        raise UserError(
            f"{type(self.method).__name__} does not support ref_emb: use SCSSupCon or SupCon"
        )

    def _loss_on_pairs(
        self, embeddings: Tensor, labels: Tensor, indices: IndicesTuple, ref_emb: Tensor | None
    ) -> dict[str, Tensor]:
        if not isinstance(self.method, SCSSupCon):
            raise UserError(
                f"{type(self.method).__name__} does not support indices_tuple: use SCSSupCon"
            )
        if len(indices) == 3:
            anchors, positives, negatives = indices
            first, second = torch.cat([anchors, anchors]), torch.cat([positives, negatives])
        else:
            anchors, positives, negative_anchors, negatives = indices
            first = torch.cat([anchors, negative_anchors])
            second = torch.cat([positives, negatives])
        same = torch.arange(len(first), device=first.device) < len(positives)
        rows, _ = flatten(embeddings, labels)
        references = rows if ref_emb is None else ref_emb
        return self.method.loss_on_pairs(rows, (first, second), same, references)


def _check_references(
    embeddings: Tensor, ref_emb: Tensor, ref_labels: Tensor | None
) -> tuple[Tensor, Tensor]:
    if ref_labels is None:
        raise UserError("ref_emb is given without ref_labels: give one integer per reference")
    references, labels = flatten(ref_emb, ref_labels)
    if references.shape[1] != embeddings.shape[-1]:
        raise UserError(
            f"ref_emb has {references.shape[1]} columns but embeddings have "
            f"{embeddings.shape[-1]}: both must have the same number"
        )
    return references, labels
