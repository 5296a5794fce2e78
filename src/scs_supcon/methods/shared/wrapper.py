"""A method around another method."""

from typing import Self

from torch import Tensor, nn

from scs_supcon.methods.shared.base import (
    Batch,
    EncodeTrainingSet,
    Method,
    ParameterGroup,
    TaskInfo,
)
from scs_supcon.nn.network import ProbeInput


class MethodWrapper(Method):
    """Calls the hooks of another method; a subclass overrides what it changes.

    Args:
        method: the method inside.
    """

    def __init__(self, method: Method) -> None:
        super().__init__()
        self.method = method
        self.views, self.probe_input = method.views, method.probe_input
        self.trains_head, self.uses_labels = method.trains_head, method.uses_labels
        self.supports_soft_labels = method.supports_soft_labels

    def loss_terms(self, embeddings: Tensor, labels: Tensor | None) -> dict[str, Tensor]:
        return self.method.loss_terms(embeddings, labels)

    def setup(self, task: TaskInfo) -> Self:
        self.method.setup(task)
        return self

    def training_step(self, batch: Batch, network: nn.Module) -> dict[str, Tensor]:
        return self.method.training_step(batch, network)

    def on_epoch_start(self, epoch: int, encode_training_set: EncodeTrainingSet) -> None:
        self.method.on_epoch_start(epoch, encode_training_set)

    def after_step(self, network: nn.Module, progress: float) -> None:
        self.method.after_step(network, progress)

    def scalars(self) -> dict[str, float]:
        return self.method.scalars()

    def param_groups(self, lr: float, weight_decay: float = 0.0) -> list[ParameterGroup]:
        return self.method.param_groups(lr, weight_decay)

    def pair_parameters(
        self, training_rows: tuple[Tensor, Tensor] | None = None
    ) -> tuple[float, float] | None:
        return self.method.pair_parameters(training_rows)

    def class_logits(self, features: Tensor, embeddings: Tensor) -> Tensor | None:
        return self.method.class_logits(features, embeddings)

    def linear_classifier(self, probe_input: ProbeInput) -> tuple[Tensor, Tensor] | None:
        return self.method.linear_classifier(probe_input)
