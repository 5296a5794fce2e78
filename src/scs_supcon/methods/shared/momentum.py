"""What a method may own beside the network: a classifier, a momentum twin, a queue of rows."""

import copy
from typing import Self, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from scs_supcon.errors import UserError
from scs_supcon.methods.shared.base import Batch, Method, TaskInfo
from scs_supcon.methods.shared.joint import JointMethod
from scs_supcon.nn.network import Output

Part = TypeVar("Part")


class ClassifierMethod(JointMethod):
    """A single-stage method: cross-entropy of a linear layer on the features joins its terms."""

    def __init__(self, *, gather_across_devices: bool = False) -> None:
        super().__init__(gather_across_devices=gather_across_devices)
        self.classifier: nn.Linear | None = None

    def setup(self, task: TaskInfo) -> Self:
        """Make the classifier."""
        self.classifier = nn.Linear(task.feature_dim, task.classes).to(like(task.network))
        return self

    def training_step(self, batch: Batch, network: nn.Module) -> dict[str, Tensor]:
        seen = self.forward_batch(batch, network)
        parts = self.compute_loss(seen.embeddings, seen.labels, self.views)
        return parts | {"classify": cross_entropy(self.logits(seen.features), seen.labels)}

    def logits(self, features: Tensor) -> Tensor:
        """Logits of the own classifier."""
        layer = ready(self, self.classifier)
        with torch.autocast(features.device.type, enabled=False):
            return F.linear(features.to(layer.weight.dtype), layer.weight, layer.bias)

    def classify(self, features: Tensor, embeddings: Tensor) -> Tensor | None:
        return None if self.classifier is None else self.logits(features)

    def own_classifier(self, reads: str) -> tuple[Tensor, Tensor] | None:
        if self.classifier is None or reads != "features":
            return None
        return self.classifier.weight.detach(), self.classifier.bias.detach()


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean over rows of −log softmax at the label; 0 for no rows."""
    check_classes(labels, logits.shape[1])
    return F.cross_entropy(logits, labels, reduction="sum") / max(len(labels), 1)


def check_classes(labels: Tensor, classes: int) -> None:
    """Refuse labels that are no class of the task."""
    if len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < classes:
        raise UserError(
            f"labels go from {int(labels.min())} to {int(labels.max())}: "
            f"this task has {classes} classes, numbered from 0"
        )


def ready(method: Method, part: Part | None) -> Part:
    """Return a part that `setup` makes, or say that it is missing."""
    if part is None:
        raise UserError(
            f"{type(method).__name__} does not know its task yet: call setup(task) first, "
            "then losses(batch, network)"
        )
    return part


def needs_images(method: Method, why: str) -> UserError:
    """The error of a method that embeddings and labels alone cannot serve."""
    return UserError(
        f"{type(method).__name__} {why}: call setup(task), then losses(batch, network)"
    )


def like(network: nn.Module) -> Tensor:
    """A tensor of the network's type and device, for `Module.to`."""
    return next(network.parameters(), torch.empty(0))


class MomentumEncoder(nn.Module):
    """A copy of a network that follows it slowly and never meets an optimiser."""

    steps: Tensor

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = copy.deepcopy(network).requires_grad_(False)
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))

    def forward(self, images: Tensor) -> Output:
        with torch.no_grad():
            output: Output = self.network(images)
        return output

    @torch.no_grad()
    def follow(self, network: nn.Module, momentum: float) -> None:
        """ξ ← m ξ + (1 − m) θ; batch statistics are copied."""
        for own, other in zip(self.network.parameters(), network.parameters(), strict=True):
            own.lerp_(other, 1 - momentum)
        for held, now in zip(self.network.buffers(), network.buffers(), strict=True):
            held.copy_(now)
        self.steps += 1

    def ramp(self, momentum: float) -> float:
        """At most `momentum`, less in the first steps: a twin must not outlive its random start."""
        steps = int(self.steps)
        return min(momentum, (1 + steps) / (10 + steps))


class Queue(nn.Module):
    """The last `size` rows and their labels; it starts empty."""

    rows: Tensor
    labels: Tensor
    pushed: Tensor

    def __init__(self, size: int, dim: int, like: Tensor) -> None:
        super().__init__()
        self.register_buffer("rows", like.new_zeros(size, dim))
        self.register_buffer("labels", torch.zeros(size, dtype=torch.long, device=like.device))
        self.register_buffer("pushed", torch.zeros((), dtype=torch.long, device=like.device))

    def held(self) -> tuple[Tensor, Tensor]:
        """The rows there are, and their labels."""
        filled = min(int(self.pushed), len(self.rows))
        return self.rows[:filled], self.labels[:filled]

    @torch.no_grad()
    def push(self, rows: Tensor, labels: Tensor | None = None) -> None:
        """Put rows in, over the oldest."""
        size = len(self.rows)
        rows = rows[-size:] if size else rows[:0]
        if not len(rows):
            return
        place = (self.pushed + torch.arange(len(rows), device=self.rows.device)) % size
        self.rows[place] = rows.to(self.rows)
        if labels is not None:
            self.labels[place] = labels[-size:]
        self.pushed += len(rows)
