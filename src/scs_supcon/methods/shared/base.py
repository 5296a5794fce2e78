"""What every method is: a loss with a few optional hooks."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Self

import torch
from torch import Tensor, nn

from scs_supcon.errors import UserError
from scs_supcon.kernels import Rows, sort_rows
from scs_supcon.nn.micro_batch import in_micro_batches


@dataclass(frozen=True)
class Batch:
    """One step's images.

    Attributes:
        images: all views, view-major: view 1 of every image, then view 2, …
        labels: `(B,)` class of each image.
        indices: `(B,)` which training image it is, counted from 0.
    """

    images: Tensor
    labels: Tensor
    indices: Tensor


class Output(NamedTuple):
    features: Tensor
    embeddings: Tensor


class Network(nn.Module):
    """Encoder and projection: images -> features and embeddings.

    Args:
        encoder: images -> features.
        projection: features -> embeddings, always of the whole batch: its statistics are exact.
        micro_batch: images that the encoder works on at a time, see `chunks`; 0: all.
    """

    def __init__(self, encoder: nn.Module, projection: nn.Module, micro_batch: int = 0) -> None:
        super().__init__()
        self.encoder, self.projection = encoder, projection
        self.micro_batch = micro_batch

    def forward(self, images: Tensor) -> Output:
        features = in_micro_batches(self.encoder, images, self.micro_batch)
        return Output(features, self.projection(features))


@dataclass(frozen=True)
class TaskInfo:
    """What a method may need to know before training starts.

    Attributes:
        network: as it stands before the first step; a method may keep a copy, never this one.
        class_counts: training images of each class.
        features: columns of the features.
        dim: columns of the embeddings.
        epochs: how many epochs training will have.
    """

    network: Network
    class_counts: tuple[int, ...]
    features: int
    dim: int
    epochs: int


Look = Callable[[nn.Module], Output]
"""Shows every training image (evaluation view, in the order of `Batch.indices`) to a network."""


class Method(nn.Module):
    """embeddings, labels -> loss.

    A subclass writes `loss_terms`; the rest has defaults that suit a two-view, two-stage method.
    """

    views = 2
    uses_taps = False  # whether it looks at what the encoder holds half-way, see `taps`
    gather_across_devices = False  # whether the loss is that of the rows of all processes
    adapted = False  # whether the original is for other data, or could not be found
    # What stage 2 sees, and what it sees where the encoder is frozen and only the head learns.
    reads: Literal["common", "features"] = "features"
    frozen_reads: Literal["common", "embeddings", "features"] = "embeddings"

    @classmethod
    def recipe_defaults(cls, preset: str | None) -> dict[str, dict[str, Any]]:
        """Parts of a recipe that suit the method, such as {"head": {"overlap": 28}}."""
        return {"head": {"centre": False}}

    def forward(self, embeddings: Tensor, labels: Tensor | None = None) -> Tensor:
        """Return the sum of the terms.

        Args:
            embeddings: `(N, D)`, or `(B, V, D)` for V views of B images.
            labels: integers, `(N,)` or `(B,)`.
        """
        return total(self.loss_terms, embeddings, labels)

    def loss_terms(self, embeddings: Tensor, labels: Tensor | None) -> dict[str, Tensor]:
        """Return the named terms whose sum is the loss."""
        raise NotImplementedError

    def setup(self, task: TaskInfo) -> Self:
        """Take on the number of classes and the like, before the first step."""
        return self

    def training_step(self, batch: Batch, network: nn.Module) -> dict[str, Tensor]:
        """Look at a batch through the network and return the terms."""
        embeddings = network(batch.images).embeddings
        return self.loss_terms(embeddings, batch.labels.repeat(self.views))

    def readout(self, features: Tensor, embeddings: Tensor) -> Tensor:
        """What stage 2 sees, as `reads` says."""
        return features

    def scalars(self) -> dict[str, float]:
        """Numbers worth a curve."""
        return {}

    def boundary_of(self) -> float | None:
        """The similarity of unit rows above which a pair counts as "same", if there is one."""
        return None

    def param_groups(self, lr: float, weight_decay: float = 0.0) -> list[dict[str, Any]]:
        """Parameter groups for an optimiser; only matrices decay."""
        own = [p for p in self.parameters() if p.requires_grad]
        groups = [
            {"params": [p for p in own if p.ndim > 1], "lr": lr, "weight_decay": weight_decay},
            {"params": [p for p in own if p.ndim <= 1], "lr": lr, "weight_decay": 0.0},
        ]
        return [group for group in groups if group["params"]]

    def classify(self, features: Tensor, embeddings: Tensor) -> Tensor | None:
        """Logits of the method's own classifier, where training gives it one."""
        return None

    def own_classifier(self, reads: str) -> tuple[Tensor, Tensor] | None:
        """Weight and bias of that classifier, if it is a linear one on what stage 2 reads."""
        return None

    def on_epoch_start(self, epoch: int, look: Look) -> None:
        """Called before each epoch."""

    def after_step(self, network: nn.Module, done: float) -> None:
        """Called after each step of the optimiser; `done` is the share of training behind us."""


def total(terms: Callable[..., dict[str, Tensor]], *arguments: Any) -> Tensor:
    """Sum the terms; under `torch.compile` they stay outside the compiled graph.

    The decorator `torch.compiler.disable` would load the compiler on import, for everybody.
    """
    if torch.compiler.is_compiling():
        terms = torch.compiler.disable(terms)  # type: ignore[no-untyped-call]
    first, *rest = terms(*arguments).values()
    return sum(rest, start=first)


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
    return embeddings, labels.to(embeddings.device, torch.long)


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
    # A sum keeps every NaN and infinity, and costs less than looking at each number.
    if not math.isfinite(float(embeddings.detach().sum(dtype=torch.float64))):
        bad = ~torch.isfinite(embeddings.detach()).flatten(1).all(1)
        rows = torch.where(bad)[0].tolist()
        if rows:
            raise UserError(
                f"embeddings hold NaN or infinity in {len(rows)} of {len(embeddings)} rows (first: "
                f"{rows[:5]}): lower the learning rate or check the inputs of the encoder"
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
