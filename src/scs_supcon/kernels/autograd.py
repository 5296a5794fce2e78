"""Helpers for hand-written gradients."""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

WITHOUT_FLOAT64: tuple[str, ...] = ("mps",)  # types of devices


def forbid_double_backward() -> None:
    """Raise an error if a second derivative is requested; call it first in a backward pass.

    Autograd enables gradients in a backward pass only under `create_graph=True`.
    `once_differentiable` raises no error if the incoming gradient is a constant.
    """
    if torch.is_grad_enabled():
        raise RuntimeError(
            "this loss cannot be differentiated twice with so many rows: its gradient is computed "
            "in closed form. Use at most 512 rows, or leave out create_graph=True."
        )


def traced(x: Tensor) -> bool:
    """Return whether x is traced by `torch.compile` or transformed by `torch.func`.

    Gradients written by hand and numbers read on the host then have to be avoided.
    """
    return torch.compiler.is_compiling() or torch._C._functorch.is_functorch_wrapped_tensor(x)


def transformed(x: Tensor) -> bool:
    """Return whether x belongs to a transform of `torch.func`."""
    return torch._C._functorch.is_functorch_wrapped_tensor(x)


def vmapped(x: Tensor) -> bool:
    """Return whether x belongs to `torch.vmap` outside of `torch.compile`.

    PyTorch 2.4 cannot compile `is_batchedtensor`.
    """
    return not torch.compiler.is_compiling() and torch._C._functorch.is_batchedtensor(x)


def reads_are_free(x: Tensor) -> bool:
    """Return whether numbers of x can be read without waiting for a GPU or breaking a graph."""
    return x.device.type == "cpu" and not traced(x)


def wide(x: Tensor | torch.device) -> torch.dtype:
    """Return the type in which numbers of x are summed: float64, or float32 on Apple's mps."""
    device = x.device if isinstance(x, Tensor) else x
    return torch.float32 if device.type in WITHOUT_FLOAT64 else torch.float64


def scale_gradient(saved: Tensor, grad: Tensor) -> Tensor:
    """Return the saved gradient times the incoming gradient, without a copy if the latter is 1.

    The incoming gradient is a number, or has one number for each matrix of `saved`.
    """
    if grad.dim():
        return saved * grad.view(-1, *[1] * (saved.dim() - 1))
    if reads_are_free(grad) and float(grad) == 1.0:
        return saved
    return saved * grad


def sum_to(x: Tensor, like: Tensor) -> Tensor:
    """Return x, summed if needed, with the shape and type of a scalar."""
    return (x if x.numel() == like.numel() else x.sum()).to(like.dtype).view_as(like)


def full_precision(x: Tensor) -> AbstractContextManager[object]:
    """Return a context without autocast on the device of x, so that products keep its precision."""
    device = x.device.type
    if torch.is_autocast_enabled(device):
        return torch.autocast(device, enabled=False)
    return nullcontext()
