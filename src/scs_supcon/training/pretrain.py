"""Stage 1: train network and method together. Training can be resumed at any step."""

import math
from collections.abc import Callable, Iterable, Iterator
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
from scs_supcon.data.small_images import SmallImages, load_small_images
from scs_supcon.data.transforms import ViewDataset, eval_view, seeded, train_view
from scs_supcon.errors import UserError
from scs_supcon.methods import (
    Batch,
    Method,
    Network,
    Output,
    TaskInfo,
    build_method,
    check_soft_labels,
    method_class,
    probe_input_for,
)
from scs_supcon.methods.shared.common_style import CommonStyleMethod
from scs_supcon.methods.shared.heads import HeadEnsemble
from scs_supcon.methods.shared.memory_bank import MemoryBank
from scs_supcon.methods.shared.pair_loss import PairLoss
from scs_supcon.methods.shared.with_classifier import WithClassifier
from scs_supcon.nn.style import remove_style
from scs_supcon.progress import Display
from scs_supcon.recipe import PretrainRecipe, Recipe
from scs_supcon.runs.metrics_log import STEP_METRICS
from scs_supcon.runs.run_dir import RunDir
from scs_supcon.training.checkpointing import CheckpointManager, StageMemo, ignore_signals
from scs_supcon.training.failed_step import store_failed_step
from scs_supcon.training.layer_rates import encoder_rates
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
from scs_supcon.training.mixing import mix_batch
from scs_supcon.training.monitor import StageMonitor
from scs_supcon.training.validation import (
    ValidationSet,
    first_of_each_class,
    validation_accuracy,
)
from scs_supcon.training.weight_copy import FinalWeights

EVAL_BATCH = 64
LOGGED_STEPS = 1000  # at most about twice as many: t and b are read from the device


@dataclass(frozen=True)
class TrainingSet:
    """Training data of stage 1.

    Attributes:
        names: of the training images.
        labels: class of each.
        classes: number of classes; some may have no training image.
        batches: (plan, epoch, rank, number of batches to skip) -> batches on the CPU.
        apply_network: network -> its output for the evaluation view of every training image.
    """

    names: list[str]
    labels: NDArray[np.int64]
    classes: int
    batches: Callable[[Plan, int, int, int], Iterator[Batch]]
    apply_network: Callable[[nn.Module], Output]


def training_set_from_images(
    images: ImageDataset, indices: NDArray[np.int64], recipe: Recipe, views: int, workers: int
) -> TrainingSet:
    """Return a training set of images with new random views in every epoch.

    Small images are held in memory, and their views are made for a whole batch at once.
    """
    small = load_small_images(images, indices, recipe.data)
    batches = (
        _batches_from_files(images, indices, recipe, views, workers)
        if small is None
        else _batches_from_memory(small, images.labels[indices], recipe.seed, views)
    )
    names = [images.names[index] for index in indices]
    apply_network = _apply_to_images(images, indices, recipe, workers, small)
    count = len(images.classes)
    return TrainingSet(names, images.labels[indices], count, batches, apply_network)


def _batches_from_files(
    images: ImageDataset, indices: NDArray[np.int64], recipe: Recipe, views: int, workers: int
) -> Callable[[Plan, int, int, int], Iterator[Batch]]:
    train_views = ViewDataset(images, indices, train_view(recipe.data), views, recipe.seed)

    def batches(plan: Plan, epoch: int, rank: int, skip: int) -> Iterator[Batch]:
        keys = batch_keys(plan, epoch, rank, skip)
        loaded = _load(train_views, keys, workers)
        for batch, (pixels, labels, _) in zip(keys, loaded, strict=True):
            positions = torch.tensor([position for _, position, _ in batch])
            yield Batch(pixels.transpose(0, 1).flatten(0, 1), labels, positions)

    return batches


def _batches_from_memory(
    small: SmallImages, labels: NDArray[np.int64], seed: int, views: int
) -> Callable[[Plan, int, int, int], Iterator[Batch]]:
    def batches(plan: Plan, epoch: int, rank: int, skip: int) -> Iterator[Batch]:
        for keys in batch_keys(plan, epoch, rank, skip):
            _, positions, copies = np.array(keys).T
            pixels = small.random_views(positions, copies, views, seed, epoch)
            yield Batch(pixels, torch.from_numpy(labels[positions]), torch.from_numpy(positions))

    return batches


