"""Losses, heads and optimiser steps of several processes equal one process with the joined batch.

Run by pytest this file starts itself as `test_across_processes.py RANK WORLD FOLDER`, one per rank.
"""

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from scs_supcon import CSSupCon, CSSupConOverlap, SCSSupCon, SimCLR, SupCon
from scs_supcon.kernels import Gather
from scs_supcon.methods import Method
from scs_supcon.nn.head import Projection

Arrays = dict[str, np.ndarray]
Sizes = tuple[int, ...]

# Number of images of each rank; the large batches exceed the rows that solve b.
SIZES: dict[int, list[Sizes]] = {
    2: [(5, 8), (0, 7), (1, 1), (700, 500)],
    3: [(4, 7, 3), (0, 6, 5), (0, 9, 0)],
}
LOSSES: dict[str, Callable[[bool], Method]] = {
    "solved": lambda g: SCSSupCon(gather_across_devices=g),
    "paper": lambda g: SCSSupCon(preset="paper", gather_across_devices=g),
    "learned": lambda g: SCSSupCon(preset="learned", gather_across_devices=g),
    "solved without self": lambda g: SCSSupCon(include_self=False, gather_across_devices=g),
    "learned without self": lambda g: SCSSupCon(
        preset="learned", include_self=False, pairs="balanced", gather_across_devices=g
    ),
    "joint": lambda g: SCSSupCon(
        preset="paper", normalize="joint", beta=0.3, gather_across_devices=g
    ),
    "supcon": lambda g: SupCon(gather_across_devices=g),
    "supcon with positives": lambda g: SupCon(anchors="with positives", gather_across_devices=g),
    "simclr": lambda g: SimCLR(gather_across_devices=g),
    "cs_supcon": lambda g: CSSupCon(gather_across_devices=g),
    "cs_supcon_overlap": lambda g: CSSupConOverlap(overlap=3, gather_across_devices=g),
}


def joined_batch(sizes: Sizes) -> tuple[Tensor, Tensor]:
    """Return (B, 2, D) embeddings; one class occurs on the last rank only.

    Large batches have one view: which rows solve b depends on their order.
    """
    n = sum(sizes)
    source = torch.Generator().manual_seed(n)
    z = torch.randn(n, 2 if n < 100 else 1, 8, generator=source, dtype=torch.float64)
    labels = torch.randint(0, 4, (n,), generator=source)
    labels[sum(sizes[:-1]) :: 3] = 9
    return z, labels


def value_and_gradients(loss: Method, z: Tensor, labels: Tensor) -> Arrays:
    loss.gradient_reduction = "sum"  # the gradient itself; test_arrangements.py has the other
    z = z.clone().requires_grad_()
    value = loss(z, labels)
    value.backward()
    assert z.grad is not None
    results = {"value": value.detach(), "rows": z.grad}
    if isinstance(loss, SCSSupCon):
        results |= {
            f"scalar {k}": torch.tensor(v, dtype=torch.float64)
            for k, v in loss.scalars().items()
            if not k.endswith("_cosine")  # of this process
        }
        results |= {f"by {k}": p.grad for k, p in loss.named_parameters() if p.grad is not None}
    return {name: x.numpy() for name, x in results.items()}


def encoder() -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 8)).double()


def trained(sizes_of_steps: list[Sizes], rank: int | None) -> Arrays:
    """Return weights, t and b after one SGD step per batch; with DDP if a rank is given."""
    net = encoder()
    loss = SCSSupCon(preset="learned", gather_across_devices=rank is not None)
    run: nn.Module = net
    if rank is not None:
        run = nn.parallel.DistributedDataParallel(net)
    optimiser = torch.optim.SGD(
        [{"params": list(net.parameters()), "lr": 0.5}, *loss.param_groups(lr=0.5)], momentum=0.9
    )
    for sizes in sizes_of_steps:
        z, labels = joined_batch(sizes)
        local = slice(None) if rank is None else rows_of_rank(sizes, rank)
        optimiser.zero_grad()
        loss(run(z[local].flatten(0, 1)), labels[local].repeat_interleave(2)).backward()
        optimiser.step()
    values = [*net.named_parameters(), *loss.named_parameters()]
    return {name: p.detach().numpy() for name, p in values}


def centred(sizes: Sizes, rank: int | None) -> Arrays:
    """Return rows, statistics and summed gradients of a centred projection in training."""
    torch.manual_seed(4)
    head = Projection(8, 6, centre=True).double()
    gather = Gather(gradient_reduction="sum") if rank is not None else False
    loss = SCSSupCon(preset="learned", gather_across_devices=gather)
    z, labels = joined_batch(sizes)
    local = slice(None) if rank is None else rows_of_rank(sizes, rank)
    rows = head(z[local, 0])
    loss(rows, labels[local]).backward()
    results = {"rows": rows.detach(), **dict(head.named_buffers())}
    for name, p in head.named_parameters():
        assert p.grad is not None
        if rank is not None:
            dist.all_reduce(p.grad)
        results[f"by {name}"] = p.grad
    return {name: x.numpy() for name, x in results.items()}


