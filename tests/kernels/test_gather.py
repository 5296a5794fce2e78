"""Pair sums over several processes equal one process on the joined batch.

Run by pytest, this file starts itself as `test_gather.py RANK WORLD FOLDER`, once per rank. The
hook `sum_gradients` is tested in tests/methods/test_across_processes.py.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from scs_supcon.kernels import (
    Pairs,
    Sides,
    gather_rows,
    mean_distance,
    sigmoid_pairs,
    softmax_pairs,
)

Arrays = dict[str, np.ndarray]

LABELS = {
    "spread": lambda n: torch.randint(0, 3, (n,), generator=torch.Generator().manual_seed(n)),
    "apart": lambda n: torch.arange(n) // 3,  # most classes are on one rank only
    "one": lambda n: torch.full((n,), 4),
    "different": lambda n: torch.arange(n).flip(0),
}
# Rows of each rank: unequal, empty, all on one rank, one row each.
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

Loss = Callable[..., Tensor]  # of rows, pairs, t, b
LOSSES: dict[str, tuple[Loss, dict[str, Any]]] = {
    f"sigmoid {divide_by}{'' if self_weight else ' without self'}": (
        lambda x, pairs, t, b: sigmoid_pairs(Sides(x), pairs, t, b, tile=4)[0],
        {"divide_by": divide_by, "self_weight": self_weight},
    )
    for divide_by in ("all", "balanced", "positives")
    for self_weight in (1.0, 0.0)
}
for self_weight in (1.0, 0.0):
    LOSSES[f"solved{'' if self_weight else ' without self'}"] = (
        lambda x, pairs, t, b: sigmoid_pairs(Sides(x), pairs, t, None, tile=4)[0],
        {"self_weight": self_weight},
    )
for anchors in ("all", "with positives"):
    LOSSES |= {
        f"softmax {anchors}": (
            lambda x, pairs, t, b: softmax_pairs(Sides(x), pairs, 0.2, tile=4),
            {"anchors": anchors},
        ),
        f"softmax far {anchors}": (
            lambda x, pairs, t, b: softmax_pairs(Sides(x), pairs, 0.01, tile=4),
            {"anchors": anchors},
        ),
        f"distances {anchors}": (
            lambda x, pairs, t, b: mean_distance(Sides(x), pairs, piece=9),
            {"anchors": anchors},
        ),
    }


def joined_batch(sizes: tuple[int, ...], labels: str) -> tuple[Tensor, Tensor]:
    n = sum(sizes)
    source = torch.Generator().manual_seed(10 * n + len(sizes))
    x = torch.randn(n, 3, generator=source, dtype=torch.float64)
    return torch.nn.functional.normalize(x), LABELS[labels](n)


def scalars() -> tuple[Tensor, Tensor]:
    t, b = (torch.tensor(v, dtype=torch.float64, requires_grad=True) for v in (3.0, 0.7))
    return t, b


def numbers(loss: Tensor, *leaves: Tensor) -> list[np.ndarray]:
    """Return value and gradients; 0 for t and b if the loss does not use them."""
    loss.backward()
    grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in leaves]
    return [v.detach().numpy() for v in (loss, *grads)]


def on_this_rank(rank: int, world: int) -> Arrays:
    """Return the results of this rank for each case."""
    results: Arrays = {}
    for k, (sizes, labels) in enumerate(BATCHES[world]):
        x, y = joined_batch(sizes, labels)
        local = slice(sum(sizes[:rank]), sum(sizes[: rank + 1]))
        (all_rows, all_labels), gathered = gather_rows(x[local].requires_grad_(), y[local])
        assert gathered == local and not all_rows.requires_grad
        results[f"{k} rows"], results[f"{k} labels"] = all_rows.numpy(), all_labels.numpy()
        for name, (loss, settings) in LOSSES.items():
            x = joined_batch(sizes, labels)[0][local].requires_grad_()
            t, b = scalars()
            value = loss(x, Pairs.of(y[local], gather=True, **settings), t, b)
            for key, v in zip("vxtb", numbers(value, x, t, b), strict=True):
                results[f"{k} {name} {key}"] = v
    return results


@pytest.mark.parametrize("world", [2, 3])
def test_several_processes(world: int, on_ranks: Callable[..., list[Arrays]]) -> None:
    ranks = on_ranks(__file__, world)
    for k, (sizes, labels) in enumerate(BATCHES[world]):
        x, y = joined_batch(sizes, labels)
        for rank in ranks:
            assert np.array_equal(rank[f"{k} rows"], x.numpy())
            assert np.array_equal(rank[f"{k} labels"], y.numpy())
        for name in LOSSES:
            equal_to_one_process(ranks, k, name, x, y)


def equal_to_one_process(ranks: list[Arrays], k: int, name: str, x: Tensor, y: Tensor) -> None:
    x = x.clone().requires_grad_()
    t, b = scalars()
    loss, settings = LOSSES[name]
    value, grad, by_t, by_b = numbers(loss(x, Pairs.of(y, **settings), t, b), x, t, b)
    close(np.concatenate([rank[f"{k} {name} x"] for rank in ranks]), grad, f"{k} {name} x")
    for rank in ranks:
        for key, expected in (("v", value), ("t", by_t), ("b", by_b)):
            close(rank[f"{k} {name} {key}"], expected, f"{k} {name} {key}")


def close(got: np.ndarray, expected: np.ndarray, what: str) -> None:
    # At a temperature of 0.01 logits of 100 are rounded by 1e-14, differently in one process.
    np.testing.assert_allclose(got, expected, rtol=1e-10, atol=1e-13, err_msg=what)


def main(rank: int, world: int, folder: Path) -> None:
    torch.set_num_threads(1)
    store = dist.FileStore(str(folder / "store"), world)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
    np.savez(folder / f"{rank}.npz", **on_this_rank(rank, world))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
