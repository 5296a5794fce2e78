"""Describe a run before it starts: data, batches, and the estimated cost of stage 1."""

import copy
import math
import time
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, distributed

from scs_supcon.data.dataset import SPLITS, ImageDataset, Problem, problem_title
from scs_supcon.data.sampler import plan_epoch, positives_per_anchor, share_without_positives
from scs_supcon.data.splits import UNUSED
from scs_supcon.errors import UserError
from scs_supcon.io.records import memory_bytes
from scs_supcon.methods import Batch, Method, Network
from scs_supcon.nn.build import network_shapes
from scs_supcon.nn.style import can_erase
from scs_supcon.progress import format_estimate
from scs_supcon.recipe import PretrainRecipe, Recipe
from scs_supcon.recipe.encoders import SMALL_IMAGE
from scs_supcon.training.pretrain import TrainingSet

SAMPLE = 16  # images used to measure memory
QUICK_STEP = 1.0  # seconds up to which whole batches are timed
REPEATS = 3
LARGE_BATCH = 1024  # images from which the rules for learning rates are shown
LARS_BATCH = 4096  # images from which SGD often needs LARS
RULE_BATCH, LARS_RATE = 256, 0.3
FEW_PER_CLASS = 5  # training images of a class, on average, below which there is a caution


@dataclass(frozen=True)
class StageCost:
    """Estimated seconds of stage 1, and bytes of memory per step."""

    seconds: float
    bytes: int


class CostLine(NamedTuple):
    """The estimated cost of stage 1 as text, and the seconds of the training that follows it."""

    text: str
    later: float


def check_memory(recipe: Recipe, images: int, views: int) -> None:
    """Raise an error if a recipe cannot fit into the memory of this machine.

    The estimate leaves much out, so that it rejects impossible values only.

    Args:
        recipe: the settings.
        images: number of images of the dataset.
        views: views of an image in a batch of stage 1.
    """
    numbers = sum(
        math.prod(shape) for shapes in network_shapes(recipe).values() for shape in shapes.values()
    )
    batch = min(recipe.pretrain.batch_size, images) * views * 3 * recipe.data.image_size**2
    batch = 0 if recipe.encoder.frozen else batch
    stored = recipe.encoder.frozen_views if recipe.encoder.frozen else recipe.probe.views
    width = recipe.head.heads * recipe.head.dim
    widths = "head.heads, head.common_dim, head.style_dim, head.hidden"
    needs = {
        # Values, gradients and momentum.
        f"the weights of the network (encoder.name, {widths})": 3 * numbers,
        "a batch of images (pretrain.batch_size, data.image_size)": batch,
        f"the embeddings (probe.views, encoder.frozen_views, {widths})": images * stored * width,
    }
    memory = memory_bytes()
    for what, count in needs.items():
        if 4 * count > memory:
            raise UserError(
                f"{what} would take {4 * count / 2**30:,.0f} GiB, but this machine has "
                f"{memory / 2**30:,.0f} GiB of memory: use smaller values"
            )


def describe_data(
    images: ImageDataset, splits: NDArray[np.str_], problems: Sequence[Problem]
) -> str:
    """Return a text with the number of images, classes and problems."""
    counts = Counter(splits.tolist())
    sizes = ", ".join(f"{counts[name]:,} {name}" for name in (*SPLITS, UNUSED) if counts[name])
    lines = [f"data      {len(images):,} images of {len(images.classes)} classes: {sizes}"]
    if counts["train"] < FEW_PER_CLASS * len(images.classes):
        lines.append(
            f"caution   {counts['train']} training images of {len(images.classes)} classes are "
            f"few: expect unreliable results with less than {FEW_PER_CLASS} per class"
        )
    kinds = Counter(problem.kind for problem in problems)
    for kind, count in sorted(kinds.items()):
        first = next(problem for problem in problems if problem.kind == kind)
        lines.append(f"problem   {problem_title(kind)}: {count}, first {first.name}")
    return "\n".join(lines)


def describe_batches(labels: NDArray[np.int64], recipe: Recipe, views: int) -> str:
    """Return a text with the batches, positives per anchor, and usual rates of large batches."""
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
    text = (
        f"batches   {len(plan)} per epoch, about {size} images × {views} view{'s' * (views != 1)} "
        f"each, {kind}\n"
        f"pairs     {positives:.1f} other images of the same class per anchor; none for "
        f"{without_positives:.1%} of the anchors"
    )
    rates = describe_large_batches(settings, len(labels))
    return f"{text}\n{rates}" if rates else text


def describe_large_batches(settings: PretrainRecipe, images: int) -> str:
    """Return the learning rates that are usual for large batches; empty for small ones.

    A rate that suits batches of 256 images is multiplied by k = N/256 for SGD and LARS, with a
    warm-up (Goyal et al., 2017), and by √k for AdamW, whose steps do not grow with the gradient.
    The rate for 256 images is 0.3 for LARS (Chen et al., 2020), for SGD the default of the recipe.
    """
    size = min(settings.batch_size, images)
    if size < LARGE_BATCH:
        return ""
    k = size / RULE_BATCH
    linear = settings.optimizer != "adamw"
    if linear:
        start = LARS_RATE if settings.optimizer == "lars" else PretrainRecipe().lr
        usual = f"the linear rule gives {start * k:.3g} ({start:g} × {size:,}/{RULE_BATCH})"
    else:  # no rate suits all networks
        usual = f"the square root rule multiplies a rate for {RULE_BATCH} images by {k**0.5:.3g}"
    warm_up = f", {settings.warmup_epochs:g} epochs of warm-up" if linear else ""
    advice = "" if settings.optimizer != "sgd" or size < LARS_BATCH else "; try optimizer=lars"
    return (
        f"rate      {settings.lr:g} for batches of {size:,} images{warm_up}; {usual}; "
        f"set it with --set pretrain.lr=VALUE{advice}"
    )