def without_gathering(sizes: Sizes, rank: int) -> Arrays:
    """Return t' and b after 30 steps of DDP, each rank with the loss of its own rows."""
    net = encoder()
    run = nn.parallel.DistributedDataParallel(net)
    loss = SCSSupCon(preset="learned")
    optimiser = torch.optim.SGD([*net.parameters(), *loss.parameters()], lr=0.5)
    z, labels = joined_batch(sizes)
    local = rows_of_rank(sizes, rank)
    for _ in range(30):
        optimiser.zero_grad()
        loss(run(z[local, 0]), labels[local]).backward()
        optimiser.step()
    return {name: p.detach().numpy() for name, p in loss.named_parameters()}


def mean_of_local_losses(sizes: Sizes) -> Arrays:
    """Return t' and b after 30 steps of one process on the mean of the losses of the ranks."""
    net, loss = encoder(), SCSSupCon(preset="learned")
    optimiser = torch.optim.SGD([*net.parameters(), *loss.parameters()], lr=0.5)
    z, labels = joined_batch(sizes)
    locals_ = [rows_of_rank(sizes, rank) for rank in range(len(sizes))]
    for _ in range(30):
        optimiser.zero_grad()
        values = [loss(net(z[local, 0]), labels[local]) for local in locals_]
        torch.stack(values).mean().backward()
        optimiser.step()
    return {name: p.detach().numpy() for name, p in loss.named_parameters()}


def in_groups(rank: int) -> Arrays:
    """Return value and gradients on three ranks, of which the first two form a group."""
    group, alone = dist.new_group([0, 1]), dist.new_group([2])
    z, labels = joined_batch((4, 7, 3))
    local = rows_of_rank((4, 7, 3), rank)
    gather = Gather(group=group if rank < 2 else alone)
    loss = SCSSupCon(preset="learned", gather_across_devices=gather)
    return value_and_gradients(loss, z[local], labels[local])


def rows_of_rank(sizes: Sizes, rank: int) -> slice:
    return slice(sum(sizes[:rank]), sum(sizes[: rank + 1]))


def on_this_rank(rank: int, world: int) -> Arrays:
    results: Arrays = {}
    for k, sizes in enumerate(SIZES[world]):
        z, labels = joined_batch(sizes)
        local = rows_of_rank(sizes, rank)
        for name, make in LOSSES.items():
            values = value_and_gradients(make(True), z[local], labels[local])
            results |= {f"{k} {name}: {part}": v for part, v in values.items()}
        results |= {f"{k} centred: {part}": v for part, v in centred(sizes, rank).items()}
    if world == 2:  # building DDP takes seconds: once is enough
        results |= {f"step: {part}": v for part, v in trained(SIZES[2][:3], rank).items()}
        values = without_gathering(SIZES[2][0], rank)
        results |= {f"ungathered: {part}": v for part, v in values.items()}
    else:
        results |= {f"group: {part}": v for part, v in in_groups(rank).items()}
    return results


@pytest.mark.slow
@pytest.mark.parametrize("world", [2, 3])
def test_several_processes_equal_one_process(
    world: int, on_ranks: Callable[..., list[Arrays]]
) -> None:
    ranks = on_ranks(__file__, world)
    for k, sizes in enumerate(SIZES[world]):
        for name, make in LOSSES.items():
            equal(ranks, f"{k} {name}: ", value_and_gradients(make(False), *joined_batch(sizes)))
        equal(ranks, f"{k} centred: ", centred(sizes, None))
    if world == 2:
        equal(ranks, "step: ", trained(SIZES[2][:3], None))
        # Without a gathered loss, t and b follow the mean of the gradients, on all ranks.
        equal(ranks, "ungathered: ", mean_of_local_losses(SIZES[2][0]))
    else:
        z, labels = joined_batch((4, 7, 3))
        parts = ((ranks[:2], slice(0, 11)), (ranks[2:], slice(11, 14)))
        for members, rows in parts:
            loss = SCSSupCon(preset="learned")
            equal(members, "group: ", value_and_gradients(loss, z[rows], labels[rows]))


def equal(ranks: list[Arrays], prefix: str, expected: Arrays) -> None:
    """Compare: `rows` are spread over the ranks, all other values are the same on each rank."""
    for name, value in expected.items():
        results = [rank[prefix + name] for rank in ranks]
        for actual in [np.concatenate(results)] if name == "rows" else results:
            atol = 1e-10 * max(np.abs(value).max(initial=0), 1e-4)
            np.testing.assert_allclose(actual, value, rtol=1e-10, atol=atol, err_msg=prefix + name)


def test_gathering_in_one_process_changes_nothing() -> None:
    batch = joined_batch((6,))
    for make in LOSSES.values():
        assert torch.equal(make(True)(*batch), make(False)(*batch))


def main(rank: int, world: int, folder: Path) -> None:
    torch.set_num_threads(1)
    store = dist.FileStore(str(folder / "store"), world)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
    np.savez(folder / f"{rank}.npz", **on_this_rank(rank, world))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