def validation_set_from_images(
    images: ImageDataset,
    train: NDArray[np.int64],
    val: NDArray[np.int64],
    recipe: Recipe,
    workers: int,
) -> ValidationSet:
    """Return the validation images and a few training images of each class."""
    references = train[first_of_each_class(images.labels[train])]
    indices = np.concatenate([references, val])
    labels = torch.from_numpy(images.labels[indices])
    small = load_small_images(images, indices, recipe.data)
    apply_network = _apply_to_images(images, indices, recipe, workers, small)
    return ValidationSet(labels, len(references), apply_network)


def validation_set_from_features(
    train: tuple[Tensor, Tensor], val: tuple[Tensor, Tensor]
) -> ValidationSet:
    """Return the features (n, d) and labels of all training images and of validation images."""
    features, labels = (torch.cat(parts) for parts in zip(train, val, strict=True))

    def apply_network(network: nn.Module) -> Output:
        return _apply_in_eval_mode(network, torch.split(features, 4096))

    return ValidationSet(labels, len(train[0]), apply_network)


def _apply_to_images(
    images: ImageDataset,
    indices: NDArray[np.int64],
    recipe: Recipe,
    workers: int,
    small: SmallImages | None,
) -> Callable[[nn.Module], Output]:
    """Return a function that applies a network to the evaluation view of each image."""
    eval_views = ViewDataset(images, indices, eval_view(recipe.data), 1, recipe.seed)
    crops = None

    def apply_network(network: nn.Module) -> Output:
        nonlocal crops
        if small is not None:
            crops = small.eval_crops() if crops is None else crops
            chunks_of_crops = torch.split(crops, EVAL_BATCH)
            return _apply_in_eval_mode(network, map(small.normalise, chunks_of_crops))
        keys = [(0, position) for position in range(len(indices))]
        chunks = [keys[k : k + EVAL_BATCH] for k in range(0, len(keys), EVAL_BATCH)]
        loaded = _load(eval_views, chunks, workers)
        return _apply_in_eval_mode(network, (pixels[:, 0] for pixels, _, _ in loaded))

    return apply_network


def training_set_from_features(
    features: Tensor,
    images: ImageDataset,
    indices: NDArray[np.int64],
    recipe: Recipe,
    views: int,
    rows_of: Tensor | None = None,
) -> TrainingSet:
    """Return a training set of cached features (n, 1 + views, d), the evaluation view first.

    `rows_of` holds the row of each image if the features also have rows of other images: the
    features may be mapped to a file that is larger than the memory, and are not copied.

    A network would soon memorise the few cached views, so each view of a step is a random mixture
    of two of them, with a share of its features dropped.
    """
    labels = torch.from_numpy(images.labels[indices])
    encoder = recipe.encoder

    def batches(plan: Plan, epoch: int, rank: int, skip: int) -> Iterator[Batch]:
        for number, batch in enumerate(plan[skip:], start=skip):
            joined = torch.from_numpy(np.concatenate(batch))
            with seeded(recipe.seed, epoch, number):
                batch_features = features[joined if rows_of is None else rows_of[joined]]
                sampled = _sample_views(
                    batch_features, views, encoder.frozen_mix, encoder.frozen_dropout
                )
            start = sum(len(rows) for rows in batch[:rank])
            local = slice(start, start + len(batch[rank]))
            rows = joined[local]
            yield Batch(sampled[local].transpose(0, 1).flatten(0, 1), labels[rows], rows)

    def apply_network(network: nn.Module) -> Output:
        numbers = torch.arange(len(features)) if rows_of is None else rows_of
        chunks = (features[chunk, 0] for chunk in torch.split(numbers, 4096))
        return _apply_in_eval_mode(network, chunks)

    names = [images.names[index] for index in indices]
    count = len(images.classes)
    return TrainingSet(names, images.labels[indices], count, batches, apply_network)


