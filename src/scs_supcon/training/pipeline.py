"""The steps of a whole run, from images to a finished run directory."""

import copy
import logging
import shutil
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import cast

import numpy as np
import torch
from lightning_fabric import Fabric
from numpy.typing import NDArray
from torch import Tensor

from scs_supcon.data.audit import single_image_classes
from scs_supcon.data.dataloader import explain_killed_workers
from scs_supcon.data.dataset import ImageDataset, Problem, content_digest
from scs_supcon.data.feature_cache import ViewKind
from scs_supcon.data.splits import SPLIT_TITLES, read_splits_csv, write_splits_csv
from scs_supcon.data.transforms import seeded
from scs_supcon.device import Compute
from scs_supcon.errors import UserError
from scs_supcon.evaluation.format import pair_warnings, style_warnings
from scs_supcon.evaluation.record import Evaluation
from scs_supcon.inference import Model
from scs_supcon.io.atomic import replacing
from scs_supcon.io.hashing import file_sha256
from scs_supcon.io.records import MissingRecord, RecordError, read_json
from scs_supcon.methods import Method, probe_input_for
from scs_supcon.nn.build import build_network, split_frozen
from scs_supcon.nn.encoder import Encoder
from scs_supcon.nn.network import Network, ProbeInput
from scs_supcon.progress import Display, Stopwatch
from scs_supcon.recipe import Recipe, write_toml
from scs_supcon.recipe.own_code import check_code
from scs_supcon.recipe.resolve import split_dataset
from scs_supcon.runs.callbacks import RunCallback
from scs_supcon.runs.run_dir import RunDir
from scs_supcon.training.artifacts import write_artifacts
from scs_supcon.training.checkpointing import Stopped
from scs_supcon.training.distributed import explain_lost_processes, make_fabric
from scs_supcon.training.estimate import (
    check_memory,
    describe_batches,
    describe_data,
    describe_stage_1,
    describe_style,
)
from scs_supcon.training.features import (
    RunFeatures,
    add_fitted_style,
    encode_images,
    extract_features,
    load_initial_weights,
)
from scs_supcon.training.fusion import (
    HeldOut,
    describe_fusion,
    fuse_fields,
    with_fused_inputs,
)
from scs_supcon.training.out_of_fold import out_of_fold_similarities, plan_folds
from scs_supcon.training.pretrain import (
    make_method,
    pretrain,
    set_up_method,
    training_set_from_features,
    training_set_from_images,
    validation_set_from_features,
    validation_set_from_images,
)
from scs_supcon.training.probe import Probe, choose_classifier, fit_probes
from scs_supcon.training.result import RunResult, describe_readout, headline, summarise
from scs_supcon.training.run_evaluation import (
    evaluate_run,
    predict_splits,
    prediction_latency,
    run_baselines,
)
from scs_supcon.training.unfreeze import HeadPhase
from scs_supcon.training.validation import ValidationSet

logger = logging.getLogger(__name__)


def run(
    recipe: Recipe,
    images: ImageDataset,
    out: str | Path,
    compute: Compute,
    display: Display | None = None,
    *,
    problems: Sequence[Problem] = (),
    weights: Path | None = None,
    init_from: Path | None = None,
    overwrite: bool = False,
    callbacks: Sequence[RunCallback] = (),
) -> RunResult:
    """Run a resolved recipe, or resume it, and return the result; a finished run is only read.

    Args:
        recipe: complete, as `resolve_recipe` returns it.
        images: the dataset.
        out: the run directory.
        compute: device, workers and cache.
        display: shows progress; None shows nothing.
        problems: problems of the data, listed in the report.
        weights: the encoder's weights, if the recipe names a file by its digest.
        init_from: a finished run to start from, if the recipe names its weights by their digest.
        overwrite: delete a finished run, or one with another recipe, first.
        callbacks: are told about the metrics.
    """
    display = display or Display(quiet=True)
    _check_inputs(recipe, images, weights)
    fabric = make_fabric(compute.device, recipe.pretrain.precision)
    with RunDir.open(out, write_toml(recipe), overwrite=overwrite, fabric=fabric) as run_dir:
        if run_dir.finished is not None:
            if (run_dir.path / "splits.csv").exists():
                _write_splits(images, recipe, run_dir, fabric)
            result = RunResult.read(out)
            display.line(f"{out} is finished: {headline(result.summary)}")
            return result
        run_dir.start_callbacks(callbacks, recipe)
        try:
            with explain_lost_processes(), explain_killed_workers(), seeded(recipe.seed):
                return _run_stages(
                    recipe, images, run_dir, fabric, compute, display, problems, weights, init_from
                )
        except KeyboardInterrupt:  # outside the training loops, which save first
            raise Stopped(130) from None


