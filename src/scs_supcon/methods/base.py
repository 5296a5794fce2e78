"""What every method is: a loss with a few optional hooks."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, Self

import torch
from torch import Tensor, nn

from scs_supcon.errors import UserError
from scs_supcon.pairs import Rows, sort_rows


@dataclass(frozen=True)
class Batch:
    """One step's pictures.

    Attributes:
        images: all views, view-major: view 1 of every picture, then view 2, …
        labels: `(B,)` class of each picture.
        indices: `(B,)` which picture it is.
    """

    images: Tensor
    labels: Tensor
    indices: Tensor


@dataclass(frozen=True)
class Task:
    """What a method may need to know before training starts."""

    class_counts: Sequence[int]
    features: int
    dim: int
    epochs: int
    steps_per_epoch: int


class Output(NamedTuple):
    features: Tensor
    embeddings: Tensor


class Network(Protocol):
    """Encoder and projection: images -> features and embeddings."""

    def __call__(self, images: Tensor) -> Output: ...


class Method(nn.Module):
    """embeddings, labels -> loss.

    A subclass writes `terms`; the rest has defaults that suit a two-view, two-stage method.
    """

    views = 2

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def forward(self, embeddings: Tensor, labels: Tensor | None = None) -> Tensor:
        """Return the sum of the terms.

        Args:
            embeddings: `(N, D)`, or `(B, V, D)` for V views of B pictures.
            labels: integers, `(N,)` or `(B,)`.
        """
        parts = list(self.terms(embeddings, labels).values())
        return torch.stack(parts).sum() if len(parts) > 1 else parts[0]

    def terms(self, embeddings: Tensor, labels: Tensor | None) -> dict[str, Tensor]:
        """Return the named terms whose sum is the loss."""
        raise NotImplementedError

    def for_task(self, task: Task) -> Self:
        """Take on the number of classes and the like, before the first step."""
        return self

    def losses(self, batch: Batch, network: Network) -> dict[str, Tensor]:
        """Look at a batch through the network and return the terms."""
        embeddings = network(batch.images).embeddings
        return self.terms(embeddings, batch.labels.repeat(self.views))

    def readout(self, features: Tensor, embeddings: Tensor) -> Tensor:
        """What stage 2 sees."""
        return features

    def scalars(self) -> dict[str, float]:
        """Numbers worth a curve."""
        return {}

    def boundary_of(self) -> float | None:
        """The similarity above which a pair counts as "same", where the method has one."""
        return None

    def param_groups(self, lr: float, weight_decay: float = 0.0) -> list[dict[str, Any]]:
        """Parameter groups for an optimiser."""
        own = [p for p in self.parameters() if p.requires_grad]
        return [{"params": own, "lr": lr, "weight_decay": weight_decay}] if own else []

    def on_epoch_start(self, epoch: int, network: Network) -> None:
        """Called before each epoch."""

    def after_step(self, network: Network) -> None:
        """Called after each step of the optimiser."""


def flatten(embeddings: Tensor, labels: Tensor | None) -> tuple[Tensor, Tensor]:
    """Check a batch and return `(N, D)` rows (view-major, at least float32) with their labels."""
    _check_embeddings(embeddings)
    if labels is None:
        raise UserError("labels are missing: this method needs one integer per row of embeddings")
    _check_labels(labels, embeddings)
    if embeddings.dim() == 3:
        labels = labels.repeat(embeddings.shape[1])
        embeddings = embeddings.transpose(0, 1).flatten(0, 1)
    if embeddings.dtype in (torch.float16, torch.bfloat16):
        embeddings = embeddings.float()
    return embeddings, labels.to(embeddings.device)


def prepare(embeddings: Tensor, labels: Tensor | None) -> tuple[Tensor, Rows]:
    """`flatten`, then sort by label, as `pairs` wants its rows."""
    return sort_rows(*flatten(embeddings, labels))


def _check_embeddings(embeddings: Tensor) -> None:
    if not isinstance(embeddings, Tensor) or embeddings.dim() not in (2, 3):
        came = tuple(embeddings.shape) if isinstance(embeddings, Tensor) else type(embeddings)
        raise UserError(f"embeddings are {came}: give a tensor of (N, D) or (B, V, D)")
    if not embeddings.is_floating_point():
        raise UserError(f"embeddings are {embeddings.dtype}: give floating-point numbers")
    if 0 in embeddings.shape[1:]:
        raise UserError(f"embeddings are {tuple(embeddings.shape)}: no axis but the first may be 0")
    # One float64 sum cannot overflow over float32 numbers, and keeps every NaN and infinity.
    if not math.isfinite(float(embeddings.detach().sum(dtype=torch.float64))):
        bad = ~torch.isfinite(embeddings.detach()).flatten(1).all(1)
        rows = torch.where(bad)[0].tolist()
        raise UserError(
            f"embeddings hold NaN or infinity in {len(rows)} of {len(embeddings)} rows "
            f"(first: {rows[:5]}): lower the learning rate or check the inputs of the encoder"
        )


def _check_labels(labels: Tensor, embeddings: Tensor) -> None:
    if not isinstance(labels, Tensor) or labels.dim() != 1:
        came = tuple(labels.shape) if isinstance(labels, Tensor) else type(labels)
        raise UserError(f"labels are {came}: give a tensor of ({len(embeddings)},)")
    if labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
        raise UserError(f"labels are {labels.dtype}: give integers, for example labels.long()")
    if len(labels) != len(embeddings):
        raise UserError(
            f"{len(labels)} labels for {len(embeddings)} rows of embeddings: give one each"
        )