def _sample_views(features: Tensor, views: int, mix: bool, dropout: float) -> Tensor:
    """Sample views (n, views, d) from cached ones (n, 1 + cached, d)."""
    n, cached = len(features), features.shape[1] - 1
    rows = torch.arange(n)[:, None]
    # The views of an image use different cached views if there are enough.
    order = torch.rand(n, max(cached, views)).argsort(1)[:, :views] % cached + 1
    sampled = features[rows, order]
    if mix:
        other = features[rows, torch.randint(1 + cached, (n, views))]
        sampled = torch.lerp(sampled, other, torch.rand(n, views, 1))
    return nn.functional.dropout(sampled, dropout) if dropout else sampled


def make_method(recipe: Recipe, world_size: int = 1) -> Method:
    """Return the method of a recipe; the head's dimensions define its fields."""
    options: dict[str, Any] = dict(recipe.method.options)
    if issubclass(method_class(recipe.method.name), CommonStyleMethod):
        options = {"common_dim": recipe.head.common_dim, "overlap": recipe.head.overlap} | options
    members = [
        build_method(recipe.method.name, recipe.method.preset, **options)
        for _ in range(recipe.head.heads)
    ]
    if recipe.pretrain.mixup or recipe.pretrain.cutmix:
        check_soft_labels(members[0])
    for member in members:
        member.views = recipe.pretrain.views or member.views
        member.gather_across_devices = member.gather_across_devices or world_size > 1
        member.gradient_reduction = "sum"  # as `distributed.sum_gradients` does
    if recipe.pretrain.memory:
        members = [_with_memory(member, recipe.pretrain.memory) for member in members]
    method = members[0] if len(members) == 1 else HeadEnsemble(members)
    share = recipe.pretrain.cross_entropy
    return WithClassifier(method, share) if share else method


def _with_memory(method: Method, rows: int) -> Method:
    if not isinstance(method, PairLoss):
        raise UserError(
            f"pretrain.memory = {rows} needs a loss over pairs, such as scs_supcon, supcon or "
            f"cs_supcon, got {type(method).__name__}: set it to 0"
        )
    return MemoryBank(method, rows)


def set_up_method(
    method: Method, network: Network, labels: NDArray[np.int64], classes: int, recipe: Recipe
) -> None:
    """Prepare network and method for stage 1: without a fitted style field, which is added later.

    The method's `setup` gets the labels, dimensions and number of epochs of the run.
    """
    remove_style(network.projection)
    first_layer = next(network.projection.parameters())
    method.setup(
        TaskInfo(
            network,
            torch.from_numpy(labels),
            classes,
            first_layer.shape[1],
            recipe.head.dim - recipe.head.fitted_dim,
            recipe.pretrain.epochs,
        )
    )


