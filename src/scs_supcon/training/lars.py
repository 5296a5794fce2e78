"""LARS, layer-wise adaptive rate scaling: SGD for large batches (You et al., 2017)."""

from collections.abc import Callable
from typing import Any

import torch

TRUST = 0.001  # η of the paper


class LARS(torch.optim.SGD):
    """SGD whose step for each matrix is proportional to the norm of the matrix.

    For a matrix (or the kernel of a convolution) w with gradient g and weight decay β:

        λ = η ‖w‖ / (‖g‖ + β ‖w‖)        (1 if ‖w‖ or ‖g‖ is 0)
        v ← momentum · v + λ (g + β w)
        w ← w − lr · v

    Biases, norms, t and b have λ = 1. State and checkpoints are those of SGD.
    """

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> Any:
        """Scale the gradients, then step."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        decays = [group["weight_decay"] for group in self.param_groups]
        for group, decay in zip(self.param_groups, decays, strict=True):
            for w in group["params"]:
                if w.grad is None:
                    continue
                scale = _trust_ratio(w, w.grad, decay) if w.ndim > 1 else None
                w.grad.add_(w, alpha=decay)
                if scale is not None:
                    w.grad.mul_(scale)
            group["weight_decay"] = 0.0  # it is part of the gradient now
        try:
            super().step()
        finally:
            for group, decay in zip(self.param_groups, decays, strict=True):
                group["weight_decay"] = decay
        return loss


def _trust_ratio(w: torch.Tensor, g: torch.Tensor, decay: float) -> torch.Tensor:
    weight, gradient = w.norm(), g.norm()
    ratio = TRUST * weight / (gradient + decay * weight)
    return torch.where((weight > 0) & (gradient > 0), ratio, torch.ones_like(ratio))
