"""The files of a finished run that its report is built from."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from scs_supcon.errors import UserError
from scs_supcon.evaluation.record import Evaluation
from scs_supcon.io.records import (
    ColumnTypes,
    MissingRecord,
    RecordError,
    csv_rows,
    read_json,
    read_json_object,
    read_parquet,
    read_text,
)
from scs_supcon.io.typed import validate
from scs_supcon.recipe.toml import Values, read_stored_values
from scs_supcon.runs.metrics_log import STEP_METRICS

Curves = Mapping[tuple[str, str], tuple[list[int], list[float]]]

COLUMNS: Mapping[str, ColumnTypes] = {
    "predictions": {"name": str, "prediction": str, "unknown": bool, "probabilities": list},
    "embeddings": {"name": str, "split": str, "label": str, "common": list, "style": list},
    "thumbnails": {"name": str, "jpeg": bytes},
}


class _Finished(BaseModel):
    """The part of finished.json that the report shows."""

    seconds: float | None = None
    latency: float | None = None


class _ShownData(BaseModel):
    source: str


class _ShownMethod(BaseModel):
    name: str


class _ShownEncoder(BaseModel):
    name: str
    frozen: bool


class _ShownRecipe(BaseModel):
    """The part of recipe.toml that the report shows; older versions had other fields, too."""

    data: _ShownData
    method: _ShownMethod
    encoder: _ShownEncoder
    seed: int


@dataclass(frozen=True)
class RunRecords:
    """The records of a finished run.

    Attributes:
        path: the run directory.
        evaluation: evaluation.json.
        seconds: duration of the run; None if unknown.
        problems: problems found by the data checks.
        recipe: the recipe as TOML.
        settings: the same, parsed.
        environment: environment.json as text.
        curves: epochs and values of each (stage, metric), in order of appearance.
        predictions: columns of predictions.parquet.
        embeddings: columns of embeddings.parquet.
        thumbnails: columns of thumbnails.parquet.
        latency: seconds of a prediction; None if unknown.
        model_bytes: size of the weights; None if they are missing.
    """

    path: Path
    evaluation: Evaluation
    seconds: float | None
    problems: list[Mapping[str, str]]
    recipe: str
    settings: Values
    environment: str
    curves: Curves
    predictions: Mapping[str, list[Any]]
    embeddings: Mapping[str, list[Any]]
    thumbnails: Mapping[str, list[Any]]
    latency: float | None = None
    model_bytes: int | None = None


def read_records(run: Path) -> RunRecords:
    """Read the records of a finished run.

    Raises:
        UserError: the folder is not a finished run, or a file is missing, damaged or too new.
    """
    _check_finished(run)
    recipe = _read(run / "recipe.toml", read_text)
    finished = _read(run / "finished.json", _finished)
    weights = run / "model" / "weights.safetensors"
    return RunRecords(
        path=run,
        evaluation=_read(run / "evaluation.json", Evaluation.read),
        seconds=finished.seconds,
        problems=_read(run / "problems.json", _problems),
        recipe=recipe,
        settings=_read(run / "recipe.toml", _settings),
        environment=json.dumps(_read(run / "environment.json", read_json_object), indent=2),
        curves=_read(run / "metrics.csv", _curves),
        predictions=_read(run / "predictions.parquet", _columns),
        embeddings=_read(run / "embeddings.parquet", _columns),
        thumbnails=_read(run / "thumbnails.parquet", _columns),
        latency=finished.latency,
        model_bytes=weights.stat().st_size if weights.exists() else None,
    )


def _check_finished(run: Path) -> None:
    if not (run / "recipe.toml").exists():
        raise UserError(f"{run} is not a run directory: it has no recipe.toml; give the path that "
                        "was given as --out")  # fmt: skip
    if not (run / "finished.json").exists():
        raise UserError(
            f"{run} is not finished: run the command that started it again, which also writes the "
            "report"
        )


def _read(file: Path, parse: Callable[[Path], Any]) -> Any:
    try:
        return parse(file)
    except MissingRecord as error:
        raise UserError(
            f"{file.parent} has no {file.name}: it was removed, or an older version finished the "
            "run; train it again with --overwrite to get a report"
        ) from error
    except RecordError as error:
        raise UserError(f"{error}: restore it, or train the run again with --overwrite") from error


def _settings(file: Path) -> Values:
    values = read_stored_values(file)
    validate(_ShownRecipe, values, file)
    return values


def _finished(file: Path) -> _Finished:
    return validate(_Finished, read_json_object(file), file)


def _problems(file: Path) -> list[Mapping[str, str]]:
    return validate(list[Mapping[str, str]], read_json(file), file)


def _columns(file: Path) -> dict[str, list[Any]]:
    types = COLUMNS[file.stem]
    table = read_parquet(file, types)
    return {
        name: list(table[name].to_numpy()) if kind is list else table[name].to_pylist()
        for name, kind in types.items()
    }


def _curves(file: Path) -> dict[tuple[str, str], tuple[list[int], list[float]]]:
    curves: dict[tuple[str, str], tuple[list[int], list[float]]] = {}
    for row in csv_rows(file, {"stage": str, "metric": str, "epoch": int, "value": float}):
        if row["metric"] not in STEP_METRICS:
            epochs, values = curves.setdefault((row["stage"], row["metric"]), ([], []))
            epochs.append(int(row["epoch"]))
            values.append(float(row["value"]))
    return curves
