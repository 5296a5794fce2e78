"""Training on several processes equals one process with the joined batch.

Run by pytest this file starts itself as `test_joint.py RANK WORLD FOLDER`, once per rank.
"""

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from scs_supcon.kernels import join_rows
from scs_supcon.methods import Batch, Network, Output, TaskInfo, build_method
from scs_supcon.nn.head import Projection

Arrays = dict[str, np.ndarray]

# A suffix after + makes the key unique; "+soft" means batches with soft labels.
OPTIONS: dict[str, dict[str, Any]] = {
    "baseline": {},
    "baseline+soft": {},
    "byol": {"hidden": 8},
    "circle": {"gamma": 16.0},
    "cross_entropy_mlp": {},
    "circle_pair": {"gamma": 16.0},
    "csa_rsic": {},
    "cstcn": {"prototypes": 8, "queue": 9},
    "dacl": {"rate": 0.1},
    "fncl": {"classifier_weight": 1.0, "attract": 2},
    "oscs_supcon": {},
    "paco": {"queue": 9},
    "pcl": {"granularities": (1, 2)},
    "scs_joint": {"eta": 0.5},
    "scs_joint+learned": {"preset": "learned"},
    "scs_joint+soft": {},
    "scs_supcon+soft": {"beta": 0.3},
    "selfcon": {},
    "timescl": {},
}
# The number of images of each rank in each step.
SHARES = [(3, 4), (7, 0), (1, 6), (5, 2)]
LABELS = torch.tensor([0, 1, 2, 1, 0, 0, 2])


def train_four_steps(name: str, rank: int | None) -> Arrays:
    """Return losses and weights after four steps, on the images of one rank or on all."""
    torch.manual_seed(0)
    network = Network(nn.Linear(6, 5), Projection(5, 4, centre=True)).double()
    method = build_method(
        name.partition("+")[0], **OPTIONS[name], gather_across_devices=rank is not None
    )
    method.gradient_reduction = "sum"
    method.setup(TaskInfo(network, LABELS, 3, 5, 4, epochs=4))
    optimizer = torch.optim.SGD(
        [{"params": list(network.parameters())}, *method.param_groups(0.05)], 0.05
    )
    results: Arrays = {}
    for step, sizes in enumerate(SHARES):
        method.on_epoch_start(step, encode)
        local = slice(None) if rank is None else slice(sum(sizes[:rank]), sum(sizes[: rank + 1]))
        example = batch(step, method.views, local)
        if name.endswith("+soft"):
            soft = torch.randn(7, 3, generator=torch.Generator().manual_seed(step)).softmax(1)
            example = replace(example, label_probabilities=soft.double()[local])
        terms = method.training_step(example, network)
        optimizer.zero_grad()
        torch.stack(list(terms.values())).sum().backward()
        for p in network.parameters():
            p.grad = torch.zeros_like(p) if p.grad is None else p.grad
            if rank is not None:
                dist.all_reduce(p.grad)
        optimizer.step()
        method.after_step(network, step / 4)
        results |= {f"{name} {step} {k}": v.detach().numpy() for k, v in terms.items()}
    for module in (network, method):
        for key, value in module.state_dict().items():
            results[f"{name} {type(module).__name__} {key}"] = value.numpy()
    return results


def images(step: int) -> Tensor:
    source = torch.Generator().manual_seed(step)
    classes = torch.randn(3, 6, generator=source, dtype=torch.float64)
    return classes[LABELS] + torch.randn(7, 6, generator=source, dtype=torch.float64)


def batch(step: int, views: int, local: slice) -> Batch:
    rows = torch.cat([images(10 * step + view)[local] for view in range(views)])
    return Batch(rows, LABELS[local], torch.arange(7)[local])


def encode(network: nn.Module) -> Output:
    with torch.no_grad():
        output: Output = network(images(99))
    return output


@pytest.fixture(scope="module")
def ranks(on_ranks: Callable[..., list[Arrays]]) -> list[Arrays]:
    return on_ranks(__file__, 2)


@pytest.mark.slow
@pytest.mark.parametrize("name", OPTIONS)
def test_several_processes_equal_one_process(ranks: list[Arrays], name: str) -> None:
    expected = train_four_steps(name, None)
    for rank in ranks:
        assert expected.keys() == {key for key in rank if key.split()[0] == name}
        for key, value in expected.items():
            np.testing.assert_allclose(rank[key], value, rtol=1e-8, atol=1e-10, err_msg=key)


@pytest.mark.slow
def test_gathered_rows_keep_their_order_and_local_rows_their_gradient(ranks: list[Arrays]) -> None:
    for rank, results in enumerate(ranks):
        # Rank 0 has images 0 and 1, rank 1 image 2; two views each.
        assert results["rows"].tolist() == [[0, 0], [1, 0], [2, 0], [0, 1], [1, 1], [2, 1]]
        assert results["labels"].tolist() == [0, 1, 2, 0, 1, 2]
        expected = [[1, 2], [4, 5]] if rank == 0 else [[3], [6]]
        assert results["gradient"].tolist() == [[x, x] for view in expected for x in view]


def test_one_process_needs_no_gathering() -> None:
    rows = torch.randn(4, 2)
    assert join_rows(rows, 2) is rows


def gather_numbered_rows(rank: int) -> Arrays:
    local = [0.0, 1.0] if rank == 0 else [2.0]
    rows = torch.tensor([[x, v] for v in (0.0, 1.0) for x in local], requires_grad=True)
    joined = join_rows(rows, 2)
    (joined.sum(1) * torch.arange(1, 7)).sum().backward()
    labels = join_rows(torch.tensor(local * 2).long(), 2)
    assert rows.grad is not None
    return {
        "rows": joined.detach().numpy(),
        "labels": labels.numpy(),
        "gradient": rows.grad.numpy(),
    }


def main(rank: int, world: int, folder: Path) -> None:
    torch.set_num_threads(1)
    store = dist.FileStore(str(folder / "store"), world)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
    results = gather_numbered_rows(rank)
    for name in OPTIONS:
        results |= train_four_steps(name, rank)
    np.savez(folder / f"{rank}.npz", **results)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
