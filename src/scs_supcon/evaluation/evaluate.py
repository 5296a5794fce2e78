"""Judge a finished model: on its own test part, or on any other labelled images."""

import json
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from scs_supcon.data.feature_cache import ViewKind, frozen_features, keyed_views
from scs_supcon.device import Compute, find_compute, torch_device
from scs_supcon.errors import UserError
from scs_supcon.evaluation import label_errors
from scs_supcon.evaluation import record as evaluation
from scs_supcon.evaluation.dataset import Asked, read_asked
from scs_supcon.evaluation.metrics import evenly
from scs_supcon.evaluation.record import Answers, Rows, Strangers
from scs_supcon.inference import Model, load
from scs_supcon.inference.decision import Decision
from scs_supcon.nn.encoder import encoder_key
from scs_supcon.progress import Display
from scs_supcon.training import artifacts as records
from scs_supcon.training.assess import agreement_of, rules_of

VIEWED = 300  # images whose views are compared, at most: views have to be made and encoded


def evaluate(
    run: str | Path,
    source: str | Path | None = None,
    *,
    device: str = "auto",
    workers: int | None = None,
    cache: str | Path | None = None,
    quiet: bool = False,
) -> dict[str, Any]:
    """Say how good a model is, in every number that `results.evaluation` knows.

    Classes that the model was not trained on are no mistakes of it: they are held out, and what
    counts is how many of their images it calls none of these.

    Args:
        run: a run's folder, or its model folder.
        source: data as for `train`. Of data with parts the test part is judged, of other data all.
            Without it, the record of the run's own test part is returned.
        device: "auto", "cpu", "cuda", …
        workers: processes that load images; default: one per core.
        cache: folder for the features of frozen encoders.
        quiet: show nothing.

    Returns:
        The record. For other data it is also kept in RUN/evaluations, beside a table of what the
        model says of every image; "kept" is its file, "unreadable" what was left out. Where the
        run cannot be written to, a warning says so and "kept" is missing.
    """
    home = _home(Path(run))
    if source is None:
        return _own_record(home)
    place, display = find_compute(device, workers, cache), Display(quiet)
    made = load(run, torch_device(device))
    asked = read_asked(str(source), made.classes, place.workers, display)
    features = _features(made, asked, asked.indices, "eval", place, display)[:, 0]
    judgement = made.judge(features)
    found = _judge(made, home, asked, features, judgement)
    if found["leakage"]:
        found["leakage"]["view_agreement"] = _agreement(made, asked, place, display)
    try:
        return found | {"kept": str(_keep(home, asked, made, judgement, found))}
    except UserError as error:  # as in a folder that is only for reading: the numbers are there
        warnings.warn(f"the evaluation is not kept: {error}", RuntimeWarning, stacklevel=2)
        return found


def _judge(
    made: Model, home: Path, asked: Asked, features: Tensor, judgement: Decision
) -> dict[str, Any]:
    common, style = made.fields(features)
    labels, ours = asked.labels, asked.labels >= 0
    rows = Rows(labels[ours], common[ours], style[ours])
    answers = Answers(rows, judgement.probabilities[ours], judgement.none_of_these[ours])
    strangers = Strangers(asked.strange, judgement.none_of_these[~ours])
    known = _known(made, home)
    found = evaluation.evaluate(rules_of(made), known, answers, None, strangers)
    suspects = label_errors.suspects(answers.probabilities, rows.labels)
    names = [name for name, our in zip(asked.names, ours.tolist(), strict=True) if our]
    return found | {
        "data": asked.source,
        "path": _place(asked.source),
        "split": asked.split,
        "baselines": evaluation.baselines(known, rows),
        "unreadable": asked.unreadable,
        "label_errors": label_errors.described(suspects, names, rows.labels, made.classes),
    }