def _run_stages(
    recipe: Recipe,
    images: ImageDataset,
    run_dir: RunDir,
    fabric: Fabric,
    compute: Compute,
    display: Display,
    problems: Sequence[Problem],
    weights: Path | None,
    init_from: Path | None,
) -> RunResult:
    start, frozen, extraction = time.monotonic(), recipe.encoder.frozen, Stopwatch()
    splits = _write_splits(images, recipe, run_dir, fabric)
    train = np.flatnonzero(splits == "train")
    labels, classes = images.labels[train], len(images.classes)
    problems = _with_single_image_classes(problems, labels, images.classes)
    display.line(describe_data(images, splits, problems))

    with seeded(recipe.seed, 1):
        network = build_network(recipe)
        display.line(load_initial_weights(network, recipe, weights, init_from, compute.offline))
        method = make_method(recipe, fabric.world_size)
        encoder, head = split_frozen(network, frozen and method.uses_taps)
        trained = head if frozen else network
        set_up_method(method, trained, labels, classes, recipe)

    encode = extraction.timed(
        partial(encode_images, encoder, images, recipe, fabric, compute, display)
    )
    display.line(describe_batches(labels, recipe, method.views))
    cached = None
    if frozen:
        cached = encode(train, "train", recipe.encoder.frozen_views, compute.cache)
        training_set = training_set_from_features(cached, images, train, recipe, method.views)
    else:
        training_set = training_set_from_images(
            images, train, recipe, method.views, compute.workers
        )
    untrained = copy.deepcopy(head)
    if recipe.head.fitted_dim:
        width = cast("Encoder", network.encoder).num_features
        display.line(describe_style(classes, width))
    first = None
    if recipe.pretrain.head_epochs:
        first = HeadPhase(network, images, train, recipe, fabric, compute, display)
        display.line(first.describe())
    # A head that starts from another run may have been trained on images that a fold holds out.
    folds = [] if init_from is not None else plan_folds(images, splits, recipe)
    cost = describe_stage_1(
        trained, method, training_set, recipe, fabric.device, "then " if first else "", len(folds)
    )
    display.line(cost.text)
    display.later = cost.later
    if first is not None:
        first.train(run_dir, method)
    validation = _validation_set(images, splits, recipe, encode, cached, compute)
    pretrain(fabric, run_dir, trained, method, training_set, recipe, display, validation)

    probe_input = probe_input_for(method, frozen=frozen, setting=recipe.probe.input)
    features: RunFeatures = extract_features(
        network,
        encode,
        splits,
        images.labels,
        probe_input,
        recipe,
        compute.cache if frozen else run_dir.path / "features",
    )
    out_of_fold = (
        out_of_fold_similarities(
            untrained,
            cached,
            folds,
            features["val"],
            images,
            train,
            recipe,
            fabric,
            run_dir,
            display,
        )
        if folds and cached is not None
        else None
    )
    model, chosen, probes, features = _stage_2(
        recipe,
        images,
        network,
        method,
        probe_input,
        features,
        out_of_fold,
        fabric,
        run_dir,
        display,
    )
    predictions = predict_splits(model, features)
    baselines = run_baselines(features, predictions, probes, method, network.projection)
    evaluation = evaluate_run(model, images, features, predictions, baselines)
    _show_warnings(evaluation, display)
    if fabric.is_global_zero:
        write_artifacts(
            run_dir.path,
            model,
            images,
            problems,
            features,
            predictions,
            evaluation,
            workers=compute.workers,
        )
    shutil.rmtree(run_dir.path / "features", ignore_errors=True)
    summary = summarise(
        run_dir.path,
        evaluation,
        chosen,
        time.monotonic() - start,
        prediction_latency(model, images, features),
        extraction.seconds if frozen else None,
        describe_readout(recipe, model.info.probe_input, chosen),
    )
    run_dir.finish(summary.model_dump(mode="json"))
    return RunResult(run_dir.path, recipe, summary, evaluation, model)


def _validation_set(
    images: ImageDataset,
    splits: NDArray[np.str_],
    recipe: Recipe,
    encode: Callable[[NDArray[np.int64], ViewKind, int, Path, str], Tensor],
    cached: Tensor | None,
    compute: Compute,
) -> ValidationSet | None:
    """Return the images that measure the epochs of stage 1; None if there are no such images."""
    train, val = (np.flatnonzero(splits == split) for split in ("train", "val"))
    if not len(val):
        return None
    if cached is None:
        return validation_set_from_images(images, train, val, recipe, compute.workers)
    train_labels, val_labels = (torch.from_numpy(images.labels[part]) for part in (train, val))
    features = encode(val, "eval", 0, compute.cache, SPLIT_TITLES["val"])[:, 0]
    return validation_set_from_features((cached[:, 0], train_labels), (features, val_labels))