def pretrain(
    fabric: Fabric,
    run: RunDir,
    network: Network,
    method: Method,
    training_set: TrainingSet,
    recipe: Recipe,
    display: Display | None = None,
    validation: ValidationSet | None = None,
    name: str = "pretrain",
    title: str = "stage 1",
) -> None:
    """Train network and method in place, or resume from the last checkpoint.

    The final weights are the last ones, their running average (`pretrain.ema`), or those of the
    best epoch (`pretrain.patience`). With `pretrain.initial_share` they are then averaged with the
    weights at the start of the stage.

    Args:
        fabric: where to compute.
        run: stores checkpoints and metrics.
        network: encoder and projection head; a frozen encoder is replaced by the identity.
        method: the loss, after `set_up_method`.
        training_set: images or cached features.
        recipe: of the run.
        display: shows progress.
        validation: measures each epoch, if `pretrain.patience` is set; otherwise some of them, for
            the display.
        name: of the stage in checkpoints and metrics.
        title: of the stage in the display.
    """
    settings, display = recipe.pretrain, display or Display(quiet=True)
    method.to(fabric.device)
    wrapped: Any = fabric.setup_module(network.to(fabric.device))
    modules: dict[str, nn.Module] = {"network": wrapped, "method": method}
    rates = encoder_rates(network.encoder, settings.encoder_lr, settings.layer_decay)
    groups = parameter_groups(modules.values(), settings.lr, settings.weight_decay, rates)
    optimizer: Any = fabric.setup_optimizers(
        make_optimizer(settings.optimizer, groups, settings.lr, settings.momentum)
    )
    score = None if validation is None else _scorer(fabric, validation, recipe)
    weights = FinalWeights(
        network,
        method,
        settings.ema,
        settings.patience,
        score if settings.patience else None,
        settings.initial_share,
    )
    plan = _planner(training_set.labels, settings, recipe.seed, fabric.world_size)
    per_epoch = len(plan(0))
    total = settings.epochs * per_epoch

    stage = Stage(
        name=name,
        modules=modules | weights.copies,
        losses=lambda batch: _training_step(method, batch, wrapped),
        optimizer=optimizer,
        schedule=_schedule(settings, per_epoch),
        batches=_batches(fabric, training_set, plan, recipe),
        epochs=settings.epochs,
        clip_norm=settings.clip_norm,
    )
    with CheckpointManager(run, fabric, stage) as checkpoints:
        memo = checkpoints.memo
        if state := _describe_resume(
            checkpoints.position, per_epoch, settings.epochs, memo.stopped
        ):
            display.line(f"{title}: {state} ({run.path})")
        shown = None if score is None or settings.patience or display.quiet else score
        monitor = StageMonitor(
            settings.epochs,
            min(settings.batch_size, len(training_set.labels)),
            None if shown is None or fabric.world_size > 1 else lambda: shown(network, method),
        )
        with display.progress(title) as progress:

            def before_epoch(position: TrainPosition) -> None:
                method.on_epoch_start(position.epoch, training_set.apply_network)

            def after_step(position: TrainPosition, terms: dict[str, float]) -> None:
                method.after_step(wrapped, position.global_step / total)
                _remember_pair_parameters(memo, position.global_step, method, total)
                weights.after_step(position.global_step - 1)
                if position.step == per_epoch:  # some need the last batch, lost in a restart
                    memo.scalars = method.scalars()
                checkpoints.after_step(position, terms)
                monitor.after_step(terms)
                progress(position.global_step, total, monitor.note(position.epoch))

            def after_epoch(position: TrainPosition) -> None:
                rate = stage.schedule(position.global_step)
                values = {**checkpoints.means(), **memo.scalars, "lr": rate}
                values |= weights.after_epoch(position.epoch, memo)
                run.append_metrics(
                    name, position.epoch, position.global_step, values, _pair_metrics(memo)
                )
                checkpoints.after_epoch(position)
                monitor.after_epoch()

            progress(checkpoints.position.global_step, total)
            hooks = Hooks(before_epoch, after_step, after_epoch, lambda: memo.stopped)
            try:
                train_loop(fabric, stage, checkpoints.position, hooks)
            except NonFiniteLossError as error:
                raise store_failed_step(run, stage, error, training_set.names) from error
        for line in weights.describe(memo.best, checkpoints.position.epoch, settings.epochs):
            display.line(line)
    weights.finish()
    network.eval()
    method.eval()


