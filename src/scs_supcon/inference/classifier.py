"""The linear classifier of a model, and the temperature of its logits."""

import math
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


def fit_temperature(logits: Tensor, labels: Tensor) -> float:
    """Return the temperature T that minimises the mean negative log-likelihood of logits / T.

    Each label counts as wrong with probability 1/(n + 2), spread over the other classes: n images
    cannot show a lower error rate (the rule of succession), and if all predictions were correct the
    plain likelihood would give T = 0. Newton's method on 1/T, in which the loss is convex,
    bracketed by bisection; float64.
    """
    logits = logits.detach().cpu().double()
    logits = logits - logits.amax(1, keepdim=True)
    n, classes = logits.shape
    correct = logits.gather(1, labels.cpu()[:, None])[:, 0]
    smoothing = 1 / (n + 2) if classes > 1 else 0.0
    others = (logits.sum(1) - correct) / max(classes - 1, 1)
    target = (1 - smoothing) * correct + smoothing * others

    def derivatives(scale: float) -> tuple[float, float]:
        p = (scale * logits).softmax(1)
        mean = (p * logits).sum(1)
        variance = (p * (logits - mean[:, None]).square()).sum(1)
        return float((mean - target).mean()), float(variance.mean())

    low, high, scale = 1e-6, 1e6, 1.0
    for _ in range(100):
        slope, curvature = derivatives(scale)
        low, high = (scale, high) if slope < 0 else (low, scale)
        newton = scale - slope / curvature if curvature > 0 else math.inf
        following = newton if low < newton < high else math.sqrt(low * high)
        if abs(following - scale) <= 1e-12 * scale:
            break
        scale = following
    return 1 / scale
