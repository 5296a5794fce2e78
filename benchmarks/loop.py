"""Compare our training loop with a bare PyTorch loop that does the same work.

    python benchmarks/loop.py

Both loops use the same network, batches, optimiser, schedule and clipping. They take turns, and
each turn starts from the same weights, so the losses must agree to the last bit. The script prints
the ratio of the times, ours / bare, for a head on cached features (short steps, where the overhead
of the loop matters most), for a small convolutional network, and for a tiny network, where the
difference of the two times is the overhead per step. Without clipping the bare loop never reads the
gradient; ours still checks that it is finite. Target: at most 1.03, except for the tiny network.

Times are processor times of one thread, so that other load on the machine matters little.
"""

import argparse
import math
import statistics
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from scs_supcon.runs.run_dir import RunDir
from scs_supcon.training.checkpointing import CheckpointManager
from scs_supcon.training.distributed import make_fabric
from scs_supcon.training.loop import (
    Hooks,
    Stage,
    cosine_lr,
    make_optimizer,
    parameter_groups,
    train_loop,
)

LR, WARMUP, STEPS = 0.05, 5, 25
Batch = tuple[Tensor, Tensor]


def head() -> nn.Module:
    """Two layers on the features of a frozen encoder."""
    return nn.Sequential(nn.Linear(1280, 1280), nn.ReLU(), nn.Linear(1280, 256))


def tiny() -> nn.Module:
    """A network so small that the overhead of the loop dominates."""
    return nn.Linear(16, 256)


def convolutions() -> nn.Module:
    """Three convolutions on 32-pixel images."""
    layers: list[nn.Module] = []
    for width_in, width in ((3, 32), (32, 64), (64, 128)):
        layers += [nn.Conv2d(width_in, width, 3, 2, 1), nn.BatchNorm2d(width), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 256))


def schedule(total: int) -> Callable[[int], float]:
    """Return the learning rate of both loops as a function of the step."""
    return lambda step: cosine_lr(step, total, WARMUP, LR)


def bare(network: nn.Module, data: list[Batch], clip: float) -> tuple[float, float]:
    """Train with a plain loop; return the seconds and the last loss."""
    groups = parameter_groups([network], LR, 1e-4)
    parameters = [p for group in groups for p in group["params"]]
    optimizer = torch.optim.SGD(groups, lr=LR, momentum=0.9)
    lr = schedule(len(data))
    value = math.nan
    start = time.process_time()
    for step, (images, labels) in enumerate(data):
        for group in optimizer.param_groups:
            group["lr"] = lr(step)
        optimizer.zero_grad()
        loss = F.cross_entropy(network(images), labels)
        loss.backward()
        if clip:
            nn.utils.clip_grad_norm_(parameters, clip)
        optimizer.step()
        value = loss.item()
    return time.process_time() - start, value


def ours(network: nn.Module, data: list[Batch], clip: float) -> tuple[float, float]:
    """Train with our loop and checkpoints; return the seconds and the last loss."""
    fabric = make_fabric("cpu")
    optimizer = make_optimizer("sgd", parameter_groups([network], LR, 1e-4), LR)
    wrapped, optimizer = fabric.setup(network, optimizer)
    values: list[float] = []

    def batches(_: int, skip: int) -> Iterable[Batch]:
        return data[skip:]

    stage = Stage(
        name="pretrain",
        modules={"network": wrapped},
        losses=lambda batch: {"loss": F.cross_entropy(wrapped(batch[0]), batch[1])},
        optimizer=optimizer,
        schedule=schedule(len(data)),
        batches=batches,
        epochs=1,
        clip_norm=clip,
    )
    with (
        TemporaryDirectory() as folder,
        RunDir.open(Path(folder) / "run", "seed = 0\n") as run,
        CheckpointManager(run, fabric, stage) as checkpoints,
    ):

        def after_step(position, terms):  # type: ignore[no-untyped-def]
            values.append(terms["loss"])
            checkpoints.after_step(position, terms)

        start = time.process_time()
        train_loop(fabric, stage, checkpoints.position, Hooks(after_step=after_step))
        seconds = time.process_time() - start
    return seconds, values[-1]


def compare(
    name: str, build: Callable[[], nn.Module], images: Tensor, clip: float, turns: int
) -> None:
    """Run the two loops in turns and print the ratio of their times."""
    data = [(images, torch.randint(256, (len(images),))) for _ in range(STEPS)]
    times: dict[Callable[..., tuple[float, float]], list[float]] = {ours: [], bare: []}
    for turn in range(turns + 1):
        losses = {}
        for loop in (ours, bare) if turn % 2 else (bare, ours):
            torch.manual_seed(0)
            seconds, losses[loop] = loop(build(), data, clip)
            if turn:  # the first turn is a warm-up
                times[loop].append(1000 * seconds / STEPS)
        assert losses[ours] == losses[bare], losses
    ratios = [a / b for a, b in zip(times[ours], times[bare], strict=True)]
    print(
        f"{name:<20} best step: bare {min(times[bare]):6.2f} ms, ours {min(times[ours]):6.2f} ms, "
        f"ratio {min(times[ours]) / min(times[bare]):.3f}; "
        f"median ratio of {turns} turns {statistics.median(ratios):.3f}"
    )


def main() -> None:
    """Print one line per network."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--turns", type=int, default=7)
    turns = parser.parse_args().turns
    torch.set_num_threads(1)
    torch.manual_seed(0)
    features, images = torch.randn(256, 1280), torch.randn(128, 3, 32, 32)
    compare("head on features", head, features, 1.0, turns)
    compare("head, no clipping", head, features, 0.0, turns)
    compare("small convolutions", convolutions, images, 1.0, turns)
    compare("tiny network", tiny, torch.randn(8, 16), 1.0, turns)


if __name__ == "__main__":
    main()
