"""Evaluate a trained model on other labelled images, or read the evaluation of its run."""

import tempfile
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from scs_supcon.data.feature_cache import ViewKind, frozen_features, keyed_views
from scs_supcon.data.load import source_name
from scs_supcon.device import Compute, find_compute, torch_device
from scs_supcon.errors import UserError
from scs_supcon.evaluation.compute import EmbeddedImages, compute_evaluation, embedding_baselines
from scs_supcon.evaluation.dataset import EvaluationSet, load_evaluation_set
from scs_supcon.evaluation.groups import groups_of_decisions, stored_groups
from scs_supcon.evaluation.label_errors import suspected_labels
from scs_supcon.evaluation.leakage import view_agreement
from scs_supcon.evaluation.predictions import prediction_columns, write_predictions
from scs_supcon.evaluation.record import Evaluation, UnknownEvaluation, ViewAgreement
from scs_supcon.evaluation.stored import run_directory, stored_evaluation
from scs_supcon.inference import Model, load
from scs_supcon.inference.decision import Decision
from scs_supcon.io.records import RecordError, inside, read_json_object
from scs_supcon.kernels.layout import evenly_spaced
from scs_supcon.nn.encoder import encoder_key
from scs_supcon.progress import Display

MAX_VIEWED_IMAGES = 300  # of which new views are encoded and compared
MAX_COMPARED_IMAGES = 2000  # of which cached views are compared


def evaluate(
    model: Model | str | Path,
    data: str | Path | None = None,
    *,
    device: str = "auto",
    workers: int | None = None,
    cache: str | Path | None = None,
    group: str | None = None,
    quiet: bool = False,
    false_rejection: float | None = None,
    threshold: float | None = None,
) -> Evaluation | UnknownEvaluation:
    """Evaluate a model.

    Images of unknown classes do not count as errors; the evaluation reports how many of them are
    rejected. If there are no others, the result is an `UnknownEvaluation`.

    Args:
        model: a run directory, its model directory, or a loaded model.
        data: as for `train`; its test split if it has splits, otherwise all of it. If omitted, the
            evaluation of the run's test split is read from the run directory.
        device: "auto", "cpu", "cuda", … for a model that is not loaded yet.
        workers: processes that load images; default: one per core.
        cache: directory for cached features of frozen encoders.
        group: column of the table of images; the evaluation then has scores by its values.
        quiet: do not show progress.
        false_rejection: share of the images of known classes that may be rejected as unknown;
            default: that of the model, 0.05.
        threshold: similarity, from −1 to 1, below which images are rejected instead.

    Returns:
        The evaluation. If a run directory and `data` are given, it is also written to
        RUN/evaluations, together with a table of predictions, and `saved_to` is its path. If the
        directory is not writable, a warning is issued and `saved_to` is None.
    """
    run = None if isinstance(model, Model) else run_directory(Path(model))
    if data is None:
        if false_rejection is not None or threshold is not None:
            raise UserError(
                "the stored evaluation has the threshold of its run: give images to evaluate with "
                "another one, such as scs evaluate RUN DATA --false-rejection 0.1"
            )
        if run is None:
            raise UserError("a loaded model can only be evaluated on data: evaluate(model, data)")
        return stored_evaluation(run) if group is None else stored_groups(run, group)
    compute, display = find_compute(device, workers, cache), Display(quiet)
    loaded = model if isinstance(model, Model) else load(model, torch_device(device))
    loaded = loaded.with_rejection(false_rejection=false_rejection, threshold=threshold)
    images = load_evaluation_set(str(data), loaded.classes, compute.workers, display)
    features = encode_images(loaded, images, images.indices, "eval", compute, display)[:, 0]
    decision = loaded.decide(features)
    evaluation = (
        _evaluate(loaded, run, images, features, decision, compute, display)
        if (images.labels >= 0).any()
        else _evaluate_unknown(loaded, images, decision)
    )
    if group is not None and isinstance(evaluation, Evaluation):
        analysis = groups_of_decisions(group, images, decision)
        evaluation = evaluation.model_copy(update={"groups": analysis})
    if run is None:
        return evaluation
    try:
        return evaluation.model_copy(
            update={"saved_to": str(_save(run, images, loaded, decision, evaluation))}
        )
    except UserError as error:  # for example in a read-only directory
        warnings.warn(f"the evaluation is not saved: {error}", RuntimeWarning, stacklevel=2)
        return evaluation


def measure_view_agreement(model: Model, features: Tensor, labels: Tensor) -> ViewAgreement | None:
    """Return the agreement of the last two views; None without two views or a style field.

    Args:
        model: the model that computes the fields.
        features: (n, views, F); the evaluation view, if present, comes first.
        labels: (n,)
    """
    if features.shape[1] < 2 or not len(features):
        return None
    subset = evenly_spaced(len(features), MAX_COMPARED_IMAGES)
    first, second = (model.fields(features[subset, view]) for view in (-2, -1))
    if not first[1].shape[1]:
        return None
    return view_agreement((first[0], second[0]), (first[1], second[1]), labels[subset])