def _stage_2(
    recipe: Recipe,
    images: ImageDataset,
    network: Network,
    method: Method,
    probe_input: ProbeInput,
    features: RunFeatures,
    out_of_fold: HeldOut | None,
    fabric: Fabric,
    run_dir: RunDir,
    display: Display,
) -> tuple[Model, Probe, tuple[Probe, Probe], RunFeatures]:
    """Fuse the fields and fit the classifiers.

    Returns:
        The model, its classifier, the probes of stage 2 and of the encoder's features, and the
        features with the inputs of stage 2.
    """
    train, val, classes = features["train"], features["val"], len(images.classes)
    fused, class_means = None, None
    if recipe.fusion.whitened:
        fused, class_means = fuse_fields(
            network.projection, probe_input, features, classes, recipe, out_of_fold
        )
        display.line(describe_fusion(fused))
        if recipe.fusion.classifier == "linear":
            class_means = None
            features = with_fused_inputs(features, network.projection, probe_input, fused, recipe)
    probes = fit_probes(fabric, run_dir, features, classes, recipe, display)
    chosen = class_means or probes[0]
    learned_pairs = None
    if fused is None:
        learned_pairs = method.pair_parameters((train.probe_inputs[:, 0], train.labels))
        val_rows = (val.features[:, 0], val.probe_inputs[:, 0], val.labels)
        chosen, classified = choose_classifier(probes[0], method, probe_input, val_rows)
        if classified != probe_input:  # t and b belong to the common field
            probe_input, learned_pairs = classified, None
    projection, probe_input = add_fitted_style(
        network.projection, probe_input, train.features, train.labels, classes, recipe.head
    )
    model = Model.from_training(
        recipe=recipe,
        classes=images.classes,
        encoder=network.encoder,
        projection=projection,
        probe_input=probe_input,
        classifier=chosen.classifier,
        train=(train.features[:, 0], train.labels),
        val=(val.features[:, 0], val.labels),
        train_names=[images.names[index] for index in train.indices],
        learned_pairs=learned_pairs,
        fused=fused,
    )
    return model, chosen, probes, features


def _show_warnings(evaluation: Evaluation, display: Display) -> None:
    sentences = pair_warnings(evaluation.pairs)
    if evaluation.leakage is not None:
        sentences += style_warnings(evaluation.leakage)
    for sentence in sentences:
        display.line(f"warning   {sentence}")


def _check_inputs(recipe: Recipe, images: ImageDataset, weights: Path | None) -> None:
    """Raise a UserError for invalid inputs before the run directory is created."""
    check_code(recipe)
    check_memory(recipe, len(images), make_method(recipe).views)
    if weights is not None and recipe.encoder.weights != f"sha256:{file_sha256(weights)}":
        raise UserError(
            f"{weights} is not the weights file of this recipe: give the file with the hash "
            f"{recipe.encoder.weights}"
        )
    if recipe.data.content is not None and recipe.data.content != content_digest(images):
        raise UserError(
            f"{recipe.data.source} is not the data this recipe was made for: restore that data, or "
            "remove data.content from the recipe"
        )


def _write_splits(
    images: ImageDataset, recipe: Recipe, run_dir: RunDir, fabric: Fabric
) -> NDArray[np.str_]:
    """Return the split of each image and store it; a resumed run must have the same images."""
    splits = split_dataset(images, recipe)
    file = run_dir.path / "splits.csv"
    if file.exists():
        read_splits_csv(file, images, splits)
    _write_classes(run_dir, list(images.classes))
    if fabric.is_global_zero and not file.exists():
        with replacing(file) as temporary:
            write_splits_csv(temporary, images, splits)
    return splits


def _write_classes(run_dir: RunDir, classes: list[str]) -> None:
    """Write classes.json; a damaged one is replaced, because the images determine its content."""
    file = run_dir.path / "classes.json"
    problem = f"{file} is damaged: it is not the list of the classes"
    try:
        if read_json(file) == classes:
            return
    except MissingRecord:
        problem = ""
    except RecordError as error:
        problem = str(error)
    if problem:
        logger.warning("%s; it is written again", problem)
    run_dir.write_json("classes.json", classes)


def _with_single_image_classes(
    problems: Sequence[Problem], labels: NDArray[np.int64], classes: tuple[str, ...]
) -> list[Problem]:
    """Replace the single-image classes of the dataset by those of the training split."""
    others = [problem for problem in problems if problem.kind != "single_image_class"]
    return others + single_image_classes(labels, classes)
