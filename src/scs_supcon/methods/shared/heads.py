"""Train several projection heads side by side, each with a method of its own."""

from collections.abc import Sequence
from typing import Self

import torch
from torch import Tensor, nn

from scs_supcon.errors import UserError
from scs_supcon.methods.shared.base import (
    Batch,
    EncodeTrainingSet,
    Method,
    ParameterGroup,
    TaskInfo,
)
from scs_supcon.nn.head import ProjectionHeads
from scs_supcon.nn.network import Network, Output, ProbeInput


class HeadEnsemble(Method):
    """One method per projection head; the loss is the sum of their losses.

    The heads share only the encoder. With a frozen encoder each head is trained exactly as it would
    be alone. A trained encoder gets the mean of the gradients of the heads, so that its learning
    rate does not depend on their number.

    Args:
        members: one method for each head, all of the same class.
    """

    def __init__(self, members: Sequence[Method]) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)
        first = members[0]
        if first.uses_taps:
            raise UserError(f"{type(first).__name__} cannot be used with several heads")
        self.views, self.probe_input = first.views, first.probe_input
        self.trains_head = first.trains_head
        self.supports_soft_labels = first.supports_soft_labels

    @property
    def methods(self) -> list[Method]:
        """The members."""
        return [member for member in self.members if isinstance(member, Method)]

    def loss_terms(self, embeddings: Tensor, labels: Tensor | None) -> dict[str, Tensor]:
        """Return the sums over heads of the terms, given `(N, heads, D)` embeddings."""
        return _sums(
            [member.loss_terms(embeddings[:, k], labels) for k, member in enumerate(self.methods)]
        )

    def setup(self, task: TaskInfo) -> Self:
        for member, network in zip(self.methods, _networks(task.network), strict=True):
            member.setup(
                TaskInfo(
                    network,
                    task.labels,
                    task.classes,
                    task.feature_dim,
                    task.embedding_dim,
                    task.epochs,
                )
            )
        return self

    def training_step(self, batch: Batch, network: nn.Module) -> dict[str, Tensor]:
        output = SharedOutput(network, batch.images)
        return _sums(
            [
                member.training_step(batch, _HeadOutput(output, k))
                for k, member in enumerate(self.methods)
            ]
        )

    def on_epoch_start(self, epoch: int, encode_training_set: EncodeTrainingSet) -> None:
        for member in self.methods:
            member.on_epoch_start(epoch, encode_training_set)

    def after_step(self, network: nn.Module, progress: float) -> None:
        for member, head in zip(self.methods, _networks(network), strict=True):
            member.after_step(head, progress)

    def scalars(self) -> dict[str, float]:
        """Return the means over the heads."""
        values = [member.scalars() for member in self.methods]
        return {name: sum(value[name] for value in values) / len(values) for name in values[0]}

    def param_groups(self, lr: float, weight_decay: float = 0.0) -> list[ParameterGroup]:
        """Return the parameter groups of all members."""
        return [g for member in self.methods for g in member.param_groups(lr, weight_decay)]

    def pair_parameters(
        self, training_rows: tuple[Tensor, Tensor] | None = None
    ) -> tuple[float, float] | None:
        """Return the means over the heads, because the similarity is a mean over the heads.

        `training_rows` are those of the joined heads.
        """
        pairs = [member.pair_parameters(training_rows) for member in self.methods]
        present = [pair for pair in pairs if pair is not None]
        if not present:
            return None
        return sum(t for t, _ in present) / len(present), sum(b for _, b in present) / len(present)

    def class_logits(self, features: Tensor, embeddings: Tensor) -> Tensor | None:
        """Return the logarithm of the mean of the members' probabilities."""
        logits = [m.class_logits(features, embeddings[:, k]) for k, m in enumerate(self.methods)]
        present = [values for values in logits if values is not None]
        if not present:
            return None
        return torch.stack([values.softmax(1) for values in present]).mean(0).log()

    def linear_classifier(self, probe_input: ProbeInput) -> tuple[Tensor, Tensor] | None:
        """Return the mean classifier if the members classify the features, else None."""
        classifiers = [member.linear_classifier(probe_input) for member in self.methods]
        if probe_input != "features" or classifiers[0] is None:
            return None
        weights, biases = zip(*(pair for pair in classifiers if pair is not None), strict=True)
        return torch.stack(weights).mean(0), torch.stack(biases).mean(0)


class SharedOutput(nn.Module):
    """The output of the whole network for the images of a batch, or some views, computed once.

    A second pass would take time and update running statistics again.
    """

    def __init__(self, network: nn.Module, images: Tensor) -> None:
        super().__init__()
        self.network, self.storage = network, images.untyped_storage().data_ptr()
        self._outputs: dict[tuple[int, torch.Size], Output] = {}

    def forward(self, images: Tensor) -> Output:
        if images.untyped_storage().data_ptr() != self.storage:  # not a part of the batch
            return self._compute(images)
        part = images.data_ptr(), images.shape
        if part not in self._outputs:
            self._outputs[part] = self._compute(images)
        return self._outputs[part]

    def _compute(self, images: Tensor) -> Output:
        output: Output = self.network(images)
        return output


class _HeadOutput(nn.Module):
    """The network of one head: returns its part of the shared output."""

    def __init__(self, output: SharedOutput, head: int) -> None:
        super().__init__()
        self.output, self.head = output, head

    def forward(self, images: Tensor) -> Output:
        features, embeddings = self.output(images)
        return Output(features, embeddings[:, self.head])


def _networks(network: nn.Module) -> list[Network]:
    """Return the network of each head; they share the encoder."""
    projection = network.projection
    assert isinstance(projection, ProjectionHeads)
    return [Network(network.encoder, head) for head in projection.heads]  # type: ignore[arg-type]


def _sums(terms: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
    return {name: sum((term[name] for term in terms[1:]), terms[0][name]) for name in terms[0]}
