"""Rows of all processes, and the gradient rule that goes with them."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from scs_supcon.kernels.layout import Rows


def gather_rows(rows: Tensor, labels: Tensor) -> tuple[Tensor, Rows]:
    """Collect rows and labels from every process, sorted by label; sizes may differ or be zero.

    The copies carry no gradient: each process differentiates its own rows against all of them.
    `Rows.own` tells where this process's rows (sorted by label) are.
    """
    rank, world = dist.get_rank(), dist.get_world_size()
    sizes = [torch.zeros(1, dtype=torch.long, device=rows.device) for _ in range(world)]
    dist.all_gather(sizes, torch.tensor([len(rows)], device=rows.device))
    counts = [int(size) for size in sizes]
    all_rows = _gather_padded(rows.detach(), counts)
    all_labels = _gather_padded(labels, counts)
    ordered, order = torch.sort(all_labels, stable=True)
    place = torch.empty_like(order)
    place[order] = torch.arange(len(order), device=order.device)
    start = sum(counts[:rank])
    own = place[start : start + len(rows)]
    return all_rows.index_select(0, order), Rows(ordered, own)


def _gather_padded(x: Tensor, counts: list[int]) -> Tensor:
    padded = x.new_zeros((max(counts), *x.shape[1:]))
    padded[: len(x)] = x
    parts = [torch.empty_like(padded) for _ in counts]
    dist.all_gather(parts, padded)
    return torch.cat([part[:count] for part, count in zip(parts, counts, strict=True)])


def sum_gradients(
    _state: object,
    bucket: dist.GradBucket,  # type: ignore[name-defined]
) -> torch.futures.Future[Tensor]:
    """Communication hook for DistributedDataParallel: add gradients instead of averaging them.

    A joined loss already counts every process's rows, so its gradients must be added:
    `ddp_model.register_comm_hook(None, sum_gradients)`.
    """
    work = dist.all_reduce(bucket.buffer(), async_op=True)
    assert work is not None

    def value(future: torch.futures.Future[Any]) -> Tensor:
        result: Tensor = future.value()[0]
        return result

    future: torch.futures.Future[Tensor] = work.get_future().then(value)
    return future
