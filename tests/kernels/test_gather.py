"""Pair sums over several processes equal one process on the joined batch.

Run by pytest this file starts itself as `test_gather.py RANK WORLD FOLDER`, once per rank. The hook
`sum_gradients` is held against a step of one process in tests/methods/test_across_processes.py.
"""

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from scs_supcon.kernels import (
    Rows,
    class_distances,
    gather_rows,
    sigmoid_pairs,
    softmax_pairs,
    sort_rows,
)

Arrays = dict[str, np.ndarray]

LABELS = {
    "spread": lambda n: torch.randint(0, 3, (n,), generator=torch.Generator().manual_seed(n)),
    "apart": lambda n: torch.arange(n) // 3,  # most classes live on one rank only
    "one": lambda n: torch.full((n,), 4),
    "different": lambda n: torch.arange(n).flip(0),
}
# How many rows each rank holds: unequal, empty, a batch that one rank holds alone, one row each.
BATCHES = {
    2: [
        ((5, 8), "spread"),
        ((6, 3), "apart"),
        ((0, 7), "spread"),
        ((4, 2), "different"),
        ((9, 0), "one"),
        ((1, 1), "one"),
        ((0, 0), "one"),
    ],
    3: [
        ((4, 7, 3), "spread"),
        ((2, 6, 5), "apart"),
        ((0, 6, 5), "spread"),
        ((0, 9, 0), "one"),
        ((1, 1, 1), "different"),
    ],
}

Loss = Callable[..., Tensor]
LOSSES: dict[str, Loss] = {
    f"sigmoid {weighting}{'' if own else ' without self'}": (
        lambda x, rows, t, b, w=weighting, s=own, **to: sigmoid_pairs(
            x, rows, t, b, weighting=w, include_self=s, tile=4, **to
        )
    )
    for weighting in ("all", "balanced", "positives")
    for own in (True, False)
}
LOSSES["softmax"] = lambda x, rows, t, b, **to: softmax_pairs(x, rows, 0.2, tile=4, **to)
LOSSES["softmax far"] = lambda x, rows, t, b, **to: softmax_pairs(x, rows, 0.01, tile=4, **to)
LOSSES["distances"] = lambda x, rows, t, b, **to: class_distances(x, rows, piece=9, **to)


def joined_batch(sizes: tuple[int, ...], labels: str) -> tuple[Tensor, Tensor]:
    n = sum(sizes)
    source = torch.Generator().manual_seed(10 * n + len(sizes))
    x = torch.randn(n, 3, generator=source, dtype=torch.float64)
    return torch.nn.functional.normalize(x), LABELS[labels](n)


def scalars() -> tuple[Tensor, Tensor]:
    t, b = (torch.tensor(v, dtype=torch.float64, requires_grad=True) for v in (3.0, 0.7))
    return t, b


def numbers(loss: Tensor, *leaves: Tensor) -> list[np.ndarray]:
    """Value and gradients; a loss without t and b leaves theirs at 0."""
    loss.backward()
    grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in leaves]
    return [v.detach().numpy() for v in (loss, *grads)]


def on_this_rank(rank: int, world: int) -> Arrays:
    """This rank's own part of every case."""
    found: Arrays = {}
    for k, (sizes, labels) in enumerate(BATCHES[world]):
        x, y = joined_batch(sizes, labels)
        here = slice(sum(sizes[:rank]), sum(sizes[: rank + 1]))
        rows, order = sort_rows(x[here], y[here])
        everyone, columns = gather_rows(rows.requires_grad_(), order.labels)
        assert columns.own is not None and not everyone.requires_grad
        found[f"{k} rows"], found[f"{k} labels"] = everyone.numpy(), columns.labels.numpy()
        found[f"{k} found"], found[f"{k} sent"] = (
            everyone[columns.own].numpy(),
            rows.detach().numpy(),
        )
        for name, loss in LOSSES.items():
            x = joined_batch(sizes, labels)[0][here].requires_grad_()
            t, b = scalars()
            rows, order = sort_rows(x, y[here])
            value = loss(rows, order, t, b, references=everyone, columns=columns)
            for part, v in zip("vxtb", numbers(value, x, t, b), strict=True):
                found[f"{k} {name} {part}"] = v
    return found


@pytest.mark.parametrize("world", [2, 3])
def test_several_processes(world: int, on_ranks: Callable[..., list[Arrays]]) -> None:
    ranks = on_ranks(__file__, world)
    for k, (sizes, labels) in enumerate(BATCHES[world]):
        x, y = joined_batch(sizes, labels)
        every_rank_sees_all_rows_sorted_and_finds_its_own(ranks, k, *sort_rows(x, y))
        for name in LOSSES:
            equal_to_one_process(ranks, k, name, x, y)


def every_rank_sees_all_rows_sorted_and_finds_its_own(
    ranks: list[Arrays], k: int, rows: Tensor, order: Rows
) -> None:
    for rank in ranks:
        assert np.array_equal(rank[f"{k} labels"], order.labels.numpy())
        assert sorted(rank[f"{k} rows"].tolist()) == sorted(rows.tolist())
        assert np.array_equal(rank[f"{k} found"], rank[f"{k} sent"])


def equal_to_one_process(ranks: list[Arrays], k: int, name: str, x: Tensor, y: Tensor) -> None:
    x = x.clone().requires_grad_()
    t, b = scalars()
    value, grad, by_t, by_b = numbers(LOSSES[name](*sort_rows(x, y), t, b), x, t, b)
    close(np.concatenate([rank[f"{k} {name} x"] for rank in ranks]), grad, f"{k} {name} x")
    for rank in ranks:
        for part, expected in (("v", value), ("t", by_t), ("b", by_b)):
            close(rank[f"{k} {name} {part}"], expected, f"{k} {name} {part}")


def close(got: np.ndarray, expected: np.ndarray, what: str) -> None:
    # At a temperature of 0.01 logits of 100 are rounded by 1e-14, one process's by another way.
    np.testing.assert_allclose(got, expected, rtol=1e-10, atol=1e-13, err_msg=what)


def main(rank: int, world: int, folder: Path) -> None:
    torch.set_num_threads(1)
    store = dist.FileStore(str(folder / "store"), world)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
    np.savez(folder / f"{rank}.npz", **on_this_rank(rank, world))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