def describe_style(classes: int, width: int) -> str:
    """Return a text on the input of a fitted style field: features with `width` columns."""
    if can_erase(classes, width):
        return "style     from features without the class, fitted after stage 1"
    return f"style     from all features, because {classes} classes are too many to erase"


def describe_stage_1(
    network: Network,
    method: Method,
    training_set: TrainingSet,
    recipe: Recipe,
    device: torch.device,
    order: str = "",
    folds: int = 0,
) -> CostLine:
    """Time a few steps of stage 1; return the estimated duration and memory.

    Args:
        network: what is trained.
        method: its loss.
        training_set: the images or features.
        recipe: of the run.
        device: where to compute.
        order: "first " or "then " if stage 1 has two phases.
        folds: number of folds of the images without each of which the training is repeated.
    """
    settings, images = recipe.pretrain, len(training_set.labels)
    if not settings.epochs:
        return CostLine("caution   stage 1 has 0 epochs: the head keeps its random weights", 0.0)
    size = min(settings.batch_size, images)
    # Cached features and small images are cheap: real batches. Large images: a part of a batch.
    is_cheap = recipe.encoder.frozen or recipe.data.image_size <= SMALL_IMAGE
    count = size if is_cheap else min(SAMPLE, size)
    rows = np.linspace(0, images - 1, count).astype(np.int64)
    batch = next(training_set.batches([[rows]], 0, 0, 0))
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
    if not folds:
        if recipe.encoder.frozen and recipe.fusion.out_of_fold:
            text += "\nfolds     none can be held out; the validation images are used to calibrate"
        return CostLine(text, 0.0)
    later = (folds - 1) * cost.seconds
    text = (
        f"{text}\nfolds     {folds} more times without a fold of the images, to calibrate: "
        f"{format_estimate(later)}; --set fusion.folds=0 saves this"
    )
    return CostLine(text, later)


def estimate_stage_1(
    network: Network, method: Method, batch: Batch, size: int, steps: int, device: torch.device
) -> StageCost:
    """Return the estimated cost of stage 1.

    Memory is measured with a few images. If a step with the whole batch is quick, several are
    timed, because a step takes some time with any number of images; otherwise the time of a few
    images is scaled. The steps use copies of network and method on the device of training:
    processes that communicate through GPUs cannot use CPUs. Micro-batches need less memory, but a
    second forward pass.

    Args:
        network: is not changed.
        method: is not changed.
        batch: at least one image.
        size: images per step.
        steps: number of steps of stage 1.
        device: the device of training.
    """
    available = len(batch.labels)
    count = min(SAMPLE, available)
    views = len(batch.images) // available
    whole, sample = (_first_images(batch, n, device) for n in (available, count))
    saved_bytes = 0

    def count_bytes(tensor: Tensor) -> Tensor:
        nonlocal saved_bytes
        saved_bytes += tensor.numel() * tensor.element_size()
        return tensor

    trial_network = copy.deepcopy(network).train().to(device)
    trial_method = copy.deepcopy(method).train().to(device)
    trial_network.micro_batch = 0
    with torch.autograd.graph.saved_tensors_hooks(count_bytes, _identity):
        _time_step(trial_method, trial_network, sample, device)  # also loads libraries
    seconds = _time_step(trial_method, trial_network, sample, device) * size / count
    # Steps exchange rows and sums: either all processes time more of them, or none does.
    if _slowest(seconds * available / size, device) < QUICK_STEP:
        times = [_time_step(trial_method, trial_network, whole, device) for _ in range(REPEATS)]
        seconds = sorted(times)[REPEATS // 2] * size / available
    share = min(1.0, (network.micro_batch or math.inf) / (size * views))
    seconds *= 4 / 3 if share < 1 else 1
    weights = sum(p.numel() * p.element_size() for p in network.parameters())
    memory = int(saved_bytes * size / count * share)
    # Values, gradients and momentum take three times the memory of the weights.
    return StageCost(seconds * steps, memory + 3 * weights)


def _slowest(seconds: float, device: torch.device) -> float:
    """Return the largest value of all processes."""
    if not (distributed.is_available() and distributed.is_initialized()):
        return seconds
    largest = torch.tensor(seconds, dtype=torch.float32, device=device)
    distributed.all_reduce(largest, distributed.ReduceOp.MAX)
    return float(largest)


def _first_images(batch: Batch, count: int, device: torch.device) -> Batch:
    """Return the views of the first images of a batch, on the device of training."""
    n = len(batch.labels)
    views = len(batch.images) // n
    rows = torch.cat([torch.arange(count) + view * n for view in range(views)])
    soft = batch.label_probabilities
    return Batch(
        batch.images[rows],
        batch.labels[:count],
        batch.indices[:count],
        None if soft is None else soft[:count],
    ).map(lambda tensor: tensor.to(device))


def _time_step(method: Method, network: Network, batch: Batch, device: torch.device) -> float:
    """Return the seconds of a forward and backward pass; the random state is kept."""
    start = time.perf_counter()
    with (
        warnings.catch_warnings(action="ignore"),  # a few images may have no pairs
        torch.random.fork_rng([device] if device.type == "cuda" else []),
    ):
        terms = method.training_step(batch, network)
        torch.autograd.backward(torch.stack(tuple(terms.values())).sum())
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - start


def _identity(tensor: Any) -> Any:
    return tensor
