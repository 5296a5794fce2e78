"""Train on several processes with exactly the gradients of one process on the whole batch.

torchrun --nproc-per-node 2 examples/ddp.py

Each process encodes its share of the batch, and `gather_across_devices=True` compares these rows
with those of all processes.
"""

import gc

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from scs_supcon import SCSSupCon

STEPS, BATCH = 5, 128


def batches() -> list[tuple[Tensor, Tensor]]:
    """Return the same batches of points and labels in every process."""
    generator = torch.Generator().manual_seed(0)
    return [
        (
            torch.randn(BATCH, 16, generator=generator),
            torch.randint(8, (BATCH,), generator=generator),
        )
        for _ in range(STEPS)
    ]


def train(rank: int, world_size: int) -> tuple[float, Tensor]:
    """Train on rows rank, rank + world_size, … of each batch; return last loss and weights."""
    torch.manual_seed(0)
    encoder = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 32))
    loss = SCSSupCon(common_dim=24, preset="learned", gather_across_devices=world_size > 1)
    network: nn.Module = encoder
    if world_size > 1:
        network = DistributedDataParallel(encoder)
    parameters = [*encoder.parameters(), *loss.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=0.1, momentum=0.9)
    for points, labels in batches():
        value = loss(network(points[rank::world_size]), labels[rank::world_size])
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
    return value.item(), torch.cat([p.detach().flatten().double() for p in parameters])


def main() -> None:
    """Train on all processes, then on the whole batch in each of them, and compare."""
    dist.init_process_group("gloo")  # "nccl" if the encoder is on GPUs
    rank, world_size = dist.get_rank(), dist.get_world_size()
    value, weights = train(rank, world_size)
    # Every process does it: t and b are kept equal on all of them, which needs all of them.
    single_value, single_weights = train(0, 1)
    if rank == 0:
        difference = float((weights - single_weights).abs().max())
        print(f"loss on {world_size} processes {value:.6f}, on one {single_value:.6f}")
        print(f"largest difference between their weights after {STEPS} steps: {difference:.1e}")
        assert difference < 1e-5, "the processes did not reproduce the result of one process"
    gc.collect()  # DDP still refers to the process group, whose threads would abort the exit
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
