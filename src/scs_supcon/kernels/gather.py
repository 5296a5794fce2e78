"""Gather rows from all processes, and combine gradients over them.

A gathered loss is computed from the rows of all processes. On each process the gradient of its own
rows is that of the whole batch, so the gradients of an encoder have to be *summed* over processes.
Most training loops average them: `scale_for_reduction` makes up for that.
"""

from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor

from scs_supcon.kernels.layout import PairLabels, sort_joined, sort_rows

GradientReduction = Literal["mean", "sum"]
Group = Any  # a `torch.distributed.ProcessGroup`, or None for all processes


def several_processes(group: Group = None) -> bool:
    """Return whether this process is one of several (in the group)."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size(group) > 1


def gather_rows(*tensors: Tensor, group: Group = None) -> tuple[list[Tensor], slice]:
    """Collect tensors of equal length from all processes, in the order of their ranks.

    Lengths may differ between processes or be zero. The copies have no gradient.

    Returns:
        The joined tensors, and the slice that holds the rows of this process.
    """
    n, rank = len(tensors[0]), dist.get_rank(group)
    sizes = torch.zeros(dist.get_world_size(group), dtype=torch.long, device=tensors[0].device)
    sizes[rank] = n
    dist.all_reduce(sizes, group=group)
    counts = sizes.tolist()
    start = sum(counts[:rank])
    joined = [_gather_padded(x.detach(), counts, group) for x in tensors]
    return joined, slice(start, start + n)


def _gather_padded(x: Tensor, counts: list[int], group: Group) -> Tensor:
    padded = x.new_zeros((max(counts), *x.shape[1:]))
    padded[: len(x)] = x
    received = [torch.empty_like(padded) for _ in counts]
    dist.all_gather(received, padded, group=group)
    return torch.cat([rows[:count] for rows, count in zip(received, counts, strict=True)])


def arrange_pairs(
    x: Tensor,
    labels: Tensor,
    references: Tensor | None = None,
    reference_labels: Tensor | None = None,
    gather: bool = False,
    *,
    group: Group = None,
    include_rows: bool = False,
) -> tuple[Tensor, Tensor | None, PairLabels]:
    """Sort both sides of the pairs by label; return queries, references and their labels.

    Args:
        x: `(n, d)` queries.
        labels: `(n,)`.
        references: `(m, d)` right side of the pairs; default: the queries themselves.
        reference_labels: `(m,)`.
        gather: use the rows of all processes as references, without gradient.
        group: the processes; default: all.
        include_rows: whether the queries are references, too.
    """
    queries, rows = sort_rows(x, labels)
    if references is not None:
        assert reference_labels is not None and not gather
        if include_rows:
            joined = torch.cat([queries, references.to(queries.dtype)])
            joined_labels = torch.cat([rows.labels, reference_labels])
            others, columns = sort_joined(joined, joined_labels, slice(0, len(queries)))
        else:
            others, columns = sort_rows(references, reference_labels)
        return queries, others, PairLabels(rows, columns)
    if not (gather and several_processes(group)):
        return queries, None, PairLabels(rows)
    (others, other_labels), local = gather_rows(queries, rows.labels, group=group)
    others, columns = sort_joined(others, other_labels, local)
    return queries, others, PairLabels(rows, columns, joined=True, group=group)


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
