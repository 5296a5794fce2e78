"""A memory of past rows around a pair loss, so that a small batch has many pairs."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from scs_supcon.errors import UserError
from scs_supcon.kernels import Pairs, join_rows
from scs_supcon.methods.shared.base import Batch, check_one_of, total
from scs_supcon.methods.shared.pair_loss import PairLoss
from scs_supcon.methods.shared.queue import Queue
from scs_supcon.methods.shared.wrapper import MethodWrapper

Negatives = Literal["batch and memory", "memory"]


class MemoryBank(MethodWrapper):
    """A pair loss that also compares the rows of a batch with those of past batches.

    Rows in the memory have no gradient. In training every call of the loss adds its rows to the
    memory; if it has references, such as the rows of a momentum encoder, it adds these instead. In
    evaluation the memory is neither used nor changed. It is part of the state dict. If the loss
    gathers rows from several processes, all of them store the rows of all; otherwise each has a
    memory of its own.

    A past row is positive if it has the label of the row that it is compared with. Losses without
    labels, such as `SimCLR`, treat all past rows as negatives, as MoCo does.

    Args:
        loss: a pair loss, such as `SCSSupCon()`, `SupCon()` or `CSSupCon()`.
        size: number of rows in the memory; new rows replace the oldest ones.
        negatives: "batch and memory": all pairs count. "memory": negative pairs within the batch
            do not, as in MoCo.
    """

    method: PairLoss

    def __init__(
        self, loss: PairLoss, size: int, *, negatives: Negatives = "batch and memory"
    ) -> None:
        if not isinstance(loss, PairLoss):
            raise UserError(
                f"MemoryBank needs a loss over pairs, such as SCSSupCon(), SupCon() or CSSupCon(), "
                f"got {type(loss).__name__}"
            )
        super().__init__(loss)
        if size < 1:
            raise UserError(f"size must be at least 1, got {size}")
        check_one_of("negatives", negatives, ("batch and memory", "memory"))
        self.size, self.negatives = size, negatives
        self.supports_soft_labels = False
        self.queue: Queue | None = None  # created with the first rows

    def forward(
        self, embeddings: Tensor, labels: Tensor | None = None, **options: Tensor | None
    ) -> Tensor:
        """Return the loss; the options are those of the loss inside."""
        return total(lambda: self.loss_terms(embeddings, labels, **options))

    def loss_terms(
        self, embeddings: Tensor, labels: Tensor | None, **options: Tensor | None
    ) -> dict[str, Tensor]:
        """Return the named terms whose sum is the loss."""
        with self._in_use():
            return self.method.loss_terms(embeddings, labels, **options)

    def training_step(self, batch: Batch, network: nn.Module) -> dict[str, Tensor]:
        with self._in_use():
            return self.method.training_step(batch, network)

    @contextmanager
    def _in_use(self) -> Iterator[None]:
        """Let the loss compute its terms with the memory."""
        self.method.compute_terms = self._terms if self.training else None
        try:
            yield
        finally:
            self.method.compute_terms = None

    def _terms(self, rows: Tensor, pairs: Pairs) -> dict[str, Tensor]:
        labels = pairs.labels
        if labels is None:
            raise UserError(
                "MemoryBank needs one integer label per row, without soft labels, several labels "
                "or pair_targets"
            )
        if pairs.gather:
            rows = join_rows(rows, group=pairs.group)
            labels = join_rows(labels, group=pairs.group)
            pairs = replace(pairs, rows=len(rows), labels=labels, gather=False)
        new, new_labels = rows, labels
        if pairs.references is not None and pairs.reference_labels is not None:
            new, new_labels = pairs.references, pairs.reference_labels
        terms = self.method.terms(rows, self._with_memory(pairs, rows))
        if self.queue is None:
            self.queue = Queue(self.size, rows.shape[1], rows.detach())
        if not self.method.uses_labels:
            new_labels = torch.full_like(new_labels, -1)  # no row has this label
        self.queue.push(new.detach(), new_labels)
        return terms

    def _with_memory(self, pairs: Pairs, rows: Tensor) -> Pairs:
        """Return the pairs of a batch, and those of its rows with the memory."""
        past = rows.new_empty(0, rows.shape[1])
        past_labels = torch.empty(0, dtype=torch.long, device=rows.device)
        if self.queue is not None:
            past, past_labels = (x.clone() for x in self.queue.contents())  # `push` overwrites them
        within = pairs.shape[1]  # columns of the pairs within the batch
        extended = replace(
            pairs,
            references=_joined(pairs.references, past),
            reference_labels=_joined(pairs.reference_labels, past_labels),
            with_rows=pairs.references is None,
            cached_layout=None,
        )
        given, labels = pairs.weight, pairs.labels
        if given is None and self.negatives == "batch and memory":
            return extended
        assert labels is not None
        right = extended.join(labels, extended.reference_labels)

        def weight(part: slice | Tensor) -> Tensor:
            kept = labels[part, None] == right
            kept[:, within:] = True
            if self.negatives == "batch and memory":
                kept.fill_(True)
            if given is None:
                return kept
            weights = given(part)
            return torch.cat([weights * kept[:, :within], kept[:, within:].to(weights)], 1)

        return replace(extended, weight=weight)

    def _load_from_state_dict(self, state: Mapping[str, Any], prefix: str, *rest: Any) -> None:
        """Create the buffers of a memory that is loaded."""
        stored = state.get(f"{prefix}queue.rows")
        if stored is not None and self.queue is None:
            self.queue = Queue(self.size, stored.shape[1], stored)
        super()._load_from_state_dict(state, prefix, *rest)


def _joined(x: Tensor | None, past: Tensor) -> Tensor:
    return past if x is None else torch.cat([x, past.to(x)])
