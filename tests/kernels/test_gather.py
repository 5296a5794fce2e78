"""Pair sums over several processes equal one process on the joined batch.

Run by pytest, this file starts itself as `test_gather.py RANK WORLD FOLDER`, once per rank. The
hook `sum_gradients` is tested in tests/methods/test_across_processes.py.
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
    gather_rows,
    sigmoid_pair_loss,
    softmax_pair_loss,
    style_distance,
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

Loss = Callable[..., Tensor]
LOSSES: dict[str, Loss] = {
    f"sigmoid {weighting}{'' if include_self else ' without self'}": (
        lambda x, labels, t, b, w=weighting, s=include_self, **options: sigmoid_pair_loss(
            x, labels, t, b, weighting=w, include_self=s, tile=4, **options
        )[0]
    )
    for weighting in ("all", "balanced", "positives")
    for include_self in (True, False)
}
LOSSES["solved"] = lambda x, labels, t, b, **options: sigmoid_pair_loss(
    x, labels, t, None, tile=4, **options
)[0]
LOSSES["margin"] = lambda x, labels, t, b, **options: sigmoid_pair_loss(
    x, labels, t, b, margin=0.2, tile=4, **options
)[0]
LOSSES["solved with a margin"] = lambda x, labels, t, b, **options: sigmoid_pair_loss(
    x, labels, t, None, margin=0.2, include_self=False, tile=4, **options
)[0]
LOSSES["softmax"] = lambda x, labels, t, b, **options: softmax_pair_loss(
    x, labels, 0.2, tile=4, **options
)
LOSSES["softmax far"] = lambda x, labels, t, b, **options: softmax_pair_loss(
    x, labels, 0.01, tile=4, **options
)
LOSSES["distances"] = lambda x, labels, t, b, **options: style_distance(
    x, labels, piece=9, **options
)


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
        for name, loss in LOSSES.items():
            x = joined_batch(sizes, labels)[0][local].requires_grad_()
            t, b = scalars()
            value = loss(x, y[local], t, b, gather=True)
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
    value, grad, by_t, by_b = numbers(LOSSES[name](x, y, t, b), x, t, b)
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