def _keep(
    home: Path, asked: Asked, made: Model, judgement: Decision, found: dict[str, Any]
) -> Path:
    """Write the record and what is said of every image; return the record's file."""
    path = _free_path(home / "evaluations", asked.source)
    columns = records.predictions(asked.names, asked.label_names, made.classes, judgement)
    records.write_predictions(path.with_name(f"{path.name}.parquet"), columns)
    file = path.with_name(f"{path.name}.json")
    records.write_evaluation(file, found)
    return file


def _home(run: Path) -> Path:
    """The run's folder, also where its model folder was named."""
    inside = run.name == "model" and (run.parent / "recipe.toml").exists()
    return run.parent if inside else run


def _own_record(home: Path) -> dict[str, Any]:
    file = home / "evaluation.json"
    if not file.exists():
        raise UserError(
            f"{home} holds no evaluation.json, which a run writes when it ends: finish the run, or "
            "name the images to judge it on: scs evaluate RUN DATA"
        )
    record: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return record


def _features(
    made: Model,
    asked: Asked,
    indices: NDArray[np.int64],
    kind: ViewKind,
    place: Compute,
    display: Display,
) -> Tensor:
    """Features `(n, views, F)`: of the evaluation view, or of two random ones."""
    recipe = made.facts.recipe
    keyed = keyed_views(kind, recipe.data, 1 if kind == "eval" else 2)
    with _folder(recipe.encoder.frozen, place) as folder, display.progress("features") as tell:
        found = frozen_features(
            asked.images,
            indices,
            encoder=made.encoder,
            encoder_key=encoder_key(made.encoder),
            transforms=keyed,
            cache_dir=folder,
            workers=place.workers,
            progress=tell,
        )
    return torch.from_numpy(found)


@contextmanager
def _folder(frozen: bool, place: Compute) -> Iterator[Path]:
    """The cache that all runs share, or for an encoder that only this run has a passing one."""
    if frozen:
        yield place.cache
        return
    with tempfile.TemporaryDirectory(prefix="scs-evaluate-") as folder:
        yield Path(folder)


def _agreement(
    made: Model, asked: Asked, place: Compute, display: Display
) -> dict[str, float | None] | None:
    ours = torch.nonzero(asked.labels >= 0)[:, 0]
    some = ours[evenly(len(ours), VIEWED)]
    kind: ViewKind = "train" if made.facts.recipe.encoder.frozen else "probe"
    features = _features(made, asked, asked.indices[some.numpy()], kind, place, display)
    return agreement_of(made, features, asked.labels[some])


def _known(made: Model, home: Path) -> Rows:
    """The training images: common from the model, style from the run's record if it is there."""
    common, labels = made.gallery.vectors.double(), made.gallery.labels
    style, file = common[:, :0], home / "embeddings.parquet"
    if file.exists():
        import pyarrow.parquet as pq

        table = pq.read_table(file, columns=["name", "style"]).to_pydict()
        by_name = dict(zip(table["name"], table["style"], strict=True))
        if by_name.keys() >= set(made.facts.images):  # not if classes were added since
            rows = np.array([by_name[name] for name in made.facts.images], dtype=np.float64)
            style = torch.from_numpy(rows)
    return Rows(labels, common, style)


def _free_path(folder: Path, source: str) -> Path:
    """RUN/evaluations/NAME without ending; NAME-2 and on if that is taken by other data."""
    place = Path(_place(source))
    stem = place.name if place.is_dir() else place.stem
    for number in range(1, 10_000):
        path = folder / (stem if number == 1 else f"{stem}-{number}")
        file = path.with_name(f"{path.name}.json")
        if not file.exists() or _judged_in(file) == str(place):
            return path
    raise UserError(f"{folder} is full of evaluations: remove some")


def _place(source: str) -> str:
    """Where data lies, whatever the folder it was named from; a built-in set goes by its name."""
    path = Path(source)
    return str(path.resolve()) if path.exists() else source


def _judged_in(file: Path) -> str | None:
    """The data of a record; None of what is damaged or somebody else's, and not to be replaced."""
    try:
        record: Any = json.loads(file.read_text(encoding="utf-8"))
    except ValueError:
        return None
    return record.get("path") if isinstance(record, dict) else None
