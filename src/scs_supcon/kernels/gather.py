"""Gather rows from all processes, and combine gradients over them.

A gathered loss is computed from the rows of all processes. On each process the gradient of its own
rows is that of the whole batch, so the gradients of an encoder have to be *summed* over processes.
Most training loops average them: `scale_for_reduction` makes up for that.
"""

from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor

from scs_supcon.errors import UserError

GradientReduction = Literal["mean", "sum"]
Group = Any  # a `torch.distributed.ProcessGroup`, or None for all processes


@dataclass(frozen=True)
class Gather:
    """How a loss is gathered from several processes.

    Attributes:
        group: the processes; None: all.
        gradient_reduction: how the training loop combines the gradients of the processes: "mean"
            (DistributedDataParallel, FSDP, Lightning, Accelerate, Hugging Face Trainer) or "sum".
    """

    group: Group = None
    gradient_reduction: GradientReduction = "mean"

    def __post_init__(self) -> None:
        if self.gradient_reduction not in ("mean", "sum"):
            raise UserError(
                f"gradient_reduction must be 'mean' or 'sum', got {self.gradient_reduction!r}"
            )


def several_processes(group: Group = None) -> bool:
    """Return whether this process is one of several (in the group)."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size(group) > 1


def gather_rows(*tensors: Tensor, group: Group = None) -> tuple[list[Tensor], slice]:
    """Collect tensors of equal length from all processes, in the order of their ranks.

    Lengths may differ between processes or be zero. The copies have no gradient.

    Returns:
        The joined tensors, and the slice that holds the rows of this process.
    """
    sizes, local = gather_sizes(tensors[0], group)
    return [gather_padded(x.detach(), sizes, group) for x in tensors], local


def gather_sizes(x: Tensor, group: Group) -> tuple[tuple[int, ...], slice]:
    """Return the lengths of x in all processes, and the slice of this process among them."""
    rank = dist.get_rank(group)
    sizes = torch.zeros(dist.get_world_size(group), dtype=torch.long, device=x.device)
    sizes[rank] = len(x)
    dist.all_reduce(sizes, group=group)
    counts = tuple(sizes.tolist())
    start = sum(counts[:rank])
    return counts, slice(start, start + len(x))


def gather_padded(
    x: Tensor,  # (n, ...)
    sizes: tuple[int, ...],
    group: Group,
) -> Tensor:  # (sum(sizes), ...)
    """Return the rows of all processes, given their numbers."""
    padded = x.new_zeros((max(sizes), *x.shape[1:]))
    padded[: len(x)] = x
    received = [torch.empty_like(padded) for _ in sizes]
    dist.all_gather(received, padded, group=group)
    return torch.cat([rows[:size] for rows, size in zip(received, sizes, strict=True)])


def join_rows(
    rows: Tensor,  # (n, ...)
    views: int = 1,
    group: Group = None,
) -> Tensor:  # (rows of all processes, ...)
    """Return the rows of all processes, view-major; those of this process keep their gradient."""
    if not several_processes(group):
        return rows
    tail = rows.shape[1:]
    packed = rows.reshape(views, len(rows) // views, *tail).transpose(0, 1).flatten(1)
    (joined,), local = gather_rows(packed, group=group)
    if rows.requires_grad:
        joined = torch.cat([joined[: local.start], packed, joined[local.stop :]])
    return joined.view(len(joined), views, *tail).transpose(0, 1).flatten(0, 1)


def scale_for_reduction(rows: Tensor, reduction: GradientReduction, group: Group = None) -> Tensor:
    """Return the rows; their gradient is scaled for a loop that averages gradients.

    The loop then arrives at the gradient of the whole batch: the mean over W processes of W times
    the gradient is its sum.
    """
    if not rows.requires_grad:
        return rows
    scaled: Tensor = _ScaledForReduction.apply(
        rows, dist.get_world_size(group) if reduction == "mean" else 1
    )
    return scaled


def divided_gradient(x: Tensor, divisor: int) -> Tensor:
    """Return x; its gradient is divided."""
    if not x.requires_grad or divisor == 1:
        return x
    return x.detach() + (x - x.detach()) / divisor  # x − x is 0 exactly


class _ScaledForReduction(torch.autograd.Function):
    last_scale = 1  # of the last backward pass; DDP's hooks are called after it

    @staticmethod
    def forward(ctx: Any, rows: Tensor, scale: int) -> Tensor:
        ctx.scale = scale
        return rows.view_as(rows)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        _ScaledForReduction.last_scale = ctx.scale
        return grad * ctx.scale if ctx.scale > 1 else grad, None


def average_gradients(*scalars: Tensor, group: Group = None) -> tuple[Tensor, ...]:
    """Return the scalars; their gradients are averaged over the processes.

    Every process has to run the backward pass.
    """
    averaged: tuple[Tensor, ...] = _AveragedGradients.apply(group, *scalars)
    return averaged


class _AveragedGradients(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, group: Group, *scalars: Tensor) -> tuple[Tensor, ...]:
        ctx.group = group
        return tuple(x.view_as(x) for x in scalars)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        joined = torch.stack([grad.reshape(()) for grad in grads])
        dist.all_reduce(joined, group=ctx.group)
        joined /= dist.get_world_size(ctx.group)
        return None, *(x.reshape(grad.shape) for x, grad in zip(joined, grads, strict=True))


def inside_data_parallel() -> bool:
    """Return whether this is called in the forward pass of DistributedDataParallel."""
    from torch.nn.parallel import DistributedDataParallel

    return DistributedDataParallel._active_ddp_module is not None


def sum_gradients(
    _state: object,
    bucket: dist.GradBucket,  # type: ignore[name-defined]
) -> torch.futures.Future[Tensor]:
    """Sum gradients over processes, for losses with `gradient_reduction="sum"`.

    Register this hook with `ddp_model.register_comm_hook(None, sum_gradients)`. It is not needed
    for the default, `gradient_reduction="mean"`, whose gradients it averages as DDP does.
    """
    work = dist.all_reduce(bucket.buffer(), async_op=True)
    assert work is not None
    scale = _ScaledForReduction.last_scale

    def value(future: torch.futures.Future[Any]) -> Tensor:
        result: Tensor = future.value()[0]
        return result / scale if scale > 1 else result

    future: torch.futures.Future[Tensor] = work.get_future().then(value)
    return future