def _evaluate_unknown(model: Model, images: EvaluationSet, decision: Decision) -> UnknownEvaluation:
    accepted = decision.probabilities[~decision.unknown].argmax(1).tolist()
    counts = Counter(model.classes[index] for index in accepted)
    return UnknownEvaluation(
        data=images.data,
        path=_location(images.data),
        split=images.split,
        images=len(images.indices),
        classes=tuple(images.unknown_classes),
        known_classes=model.classes,
        rejected=float(decision.unknown.double().mean()),
        threshold=model.info.rejection.threshold,
        accepted_as=dict(counts.most_common()),
        unreadable=tuple(images.unreadable),
    )


def _evaluate(
    model: Model,
    run: Path | None,
    images: EvaluationSet,
    features: Tensor,
    decision: Decision,
    compute: Compute,
    display: Display,
) -> Evaluation:
    train = _training_images(model)
    agreement = (
        _compare_new_views(model, images, compute, display) if train.style.shape[1] else None
    )
    common, style = model.fields(features)
    known = images.labels >= 0
    labels, probabilities = images.labels[known], decision.probabilities[known]
    evaluated = EmbeddedImages(labels, common[known], style[known])
    names = [name for name, is_known in zip(images.names, known.tolist(), strict=True) if is_known]
    return compute_evaluation(
        data=images.data,
        path=_location(images.data),
        split=images.split,
        classes=model.classes,
        temperature=model.info.temperature,
        rule="boundary" if model.info.pairs.learned else "fitted",
        boundary=model.info.pairs.boundary,
        pair_temperature=model.info.pairs.t,
        threshold=model.info.rejection.threshold,
        train=train,
        evaluated=evaluated,
        probabilities=probabilities,
        rejected=decision.unknown[known],
        baselines=embedding_baselines(train, evaluated),
        view_agreement=agreement,
        unknown_classes=images.unknown_classes,
        unknown_rejected=decision.unknown[~known],
        label_errors=suspected_labels(probabilities, labels, names, model.classes),
        unreadable=images.unreadable,
    )


def encode_images(
    model: Model,
    images: EvaluationSet,
    indices: NDArray[np.int64],
    kind: ViewKind,
    compute: Compute,
    display: Display,
) -> Tensor:
    """Return features `(n, views, F)` of the evaluation view, or of two random views."""
    recipe = model.info.recipe
    transforms = keyed_views(kind, recipe.data, 1 if kind == "eval" else 2)
    with (
        _cache_directory(recipe.encoder.frozen, compute) as directory,
        display.progress("features") as progress,
    ):
        features = frozen_features(
            images.images,
            indices,
            encoder=model.encoder,
            encoder_key=encoder_key(model.encoder),
            transforms=transforms,
            cache_dir=directory,
            workers=compute.workers,
            progress=progress,
        )
    return torch.from_numpy(features)


@contextmanager
def _cache_directory(frozen: bool, compute: Compute) -> Iterator[Path]:
    """Yield the shared cache for a frozen encoder, a temporary one for a trained encoder."""
    if frozen:
        yield compute.cache
        return
    with tempfile.TemporaryDirectory(prefix="scs-evaluate-") as directory:
        yield Path(directory)


def _compare_new_views(
    model: Model, images: EvaluationSet, compute: Compute, display: Display
) -> ViewAgreement | None:
    known = torch.nonzero(images.labels >= 0)[:, 0]
    subset = known[evenly_spaced(len(known), MAX_VIEWED_IMAGES)]
    kind: ViewKind = "train" if model.info.recipe.encoder.frozen else "probe"
    features = encode_images(model, images, images.indices[subset.numpy()], kind, compute, display)
    return measure_view_agreement(model, features, images.labels[subset])


def _training_images(model: Model) -> EmbeddedImages:
    """Return the training images in both fields; no columns of style if it is not stored."""
    style = model.gallery.style.double()
    return EmbeddedImages(model.gallery.labels, model.gallery.vectors.double(), style)


def _save(
    run: Path,
    images: EvaluationSet,
    model: Model,
    decision: Decision,
    evaluation: Evaluation | UnknownEvaluation,
) -> Path:
    """Write the evaluation and the predictions; return the path of the evaluation."""
    path = _free_path(inside(run, "evaluations"), images.data)
    columns = prediction_columns(images.names, images.label_names, model.classes, decision)
    write_predictions(path.with_name(f"{path.name}.parquet"), columns)
    file = path.with_name(f"{path.name}.json")
    evaluation.write(file)
    return file


def _free_path(directory: Path, data: str) -> Path:
    """Return DIRECTORY/NAME, or NAME-2, … if NAME is taken by other data; without extension."""
    location, stem = _location(data), source_name(data)
    for number in range(1, 10_000):
        path = directory / (stem if number == 1 else f"{stem}-{number}")
        file = path.with_name(f"{path.name}.json")
        if not file.exists() or _evaluated_path(file) == location:
            return path
    raise UserError(f"{directory} has too many evaluations: remove some")


def _location(data: str) -> str:
    """Return the absolute path of the data, or the name of a built-in dataset."""
    path = Path(data)
    return str(path.resolve()) if path.exists() else data


def _evaluated_path(file: Path) -> str | None:
    """Return the path in an evaluation; None if the file is something else."""
    try:
        path = read_json_object(file).get("path")
    except RecordError:
        return None
    return path if isinstance(path, str) else None
