"""Stage 1: network and method learn together; the run can be taken up at any step."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from lightning_fabric import Fabric
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, default_collate

from scs_supcon.data.dataloader import explain_killed_workers, worker_context
from scs_supcon.data.dataset import ImageDataset
from scs_supcon.data.sampler import Plan, batch_keys, plan_epoch
from scs_supcon.data.transforms import ViewDataset, eval_view, seeded, train_view
from scs_supcon.errors import UserError
from scs_supcon.methods import Batch, Method, Network, Output, TaskInfo
from scs_supcon.progress import ProgressCallback
from scs_supcon.recipe import PretrainRecipe, Recipe
from scs_supcon.runs.run_dir import RunDir
from scs_supcon.training.checkpointing import CheckpointManager, ignore_signals
from scs_supcon.training.loop import (
    Hooks,
    NonFiniteLossError,
    Stage,
    TrainPosition,
    cosine_lr,
    make_optimizer,
    parameter_groups,
    train_loop,
)

LOOK_BATCH = 64


@dataclass(frozen=True)
class TrainingSet:
    """What stage 1 learns from.

    Attributes:
        names: of the training images.
        labels: class of each.
        batches: from (plan, epoch, rank, batches to skip) to batches on the CPU.
        look: shows every training image to a network, without gradients.
    """

    names: list[str]
    labels: NDArray[np.int64]
    batches: Callable[[Plan, int, int, int], Iterator[Batch]]
    look: Callable[[nn.Module], Output]


def from_images(
    images: ImageDataset, indices: NDArray[np.int64], recipe: Recipe, views: int, workers: int
) -> TrainingSet:
    """Learn from images: random views made anew for every epoch."""
    learning = ViewDataset(images, indices, train_view(recipe.data), views, recipe.seed)
    plain = ViewDataset(images, indices, eval_view(recipe.data), 1, recipe.seed)

    def batches(plan: Plan, epoch: int, rank: int, skip: int) -> Iterator[Batch]:
        keys = batch_keys(plan, epoch, rank, skip)
        for asked, (pixels, labels, _) in zip(keys, _load(learning, keys, workers), strict=True):
            positions = torch.tensor([position for _, position, _ in asked])
            yield Batch(pixels.transpose(0, 1).flatten(0, 1), labels, positions)

    def look(network: nn.Module) -> Output:
        keys = [(0, position) for position in range(len(indices))]
        cuts = [keys[k : k + LOOK_BATCH] for k in range(0, len(keys), LOOK_BATCH)]
        return _shown(network, (pixels[:, 0] for pixels, _, _ in _load(plain, cuts, workers)))

    return _training_set(images, indices, batches, look)


def from_features(
    features: Tensor, images: ImageDataset, indices: NDArray[np.int64], recipe: Recipe, views: int
) -> TrainingSet:
    """Learn from cached features `(n, 1 + views, d)`: the evaluation view, then random views.

    A few cached views are soon known by heart, so each view of a step is drawn between two of them
    and loses a share of its features.
    """
    labels = torch.from_numpy(images.labels[indices])
    how = recipe.encoder

    def batches(plan: Plan, epoch: int, rank: int, skip: int) -> Iterator[Batch]:
        for number, batch in enumerate(plan[skip:], start=skip):
            joined = torch.from_numpy(np.concatenate(batch))
            with seeded(recipe.seed, epoch, number):
                chosen = _drawn_views(features[joined], views, how.frozen_mix, how.frozen_dropout)
            start = sum(len(part) for part in batch[:rank])
            mine = slice(start, start + len(batch[rank]))
            rows = joined[mine]
            yield Batch(chosen[mine].transpose(0, 1).flatten(0, 1), labels[rows], rows)

    def look(network: nn.Module) -> Output:
        return _shown(network, torch.split(features[:, 0], 4096))

    return _training_set(images, indices, batches, look)


def _drawn_views(features: Tensor, views: int, mix: bool, dropout: float) -> Tensor:
    """Views `(n, views, d)` drawn from cached ones `(n, 1 + cached, d)`."""
    n, cached = len(features), features.shape[1] - 1
    rows = torch.arange(n)[:, None]
    # Different cached views for the views of one image, as far as there are enough.
    order = torch.rand(n, max(cached, views)).argsort(1)[:, :views] % cached + 1
    chosen = features[rows, order]
    if mix:
        other = features[rows, torch.randint(1 + cached, (n, views))]
        chosen = torch.lerp(chosen, other, torch.rand(n, views, 1))
    return nn.functional.dropout(chosen, dropout) if dropout else chosen


def _training_set(
    images: ImageDataset, indices: NDArray[np.int64], batches: Any, look: Any
) -> TrainingSet:
    names = [images.names[index] for index in indices]
    return TrainingSet(names, images.labels[indices], batches, look)


def pretrain(
    fabric: Fabric,
    run: RunDir,
    network: Network,
    method: Method,
    training: TrainingSet,
    recipe: Recipe,
    tell: ProgressCallback = lambda done, total: None,
) -> None:
    """Train network and method in place, or take them up where they were left.

    Args:
        fabric: where to compute.
        run: keeps checkpoints and metrics.
        network: encoder and projection; the encoder of a frozen run is an identity.
        method: the loss, already told its task.
        training: what to learn from.
        recipe: all numbers.
        tell: called with (steps done, steps in all).
    """
    how = recipe.pretrain
    method.to(fabric.device)
    wrapped: Any = fabric.setup_module(network.to(fabric.device))
    modules = {"network": wrapped, "method": method}
    groups = parameter_groups(modules.values(), how.lr, how.weight_decay)
    optimizer: Any = fabric.setup_optimizers(
        make_optimizer(how.optimizer, groups, how.lr, how.momentum)
    )
    plan = _planner(training.labels, how, recipe.seed, fabric.world_size)
    per_epoch = len(plan(0))
    total = how.epochs * per_epoch

    def batches(epoch: int, skip: int) -> Iterator[Batch]:
        for batch in training.batches(plan(epoch), epoch, fabric.global_rank, skip):
            yield Batch(
                *(fabric.to_device(part) for part in (batch.images, batch.labels, batch.indices))
            )

    stage = Stage(
        name="pretrain",
        modules=modules,
        losses=lambda batch: method.training_step(batch, wrapped),
        optimizer=optimizer,
        schedule=_schedule(how, per_epoch),
        batches=batches,
        epochs=how.epochs,
        clip_norm=how.clip_norm,
    )
    with CheckpointManager(run, fabric, stage) as checkpoints:

        def before_epoch(position: TrainPosition) -> None:
            method.on_epoch_start(position.epoch, training.look)

        def after_step(position: TrainPosition, terms: dict[str, float]) -> None:
            method.after_step(wrapped, position.global_step / total)
            if position.step == per_epoch:  # some tell of the last batch, unknown after a restart
                checkpoints.memo["scalars"] = method.scalars()
            checkpoints.after_step(position, terms)
            tell(position.global_step, total)

        def after_epoch(position: TrainPosition) -> None:
            rate = {"lr": stage.schedule(position.global_step)}
            values = checkpoints.means() | checkpoints.memo["scalars"] | rate
            run.append_metrics(stage.name, position.epoch, position.global_step, values)
            checkpoints.after_epoch(position)

        tell(checkpoints.position.global_step, total)
        try:
            train_loop(
                fabric, stage, checkpoints.position, Hooks(before_epoch, after_step, after_epoch)
            )
        except NonFiniteLossError as error:
            names = ", ".join(training.names[index] for index in error.indices)
            raise UserError(f"{error}\nThey are: {names}") from error
    network.eval()
    method.eval()


def task_of(
    network: Network, labels: NDArray[np.int64], classes: int, width: int, recipe: Recipe
) -> TaskInfo:
    """What the method is told before training."""
    return TaskInfo(
        network, torch.as_tensor(labels), classes, width, recipe.head.dim, recipe.pretrain.epochs
    )


def _planner(
    labels: NDArray[np.int64], how: PretrainRecipe, seed: int, world: int
) -> Callable[[int], Plan]:
    def plan(epoch: int) -> Plan:
        return plan_epoch(
            labels,
            min(how.batch_size, len(labels)),
            kind=how.batches,
            per_class=how.per_class,
            seed=seed,
            epoch=epoch,
            world=world,
        )

    return plan


def _schedule(how: PretrainRecipe, per_epoch: int) -> Callable[[int], float]:
    total = how.epochs * per_epoch
    warmup = math.ceil(how.warmup_epochs * per_epoch)
    return lambda step: cosine_lr(step, total, warmup, how.lr, how.lr * how.lr_floor)


def _load(
    dataset: ViewDataset, keys: list[Any], workers: int
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    loader = DataLoader(
        _Telling(dataset),
        batch_sampler=keys,
        num_workers=workers,
        collate_fn=_collated,
        worker_init_fn=ignore_signals,
        multiprocessing_context=worker_context(workers),
    )
    with explain_killed_workers():
        for batch in loader:
            if isinstance(batch, UserError):
                raise batch
            yield batch


@dataclass(frozen=True, eq=False)
class _Telling(Dataset[Any]):
    """Errors for people come back as values: a loader would bury them in a traceback."""

    dataset: ViewDataset

    def __getitem__(self, key: tuple[int, ...]) -> Any:
        try:
            return self.dataset[key]
        except UserError as error:
            return error


def _collated(items: list[Any]) -> Any:
    errors = (item for item in items if isinstance(item, UserError))
    return next(errors, None) or default_collate(items)


@torch.no_grad()
def _shown(network: nn.Module, parts: Any) -> Output:
    training = network.training
    network.eval()
    device = next(network.parameters()).device
    seen = [network(part.to(device)) for part in parts]
    network.train(training)
    return Output(torch.cat([s.features for s in seen]), torch.cat([s.embeddings for s in seen]))
