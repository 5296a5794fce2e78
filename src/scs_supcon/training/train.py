"""`train`: from a folder of images to a finished run directory and its report."""

import shlex
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypedDict

import numpy as np

from scs_supcon.data.audit import UNUSABLE
from scs_supcon.data.dataset import ImageDataset, Problem, without
from scs_supcon.data.load import check_dataset, load_images
from scs_supcon.device import Compute, find_compute, first_process, has_gpu
from scs_supcon.io.records import RecordError
from scs_supcon.nn.model_folder import weights_and_encoder
from scs_supcon.nn.weights import fetch_weights
from scs_supcon.plugins import is_plugin
from scs_supcon.progress import Display
from scs_supcon.recipe import Recipe, Values, make_recipe, merge
from scs_supcon.recipe.encoders import explain_default
from scs_supcon.recipe.resolve import (
    DatasetFacts,
    InputFiles,
    TrainOptions,
    requested_values,
    resolve_recipe,
    split_dataset,
)
from scs_supcon.recipe.toml import read_stored_values, section, value_of
from scs_supcon.report import build_report
from scs_supcon.runs.callbacks import RunCallback, make_callbacks
from scs_supcon.runs.layout import FINISHED, RECIPE, check_new_run
from scs_supcon.training.input_files import read_input_files
from scs_supcon.training.pipeline import run
from scs_supcon.training.result import RunResult


class TrainArguments(TypedDict, total=False):
    """Arguments of `train` that decide the recipe."""

    method: str | None
    encoder: str | None
    transform: str
    weights: Path | None
    from_scratch: bool
    frozen: bool | None
    unfreeze: bool
    epochs: int | None
    batch_size: int | None
    seed: int | None
    recipe: Path | None
    settings: tuple[str, ...]
    init_from: Path | None


def train(  # noqa: PLR0913
    data: str | Path,
    *,
    out: str | Path,
    method: str | None = None,
    encoder: str | None = None,
    transform: str | None = None,
    weights: str | Path | None = None,
    from_scratch: bool = False,
    frozen: bool | None = None,
    unfreeze: bool = False,
    epochs: int | None = None,
    batch_size: int | None = None,
    micro_batch: int | None = None,
    seed: int | None = None,
    recipe: str | Path | None = None,
    settings: Sequence[str] = (),
    init_from: str | Path | None = None,
    device: str = "auto",
    workers: int | None = None,
    cache: str | Path | None = None,
    offline: bool = False,
    overwrite: bool = False,
    dry_run: bool = False,
    report: bool = True,
    log_to: Sequence[str | RunCallback] = (),
    quiet: bool = False,
) -> RunResult:
    """Train both stages on labelled images and write everything to a run directory.

    The same call resumes an interrupted run from its last checkpoint. A finished run is not
    trained again.

    Args:
        data: folder of class folders, train/val/test folders, .csv, .parquet, or a built-in
            dataset ("digits", "shapes").
        out: the run directory.
        method: such as "supcon" or "scs_supcon@paper"; `scs methods` lists them.
        encoder: "fast", "balanced" or "best" of `scs encoders`, any timm model, "tiny", or your own
            code, such as "my_lab.nets:build".
        transform: your own code for the views of stage 1, such as "my_lab.views:build".
        weights: safetensors file with the weights of the encoder, or a model folder of timm or
            Hugging Face, which also says which encoder it is.
        from_scratch: start the encoder from random weights.
        frozen: train on cached features of the encoder instead of training the encoder.
        unfreeze: train the head on cached features first, then the whole network.
        epochs: epochs of stage 1.
        batch_size: images per step.
        micro_batch: views that are encoded at a time: less memory, a third more time.
        seed: seed of all random numbers.
        recipe: TOML file with any part of a recipe, or "paper" for the protocol of the paper.
        settings: assignments such as "pretrain.lr=0.05".
        init_from: finished run whose encoder and head to start from.
        device: "auto", "cpu", "cuda", …
        workers: processes that load images; default: one per core.
        cache: directory for cached features of frozen encoders.
        offline: never download weights.
        overwrite: delete a finished run, or one with another recipe, first.
        dry_run: run every step on a few images, then delete the run.
        report: write report.html and figures/ at the end.
        log_to: "wandb", "mlflow", or callbacks of your own that receive the metrics, in addition
            to metrics.csv and TensorBoard.
        quiet: show no progress.

    Returns:
        The result: `.accuracy`, `.evaluation`, `.model`, `.path`.
    """
    weights_file, encoder = weights_and_encoder(Path(weights) if weights else None, encoder)
    options = TrainOptions(
        source=str(data),
        method=method,
        encoder=encoder,
        transform=transform,
        weights=weights_file,
        from_scratch=from_scratch,
        frozen=frozen,
        unfreeze=unfreeze,
        epochs=epochs,
        batch_size=batch_size,
        micro_batch=micro_batch,
        seed=seed,
        recipe=Path(recipe) if recipe else None,
        init_from=Path(init_from) if init_from else None,
        settings=tuple(settings),
    )
    callbacks = make_callbacks(log_to)
    compute = find_compute(device, workers, cache, offline)
    display = Display(quiet or not first_process())
    if not dry_run:
        check_new_run(Path(out), options.source)
    resolved, images, problems = prepare(options, compute, display, Path(out), fetch=True)
    if dry_run:
        return _dry_run(resolved, images, problems, options, compute, display)
    result = run(
        resolved,
        images,
        out,
        compute,
        display,
        problems=problems,
        weights=options.weights,
        init_from=options.init_from,
        overwrite=overwrite,
        callbacks=callbacks,
    )
    if report and first_process():
        add_report(result.path, display)
    return result


