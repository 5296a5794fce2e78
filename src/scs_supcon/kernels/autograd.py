"""Helpers for hand-written gradients."""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor


def refuse_double_backward() -> None:
    """Raise an error if a second derivative is requested; call it first in a backward pass.

    Autograd runs a backward pass with gradients enabled only under `create_graph=True`.
    `once_differentiable` would stay silent as long as the incoming gradient is a constant.
    """
    if torch.is_grad_enabled():
        raise RuntimeError(
            "this loss cannot be differentiated twice: its gradient is computed in closed form. "
            "Leave out create_graph=True, or write the loss with plain torch operations."
        )


def scaled(saved: Tensor, grad: Tensor) -> Tensor:
    """Return the saved gradient times the incoming one, without a copy if that is 1."""
    if grad.device.type == "cpu" and float(grad) == 1.0:
        return saved
    return saved * grad


def full_precision(x: Tensor) -> AbstractContextManager[object]:
    """Switch autocast off for the device of x, so that products keep the precision of x."""
    kind = x.device.type
    return torch.autocast(kind, enabled=False) if torch.is_autocast_enabled(kind) else nullcontext()
