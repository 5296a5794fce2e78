"""The linear classifier of a model, and the temperature of its logits."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

FOLDS = 5


@dataclass(frozen=True)
class LinearClassifier:
    """p = softmax((W x + a) / T), in float64 on the CPU.

    Attributes:
        weight: W (classes, D).
        bias: a (classes,).
        temperature: T, fitted on held-out images; 1 if they do not show that scaling helps.
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
    target = _target_logits(logits, labels)

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


def useful_temperature(logits: Tensor, labels: Tensor) -> float:
    """Return the temperature of held-out images, or 1 if scaling does not help.

    On the images it was fitted to, a temperature always seems to help. Therefore it is fitted
    without each of five folds of the images, and the fold shows whether it lowers the negative
    log-likelihood (that of `fit_temperature`). If it does, the temperature is that of all images.

    Args:
        logits: (n, classes) of images that the classifier was not trained on.
        labels: (n,)
    """
    logits, labels = logits.detach().cpu().double(), labels.cpu()
    n = len(labels)
    if n < 2:
        return 1.0
    order = torch.randperm(n, generator=torch.Generator().manual_seed(0))
    scaled = torch.empty_like(logits)
    for fold in range(min(FOLDS, n)):
        held_out = torch.zeros(n, dtype=torch.bool)
        held_out[order[fold::FOLDS]] = True
        temperature = fit_temperature(logits[~held_out], labels[~held_out])
        scaled[held_out] = logits[held_out] / temperature
    gain = _negative_log_likelihood(logits, labels) - _negative_log_likelihood(scaled, labels)
    return fit_temperature(logits, labels) if gain > 0 else 1.0


def _negative_log_likelihood(logits: Tensor, labels: Tensor) -> float:
    losses = logits.logsumexp(1) - _target_logits(logits, labels)
    return float(losses.mean())


def _target_logits(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the expected logit of the label, which is wrong with probability 1/(n + 2)."""
    n, classes = logits.shape
    correct = logits.gather(1, labels.cpu()[:, None])[:, 0]
    smoothing = 1 / (n + 2) if classes > 1 else 0.0
    others = (logits.sum(1) - correct) / max(classes - 1, 1)
    return (1 - smoothing) * correct + smoothing * others