def prepare(
    options: TrainOptions,
    compute: Compute,
    display: Display,
    out: Path | None = None,
    *,
    fetch: bool = False,
) -> tuple[Recipe, ImageDataset, list[Problem]]:
    """Return the resolved recipe, the dataset, and the problems of the data.

    Everything that can fail quickly is done before the images are decoded. If `out` contains a run,
    the recipe keeps the defaults that it was started with.

    Args:
        options: of the user.
        compute: number of workers, and whether weights may be downloaded.
        display: shows progress.
        out: the run directory.
        fetch: download the pretrained weights of the encoder, if the run needs them.
    """
    files = read_input_files(options)
    images = load_images(options.source)
    recipe = _resolve(options, images, files, compute, out)
    is_finished = out is not None and (out / FINISHED).exists()
    needs_weights = recipe.encoder.weights == "pretrained" and not is_plugin(recipe.encoder.name)
    if fetch and needs_weights and not is_finished:
        fetch_weights(recipe.encoder.name, compute.offline)
    with display.progress("checking images") as progress:
        images, problems = check_dataset(images, compute.workers, progress)
    for problem in problems:
        if problem.kind in UNUSABLE:
            display.line(f"left out: {problem.detail}")
        elif problem.kind == "known_issue":
            display.line(f"known issue: {problem.detail}")
    recipe = _resolve(options, images, files, compute, out)
    given = files.named_recipe or "name" in section(requested_values(options, files), "encoder")
    if not given and not _recipe_of_run(out):
        facts = images.native_size, len(images), has_gpu(compute.device)
        display.line(explain_default(recipe.encoder.name, *facts))
    return recipe, images, problems


def _resolve(
    options: TrainOptions,
    images: ImageDataset,
    files: InputFiles,
    compute: Compute,
    out: Path | None,
) -> Recipe:
    encoder = value_of(section(_recipe_of_run(out), "encoder"), "name", "")
    if encoder and "name" not in section(requested_values(options, files), "encoder"):
        options = replace(options, encoder=encoder)  # whatever the default is now
    return resolve_recipe(options, DatasetFacts.of(images), files, has_gpu=has_gpu(compute.device))


def _recipe_of_run(run: Path | None) -> Values:
    """Return the values of the recipe that a run was started with; empty if there is none."""
    if run is None or not (run / RECIPE).exists():
        return {}
    try:
        return read_stored_values(run / RECIPE)
    except RecordError:
        return {}  # `RunDir` explains the error


def resolved_recipe(data: str | Path, *, device: str = "auto", **options: Any) -> Recipe:
    """Return the complete recipe that `train` would use with these options."""
    for name in ("weights", "recipe", "init_from"):
        options[name] = Path(options[name]) if options.get(name) else None
    options["weights"], options["encoder"] = weights_and_encoder(
        options["weights"], options.get("encoder")
    )
    compute = find_compute(device, offline=True)
    recipe, _, _ = prepare(TrainOptions(source=str(data), **options), compute, Display(quiet=True))
    return recipe


def add_report(path: Path, display: Display) -> None:
    """Write the report of a finished run if it has none; errors are shown, not raised."""
    if (path / "report.html").exists():
        return
    display.line("writing the report")
    try:
        build_report(path)
    except (Exception, KeyboardInterrupt) as error:
        reason = str(error) or type(error).__name__
        command = f"scs report {shlex.quote(str(path))}"
        display.line(f"cannot write the report ({reason}); to try again, run `{command}`")


def _dry_run(
    recipe: Recipe,
    images: ImageDataset,
    problems: Sequence[Problem],
    options: TrainOptions,
    compute: Compute,
    display: Display,
) -> RunResult:
    """Run every step with about one batch of images and one epoch per stage; return the result."""
    head_epochs = min(1, recipe.pretrain.head_epochs)
    pretrain = {"epochs": 1, "warmup_epochs": 0.0, "head_epochs": head_epochs}
    short: Values = {"pretrain": pretrain, "probe": {"epochs": 1}}
    short_recipe = make_recipe(merge(recipe.model_dump(exclude_none=True), short))
    with tempfile.TemporaryDirectory(prefix="scs-dry-run-") as folder:
        result = run(
            short_recipe,
            _few_images(images, recipe),
            Path(folder) / "run",
            compute,
            display,
            problems=problems,
            weights=options.weights,
            init_from=options.init_from,
        )
    display.line("dry run passed: one batch and one epoch of each stage; the run was deleted")
    return result


def _few_images(images: ImageDataset, recipe: Recipe) -> ImageDataset:
    """Return a few images of every class and split, about one batch in total."""
    splits = split_dataset(images, recipe)
    per_class = max(4, recipe.pretrain.batch_size // len(images.classes))
    chosen: list[int] = []
    for label in range(len(images.classes)):
        for split, count in (("train", per_class), ("val", 1), ("test", 1)):
            members = np.flatnonzero((images.labels == label) & (splits == split))
            chosen += members[:count].tolist()
    others = np.setdiff1d(np.arange(len(images)), chosen)
    return without(replace(images, splits=splits), others)
