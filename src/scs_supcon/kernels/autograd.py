"""What our hand-written gradients have in common."""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor


def only_once() -> None:
    """Refuse to be differentiated a second time; call it first in a backward pass.

    Autograd runs a backward pass with gradients enabled only under `create_graph=True`.
    `once_differentiable` would stay silent as long as the incoming gradient is a constant.
    """
    if torch.is_grad_enabled():
        raise RuntimeError(
            "this loss cannot be differentiated twice: its gradient is computed in closed form. "
            "Leave out create_graph=True, or write the loss with plain torch operations."
        )


def times(saved: Tensor, grad: Tensor) -> Tensor:
    """The saved gradient times the incoming one, which is most often 1."""
    if grad.device.type == "cpu" and float(grad) == 1.0:
        return saved
    return saved * grad


def full_precision(x: Tensor) -> AbstractContextManager[object]:
    """Where autocast is on, products that keep the precision of their factors nevertheless."""
    kind = x.device.type
    return torch.autocast(kind, enabled=False) if torch.is_autocast_enabled(kind) else nullcontext()
