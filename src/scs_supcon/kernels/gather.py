"""Gather rows from all processes, and sum gradients over them."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from scs_supcon.kernels.layout import PairLabels, sort_joined, sort_rows


def several_processes() -> bool:
    """Return whether this process is one of several."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def gather_rows(*tensors: Tensor) -> tuple[list[Tensor], slice]:
    """Collect tensors of equal length from all processes, in the order of their ranks.

    Lengths may differ between processes or be zero. The copies have no gradient.

    Returns:
        The joined tensors, and the slice that holds the rows of this process.
    """
    n, rank = len(tensors[0]), dist.get_rank()
    sizes = torch.zeros(dist.get_world_size(), dtype=torch.long, device=tensors[0].device)
    sizes[rank] = n
    dist.all_reduce(sizes)
    counts = sizes.tolist()
    start = sum(counts[:rank])
    return [_gather_padded(x.detach(), counts) for x in tensors], slice(start, start + n)


def _gather_padded(x: Tensor, counts: list[int]) -> Tensor:
    padded = x.new_zeros((max(counts), *x.shape[1:]))
    padded[: len(x)] = x
    received = [torch.empty_like(padded) for _ in counts]
    dist.all_gather(received, padded)
    return torch.cat([rows[:count] for rows, count in zip(received, counts, strict=True)])


def arrange_pairs(
    x: Tensor,
    labels: Tensor,
    references: Tensor | None = None,
    reference_labels: Tensor | None = None,
    gather: bool = False,
    *,
    include_rows: bool = False,
) -> tuple[Tensor, Tensor | None, PairLabels]:
    """Sort both sides of the pairs by label; return queries, references and their labels.

    Args:
        x: `(n, d)` queries.
        labels: `(n,)`.
        references: `(m, d)` right side of the pairs; default: the queries themselves.
        reference_labels: `(m,)`.
        gather: use the rows of all processes as references, without gradient.
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
    if not (gather and several_processes()):
        return queries, None, PairLabels(rows)
    (others, other_labels), local = gather_rows(queries, rows.labels)
    others, columns = sort_joined(others, other_labels, local)
    return queries, others, PairLabels(rows, columns, joined=True)


def sum_gradients(
    _state: object,
    bucket: dist.GradBucket,  # type: ignore[name-defined]
) -> torch.futures.Future[Tensor]:
    """Sum gradients over processes instead of averaging them.

    Register this hook with `ddp_model.register_comm_hook(None, sum_gradients)`: a gathered loss is
    already the mean over the rows of all processes.
    """
    work = dist.all_reduce(bucket.buffer(), async_op=True)
    assert work is not None

    def value(future: torch.futures.Future[Any]) -> Tensor:
        result: Tensor = future.value()[0]
        return result

    future: torch.futures.Future[Tensor] = work.get_future().then(value)
    return future