def _remember_pair_parameters(memo: StageMemo, step: int, method: Method, total: int) -> None:
    """Keep t and b after a step until the end of the epoch, where metrics are written."""
    if step % max(1, total // LOGGED_STEPS):
        return
    if (pair := method.pair_parameters()) is not None:
        memo.pair_steps = [*memo.pair_steps, (step, *pair)]


def _pair_metrics(memo: StageMemo) -> list[tuple[int, dict[str, float]]]:
    """Return and forget t and b of the steps, under names of their own: `t` is per epoch."""
    rows = [(step, dict(zip(STEP_METRICS, pair, strict=True))) for step, *pair in memo.pair_steps]
    memo.pair_steps = []
    return rows


def _describe_resume(position: TrainPosition, per_epoch: int, epochs: int, stopped: bool) -> str:
    """Return where a stage is resumed; empty for a new stage."""
    if not position.global_step:
        return ""
    if position.epoch >= epochs or stopped:
        return "completed before, read from its checkpoint"
    step = f", step {position.step + 1} of {per_epoch}" if position.step else ""
    return f"resuming from epoch {position.epoch + 1} of {epochs}{step}"


def _batches(
    fabric: Fabric, training_set: TrainingSet, plan: Callable[[int], Plan], recipe: Recipe
) -> Callable[[int, int], Iterator[Batch]]:
    """Return the batches of an epoch on the device of training, with mixed images if required."""
    mixup, cutmix = recipe.pretrain.mixup, recipe.pretrain.cutmix

    def batches(epoch: int, skip: int) -> Iterator[Batch]:
        loaded = training_set.batches(plan(epoch), epoch, fabric.global_rank, skip)
        for number, batch in enumerate(loaded, start=skip):
            on_device = batch.map(fabric.to_device)
            if mixup or cutmix:
                key = (recipe.seed, epoch, number)
                on_device = mix_batch(
                    on_device, training_set.classes, mixup=mixup, cutmix=cutmix, key=key
                )
            yield on_device

    return batches


def _training_step(method: Method, batch: Batch, network: nn.Module) -> dict[str, Tensor]:
    if batch.label_probabilities is not None:
        check_soft_labels(method)
    return method.training_step(batch, network)


def _scorer(
    fabric: Fabric, validation: ValidationSet, recipe: Recipe
) -> Callable[[Network, Method], float]:
    """Return the function that measures an epoch; all processes get the result of the first."""

    def score(network: Network, method: Method) -> float:
        frozen, setting = recipe.encoder.frozen, recipe.probe.input
        probe_input = probe_input_for(method, frozen=frozen, setting=setting)
        common_dim = recipe.head.common_dim
        accuracy = validation_accuracy(network, method, validation, probe_input, common_dim)
        return fabric.broadcast(accuracy)

    return score


def _planner(
    labels: NDArray[np.int64], settings: PretrainRecipe, seed: int, world_size: int
) -> Callable[[int], Plan]:
    def plan(epoch: int) -> Plan:
        return plan_epoch(
            labels,
            min(settings.batch_size, len(labels)),
            kind=settings.batches,
            per_class=settings.per_class,
            seed=seed,
            epoch=epoch,
            world=world_size,
        )

    return plan


def _schedule(settings: PretrainRecipe, per_epoch: int) -> Callable[[int], float]:
    total = settings.epochs * per_epoch
    warmup = math.ceil(settings.warmup_epochs * per_epoch)
    floor = settings.lr * settings.lr_floor
    return lambda step: cosine_lr(step, total, warmup, settings.lr, floor)


def _load(
    dataset: ViewDataset, keys: list[Any], workers: int
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    loader = DataLoader(
        _ErrorsAsValues(dataset),
        batch_sampler=keys,
        num_workers=workers,
        collate_fn=_collate,
        worker_init_fn=ignore_signals,
        multiprocessing_context=worker_context(workers),
    )
    failure = None
    with explain_killed_workers():
        for batch in loader:
            if isinstance(batch, UserError):
                failure = batch
                break  # ends the workers; the traceback of an error raised here would keep them
            yield batch
    if failure:
        raise failure


@dataclass(frozen=True, eq=False)
class _ErrorsAsValues(Dataset[Any]):
    """Returns a `UserError` as a value: a data loader would hide it in a traceback."""

    dataset: ViewDataset

    def __getitem__(self, key: tuple[int, ...]) -> Any:
        try:
            return self.dataset[key]
        except UserError as error:
            # A new error has no traceback. Where tracebacks can be pickled, as with Dask, it would
            # keep the frames of the loader, and so its workers.
            return UserError(str(error))


def _collate(items: list[Any]) -> Any:
    errors = (item for item in items if isinstance(item, UserError))
    return next(errors, None) or default_collate(items)


@torch.no_grad()
def _apply_in_eval_mode(network: nn.Module, inputs: Iterable[Tensor]) -> Output:
    training = network.training
    network.eval()
    device = next(network.parameters()).device
    outputs = [network(tensor.to(device)) for tensor in inputs]
    network.train(training)
    features = torch.cat([output.features for output in outputs])
    return Output(features, torch.cat([output.embeddings for output in outputs]))
