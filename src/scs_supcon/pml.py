"""Our losses where pytorch-metric-learning expects one of its own."""

import torch
from torch import Tensor, nn

from scs_supcon.errors import UserError
from scs_supcon.methods.scs_supcon import SCSSupCon
from scs_supcon.methods.shared.base import Method, flatten, total
from scs_supcon.methods.supcon import SupCon

IndicesTuple = tuple[Tensor, Tensor, Tensor] | tuple[Tensor, Tensor, Tensor, Tensor]


class MetricLearningLoss(nn.Module):
    """A method with the call `loss(embeddings, labels, indices_tuple, ref_emb, ref_labels)`.

    Miners' pairs or triplets restrict `SCSSupCon` to those pairs, and the loss is divided by their
    number. References are the other side of the pairs. For a memory of past batches make
    pytorch-metric-learning's `CrossBatchMemory` know the name:

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
        if ref_emb is not None:
            ref_emb, ref_labels = _checked(embeddings, ref_emb, ref_labels)
        if indices_tuple is not None:
            return total(self._listed, embeddings, labels, indices_tuple, ref_emb)
        if ref_emb is None or ref_labels is None:
            return total(self.method.loss_terms, embeddings, labels)
        if isinstance(self.method, SCSSupCon | SupCon):
            return total(self.method.against, embeddings, labels, ref_emb, ref_labels)
        raise UserError(f"{type(self.method).__name__} takes no ref_emb: use SCSSupCon")

    def _listed(
        self, embeddings: Tensor, labels: Tensor, chosen: IndicesTuple, ref_emb: Tensor | None
    ) -> dict[str, Tensor]:
        if not isinstance(self.method, SCSSupCon):
            raise UserError(f"{type(self.method).__name__} takes no indices_tuple: use SCSSupCon")
        if len(chosen) == 3:
            anchors, positives, negatives = chosen
            first, second = torch.cat([anchors, anchors]), torch.cat([positives, negatives])
        else:
            anchors, positives, others, negatives = chosen
            first, second = torch.cat([anchors, others]), torch.cat([positives, negatives])
        same = torch.arange(len(first), device=first.device) < len(positives)
        rows, _ = flatten(embeddings, labels)
        references = rows if ref_emb is None else ref_emb
        return self.method.listed(rows, (first, second), same, references)


def _checked(
    embeddings: Tensor, ref_emb: Tensor, ref_labels: Tensor | None
) -> tuple[Tensor, Tensor]:
    if ref_labels is None:
        raise UserError("ref_emb came without ref_labels: give one integer per reference")
    references, labels = flatten(ref_emb, ref_labels)
    if references.shape[1] != embeddings.shape[-1]:
        raise UserError(
            f"ref_emb has {references.shape[1]} columns, embeddings have {embeddings.shape[-1]}: "
            "they must be alike"
        )
    return references, labels
