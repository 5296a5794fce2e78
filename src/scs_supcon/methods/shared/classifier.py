"""Base class of single-stage methods, which train a linear classifier with the loss."""

from typing import Any, Self

from torch import Tensor, nn
from torch.nn import functional as F

from scs_supcon.errors import UserError
from scs_supcon.kernels import full_precision, join_rows
from scs_supcon.methods.shared.base import Batch, Method, TaskInfo, after_setup, like
from scs_supcon.methods.shared.joint import JointMethod
from scs_supcon.nn.network import ProbeInput


class ClassifierOnFeatures(Method):
    """A method with a linear classifier on the features, which is trained with the loss."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.classifier: nn.Linear | None = None

    def setup(self, task: TaskInfo) -> Self:
        """Create the classifier."""
        super().setup(task)
        self.classifier = nn.Linear(task.feature_dim, task.classes).to(like(task.network))
        return self

    def logits(self, features: Tensor) -> Tensor:
        """Return the logits of the classifier."""
        layer = after_setup(self, self.classifier)
        with full_precision(features):
            return F.linear(features.to(layer.weight.dtype), layer.weight, layer.bias)

    def classification_loss(self, features: Tensor, batch: Batch) -> Tensor:
        """Return the cross-entropy of the features of all views, for hard or soft labels."""

        def joined(rows: Tensor) -> Tensor:
            return join_rows(self.scaled(rows), self.views, self.group) if self.gathers else rows

        logits, soft = self.logits(joined(features)), batch.label_probabilities
        if soft is None:
            return cross_entropy(logits, joined(batch.labels.long().repeat(self.views)))
        return soft_cross_entropy(logits, joined(soft.repeat(self.views, 1)))

    def class_logits(self, features: Tensor, embeddings: Tensor) -> Tensor | None:
        return None if self.classifier is None else self.logits(features)

    def linear_classifier(self, probe_input: ProbeInput) -> tuple[Tensor, Tensor] | None:
        if self.classifier is None or probe_input != "features":
            return None
        return self.classifier.weight.detach(), self.classifier.bias.detach()


class ClassifierMethod(ClassifierOnFeatures, JointMethod):
    """A method whose terms include the cross-entropy of a linear classifier on the features."""

    def __init__(self, *, gather_across_devices: bool = False) -> None:
        super().__init__(gather_across_devices=gather_across_devices)

    def training_step(self, batch: Batch, network: nn.Module) -> dict[str, Tensor]:
        gathered = self.forward_batch(batch, network)
        terms = self.compute_loss(gathered.embeddings, gathered.labels, self.views)
        logits = self.logits(gathered.features)
        return terms | {"classify": cross_entropy(logits, gathered.labels)}


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the mean cross-entropy over rows; 0 without rows."""
    check_labels(labels, logits.shape[1])
    return F.cross_entropy(logits, labels, reduction="sum") / max(len(labels), 1)


def soft_cross_entropy(logits: Tensor, probabilities: Tensor) -> Tensor:
    """Return −(1/n) Σ_i Σ_k p_ik log softmax(logits_i)_k; 0 without rows."""
    if probabilities.shape[1] != logits.shape[1]:
        raise UserError(
            f"label_probabilities must have one column for each of the {logits.shape[1]} classes "
            f"of this task, got {probabilities.shape[1]}"
        )
    loss = F.cross_entropy(logits, probabilities.to(logits.dtype), reduction="sum")
    return loss / max(len(logits), 1)


def check_labels(labels: Tensor, classes: int) -> None:
    """Raise an error unless every label is one of the task's classes."""
    if len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < classes:
        raise UserError(
            f"labels must be between 0 and {classes - 1} for this task of {classes} classes, "
            f"got {int(labels.min())} to {int(labels.max())}"
        )
