"""Describe a run before it starts: data, batches, and the estimated cost of stage 1."""

import copy
import math
import time
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from scs_supcon.data.dataset import SPLITS, ImageDataset, Problem, problem_title
from scs_supcon.data.sampler import plan_epoch, positives_per_anchor, share_without_positives
from scs_supcon.data.splits import UNUSED
from scs_supcon.methods import Batch, Method, Network
from scs_supcon.progress import format_estimate
from scs_supcon.recipe import Recipe
from scs_supcon.training.pretrain import TrainingSet

SAMPLE = 16  # images used to time a step


@dataclass(frozen=True)
class StageCost:
    """Estimated seconds of stage 1, and bytes of memory per step."""

    seconds: float
    bytes: int


def describe_data(
    images: ImageDataset, splits: NDArray[np.str_], problems: Sequence[Problem]
) -> str:
    """Return a text with the number of images, classes and problems."""
    counts = Counter(splits.tolist())
    sizes = ", ".join(f"{counts[name]:,} {name}" for name in (*SPLITS, UNUSED) if counts[name])
    lines = [f"data      {len(images):,} images of {len(images.classes)} classes: {sizes}"]
    kinds = Counter(problem.kind for problem in problems)
    for kind, count in sorted(kinds.items()):
        first = next(problem for problem in problems if problem.kind == kind)
        lines.append(f"problem   {problem_title(kind)}: {count}, first {first.name}")
    return "\n".join(lines)


def describe_batches(labels: NDArray[np.int64], recipe: Recipe, views: int) -> str:
    """Return a text with the number of batches and of positives per anchor."""
    settings = recipe.pretrain
    size = min(settings.batch_size, len(labels))
    plan = plan_epoch(
        labels,
        size,
        kind=settings.batches,
        per_class=settings.per_class,
        seed=recipe.seed,
        epoch=0,
    )
    positives = positives_per_anchor(labels, plan)
    without_positives = share_without_positives(labels, plan)
    kinds = {"shuffle": "shuffled", "balanced": f"balanced, {settings.per_class} per class"}
    kind = kinds.get(settings.batches, f"long tail, {settings.per_class} per class")
    return (
        f"batches   {len(plan)} per epoch, about {size} images × {views} views each, {kind}\n"
        f"pairs     {positives:.1f} other images of the same class per anchor; none for "
        f"{without_positives:.1%} of the anchors"
    )


def describe_erasure(directions: int, classes: int, frozen: bool) -> str:
    """Return a text on the input of the style field, given the number of erased directions."""
    if not frozen:
        return "style     from features without the class, fitted after stage 1"
    if directions:
        return f"style     from features without the class ({directions} directions are erased)"
    return f"style     from all features, because {classes} classes are too many to erase"


def describe_stage_1(
    network: Network,
    method: Method,
    training_set: TrainingSet,
    recipe: Recipe,
    device: torch.device,
    order: str = "",
) -> str:
    """Time a step of stage 1; return a text with the estimated duration and memory.

    `order` is "first " or "then " if stage 1 has two phases.
    """
    settings, images = recipe.pretrain, len(training_set.labels)
    size = min(settings.batch_size, images)
    batch = next(training_set.batches([[np.arange(min(SAMPLE, size))]], 0, 0, 0))
    steps = settings.epochs * -(-images // size)
    cost = estimate_stage_1(network, method, batch, size, steps, device)
    trained = "head on cached features" if recipe.encoder.frozen else "whole network"
    epochs = f"{settings.epochs} epoch{'s' * (settings.epochs != 1)}"
    if settings.patience:
        epochs = f"at most {epochs}"
    text = (
        f"stage 1   {order}{epochs} of {recipe.method.name}, {trained}: "
        f"{format_estimate(cost.seconds)}, {cost.bytes / 2**20:,.0f} MiB of memory per step"
    )
    if not (recipe.encoder.frozen and recipe.fusion.out_of_fold):
        return text
    folds = recipe.fusion.folds
    return (
        f"{text}\nfolds     {folds} more times without a fold of the images, to calibrate: "
        f"{format_estimate((folds - 1) * cost.seconds)}; --set fusion.folds=0 saves this"
    )


def estimate_stage_1(
    network: Network, method: Method, batch: Batch, size: int, steps: int, device: torch.device
) -> StageCost:
    """Return the estimated cost of stage 1 from one timed step with a few images.

    The step uses copies of network and method on the device of training: processes that
    communicate through GPUs cannot use CPUs. Micro-batches need less memory, but a second forward
    pass.

    Args:
        network: is not changed.
        method: is not changed.
        batch: at least one image.
        size: images per step.
        steps: number of steps of stage 1.
        device: the device of training.
    """
    count = min(SAMPLE, len(batch.labels))
    views = len(batch.images) // len(batch.labels)
    rows = torch.cat([torch.arange(count) + view * len(batch.labels) for view in range(views)])
    soft = batch.label_probabilities
    sample = Batch(
        batch.images[rows],
        batch.labels[:count],
        batch.indices[:count],
        None if soft is None else soft[:count],
    ).map(lambda tensor: tensor.to(device))
    saved_bytes = 0

    def count_bytes(tensor: Tensor) -> Tensor:
        nonlocal saved_bytes
        saved_bytes += tensor.numel() * tensor.element_size()
        return tensor

    trial_network = copy.deepcopy(network).train().to(device)
    trial_method = copy.deepcopy(method).train().to(device)
    trial_network.micro_batch = 0
    seconds = 0.0
    for _ in range(2):  # the first pass also loads libraries
        saved_bytes, start = 0, time.perf_counter()
        with (
            warnings.catch_warnings(action="ignore"),  # a few images may have no pairs
            torch.random.fork_rng([device] if device.type == "cuda" else []),
            torch.autograd.graph.saved_tensors_hooks(count_bytes, _identity),
        ):
            terms = trial_method.training_step(sample, trial_network)
        torch.autograd.backward(torch.stack(tuple(terms.values())).sum())
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        seconds = time.perf_counter() - start
    scale = size / count
    share = min(1.0, (network.micro_batch or math.inf) / (size * views))
    seconds *= 4 / 3 if share < 1 else 1
    weights = sum(p.numel() * p.element_size() for p in network.parameters())
    # Values, gradients and momentum take three times the memory of the weights.
    return StageCost(seconds * scale * steps, int(saved_bytes * scale * share) + 3 * weights)


def _identity(tensor: Any) -> Any:
    return tensor
