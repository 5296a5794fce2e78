"""Before the first epoch: what training will look like, in a few lines."""

import copy
import math
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from scs_supcon.data.dataset import ImageDataset, Problem, problem_title
from scs_supcon.data.sampler import plan_epoch, positives_per_anchor, share_without_positives
from scs_supcon.methods import Batch, Method, Network
from scs_supcon.progress import spell_seconds
from scs_supcon.recipe import Recipe

FEW = 16  # images that are enough to time a step by


@dataclass(frozen=True)
class Cost:
    """Of stage 1, estimated from a few images."""

    seconds: float
    bytes: int


def describe_data(
    images: ImageDataset, splits: NDArray[np.str_], problems: Iterable[Problem]
) -> list[str]:
    """Count images, classes and problems."""
    parts = Counter(splits.tolist())
    shares = ", ".join(
        f"{parts[name]:,} {name}" for name in ("train", "val", "test") if parts[name]
    )
    lines = [f"data      {len(images):,} images of {len(images.classes)} classes: {shares}"]
    kinds = Counter(problem.kind for problem in problems)
    for kind, count in sorted(kinds.items()):
        first = next(problem for problem in problems if problem.kind == kind)
        lines.append(f"problem   {problem_title(kind)}: {count}, first {first.name}")
    return lines


def describe_batches(labels: NDArray[np.int64], recipe: Recipe, views: int) -> list[str]:
    """Say how many classmates an anchor meets in a batch."""
    how = recipe.pretrain
    size = min(how.batch_size, len(labels))
    plan = plan_epoch(
        labels, size, kind=how.batches, per_class=how.per_class, seed=recipe.seed, epoch=0
    )
    mates, alone = positives_per_anchor(labels, plan), share_without_positives(labels, plan)
    kind = {"shuffle": "shuffled", "balanced": f"balanced, {how.per_class} of a class"}
    text = kind.get(how.batches, f"long tail, {how.per_class} of a class")
    return [
        f"batches   {len(plan)} of about {size} images × {views} views, {text}",
        f"pairs     {mates:.1f} other images of its class per anchor; "
        f"{alone:.1%} of the anchors have only their own views",
    ]


def describe_cost(cost: Cost, recipe: Recipe) -> list[str]:
    """Say how long stage 1 will take and what it will hold."""
    what = "head on cached features" if recipe.encoder.frozen else "whole network"
    return [
        f"stage 1   {recipe.pretrain.epochs} epochs of {recipe.method.name}, {what}: about "
        f"{spell_seconds(cost.seconds)} and {cost.bytes / 2**20:,.0f} MiB for a step"
    ]


def estimate(
    network: Network, method: Method, batch: Batch, size: int, steps: int, device: torch.device
) -> Cost:
    """Time one forward and backward pass of a few images, on copies that are thrown away.

    They compute where training will: processes that are joined through GPUs cannot be on CPUs.

    A micro-batch holds as much as it has views, and costs one more forward pass.
    """
    few = min(FEW, len(batch.labels))
    views = len(batch.images) // len(batch.labels)
    rows = torch.cat([torch.arange(few) + view * len(batch.labels) for view in range(views)])
    parts = batch.images[rows], batch.labels[:few], batch.indices[:few]
    sample = Batch(*(part.to(device) for part in parts))
    held = 0

    def note(tensor: Tensor) -> Tensor:
        nonlocal held
        held += tensor.numel() * tensor.element_size()
        return tensor

    trial_network = copy.deepcopy(network).train().to(device)
    trial_method = copy.deepcopy(method).train().to(device)
    trial_network.micro_batch = 0
    seconds = 0.0
    for _ in range(2):  # the first pass also loads libraries
        held, start = 0, time.perf_counter()
        with (
            torch.random.fork_rng([device] if device.type == "cuda" else []),
            torch.autograd.graph.saved_tensors_hooks(note, _same),
        ):
            terms = trial_method.training_step(sample, trial_network)
        torch.autograd.backward(torch.stack(tuple(terms.values())).sum())
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        seconds = time.perf_counter() - start
    larger = size / few
    share = min(1.0, (network.micro_batch or math.inf) / (size * views))
    seconds *= 4 / 3 if share < 1 else 1
    weights = sum(p.numel() * p.element_size() for p in network.parameters())
    return Cost(seconds * larger * steps, int(held * larger * share) + 3 * weights)


def _same(tensor: Any) -> Any:
    return tensor
