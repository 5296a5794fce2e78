"""The linear classifier of a model."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class LinearClassifier:
    """p = softmax((W x + a) / T), in float64 on the CPU.

    Attributes:
        weight: W (classes, D).
        bias: a (classes,).
        temperature: T, fitted on validation images.
    """

    weight: Tensor
    bias: Tensor
    temperature: float

    def logits(self, inputs: Tensor) -> Tensor:
        """Return the calibrated logits (n, classes) of probe inputs (n, D)."""
        return (inputs.cpu().double() @ self.weight.T + self.bias) / self.temperature

    def probabilities(self, inputs: Tensor) -> Tensor:
        """Return the calibrated probabilities (n, classes) of probe inputs (n, D)."""
        return self.logits(inputs).softmax(1)
