"""Weights and several labels per row: several processes equal one process with the joined batch.

Run by pytest this file starts itself as `test_gathered_weights.py RANK WORLD FOLDER`, one per rank.
"""

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from scs_supcon import CSSupCon, SCSSupCon, SupCon
from scs_supcon.errors import UserError
from scs_supcon.kernels import Gather
from scs_supcon.methods.shared.pair_loss import PairLoss

SIZES = [(5, 8), (0, 7)]
WEIGHTS = [1.0, 0.5, 2.0, 0.25]
LOSSES: dict[str, Callable[..., PairLoss]] = {
    "learned": lambda **options: SCSSupCon(preset="learned", beta=0.2, **options),
    "solved": SCSSupCon,
    "supcon": SupCon,
    "cs_supcon": CSSupCon,
}


def batch(n: int) -> dict[str, Tensor]:
    source = torch.Generator().manual_seed(n)
    return {
        "z": torch.randn(n, 2, 8, generator=source, dtype=torch.float64),
        "labels": torch.randint(0, 4, (n,), generator=source),
        "hot": torch.randint(0, 2, (n, 4), generator=source),
        "weights": torch.rand(n, generator=source, dtype=torch.float64),
    }


def results(sizes: tuple[int, ...], rank: int | None, reduction: str) -> dict[str, np.ndarray]:
    """Return values and gradients of this rank's rows, or of all rows if there is no rank."""
    start = 0 if rank is None else sum(sizes[:rank])
    rows = slice(start, sum(sizes) if rank is None else start + sizes[rank])
    part = {name: x[rows] for name, x in batch(sum(sizes)).items()}
    gather = Gather(gradient_reduction=reduction) if rank is not None else False
    arrays = {}
    for name, make in LOSSES.items():
        for case, options, arguments in (
            ("sample weights", {}, (part["labels"], part["weights"])),
            (
                "class weights",
                {"class_weights": WEIGHTS, "ignore_index": 3},
                (part["labels"], None),
            ),
            ("several labels", {}, (part["hot"], part["weights"])),
        ):
            loss = make(**options, gather_across_devices=gather)
            z = part["z"].clone().requires_grad_()
            labels, *weights = arguments
            value = loss(z, labels, sample_weights=weights[0] if weights else None)
            value.backward()
            assert z.grad is not None
            key = f"{sizes} {name}, {case}"
            arrays |= {f"{key}: value": value.detach().numpy(), f"{key}: rows": z.grad.numpy()}
            arrays |= {
                f"{key}: by {k}": p.grad.numpy()
                for k, p in loss.named_parameters()
                if p.grad is not None
            }
    return arrays


def test_weights_of_gathered_rows(on_ranks) -> None:
    ranks = on_ranks(__file__, 2)
    for sizes in SIZES:
        for name, expected in results(sizes, None, "sum").items():
            parts = [rank[f"sum {name}"] for rank in ranks]
            if name.endswith(": rows"):
                np.testing.assert_allclose(np.concatenate(parts), expected, rtol=1e-9, atol=1e-14)
                doubled = np.concatenate([rank[f"mean {name}"] for rank in ranks])
                np.testing.assert_allclose(doubled, 2 * expected, rtol=1e-9, atol=1e-14)
            else:
                for part in parts:
                    np.testing.assert_allclose(part, expected, rtol=1e-9, atol=1e-14, err_msg=name)


def check_errors() -> None:
    n = 4
    z, labels = torch.randn(n, 8), torch.arange(n) // 2
    loss = SCSSupCon(gather_across_devices=True)
    for options in ({"pair_weights": torch.ones(n, n)}, {"pair_targets": torch.eye(n)}):
        with pytest.raises(UserError, match="cannot be combined with pair_targets"):
            loss(z, None if "pair_targets" in options else labels, **options)
    with pytest.raises(UserError, match='reduction="none"'):
        SCSSupCon(gather_across_devices=True, reduction="none")(z, labels)


if __name__ == "__main__":
    rank, world, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    torch.set_num_threads(1)
    store = dist.FileStore(str(folder / "store"), world)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
    arrays = {
        f"{reduction} {name}": x
        for reduction in ("sum", "mean")
        for sizes in SIZES
        for name, x in results(sizes, rank, reduction).items()
    }
    check_errors()
    np.savez(folder / f"{rank}.npz", **arrays)
    dist.destroy_process_group()
