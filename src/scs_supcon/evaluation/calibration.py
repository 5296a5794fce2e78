"""Probabilities that mean what they say: one temperature for all logits."""

import math

from torch import Tensor


def fit_temperature(logits: Tensor, labels: Tensor) -> float:
    """Return the temperature T that minimises the mean negative log-likelihood of logits / T.

    Each label counts as wrong with chance 1/(n + 2), spread over the other classes: n validation
    images cannot show that fewer go wrong (the rule of succession), and where all are right the
    bare likelihood would ask for T = 0. Newton's method on 1/T, in which the loss is convex, kept
    between bounds by bisection; float64.
    """
    logits = logits.detach().cpu().double()
    logits = logits - logits.amax(1, keepdim=True)
    n, classes = logits.shape
    own = logits.gather(1, labels.cpu()[:, None])[:, 0]
    wrong = 1 / (n + 2) if classes > 1 else 0.0
    others = (logits.sum(1) - own) / max(classes - 1, 1)
    wanted = (1 - wrong) * own + wrong * others

    def slopes(sharpness: float) -> tuple[float, float]:
        p = (sharpness * logits).softmax(1)
        mean = (p * logits).sum(1)
        spread = (p * (logits - mean[:, None]).square()).sum(1)
        return float((mean - wanted).mean()), float(spread.mean())

    low, high, sharpness = 1e-6, 1e6, 1.0
    for _ in range(100):
        slope, curvature = slopes(sharpness)
        low, high = (sharpness, high) if slope < 0 else (low, sharpness)
        newton = sharpness - slope / curvature if curvature > 0 else math.inf
        following = newton if low < newton < high else math.sqrt(low * high)
        if abs(following - sharpness) <= 1e-12 * sharpness:
            break
        sharpness = following
    return 1 / sharpness
