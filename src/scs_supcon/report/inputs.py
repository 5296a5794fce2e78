"""What a report is made of: the files of one finished run."""

import csv
import json
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scs_supcon.errors import UserError
from scs_supcon.evaluation.record import Evaluation

Curves = Mapping[tuple[str, str], tuple[list[int], list[float]]]


@dataclass(frozen=True)
class Inputs:
    """The records of one run.

    Attributes:
        path: the run's folder.
        summary: finished.json.
        evaluation: evaluation.json.
        problems: what the check of the data found.
        recipe: the recipe as TOML.
        settings: the same, parsed.
        environment: where it was trained.
        curves: epochs and values of each (stage, metric), in the order in which they came.
        predictions: columns of predictions.parquet.
        embeddings: columns of embeddings.parquet.
        thumbnails: columns of thumbnails.parquet.
    """

    path: Path
    summary: Mapping[str, Any]
    evaluation: Mapping[str, Any]
    problems: list[Mapping[str, str]]
    recipe: str
    settings: Mapping[str, Any]
    environment: Mapping[str, Any]
    curves: Curves
    predictions: Mapping[str, list[Any]]
    embeddings: Mapping[str, list[Any]]
    thumbnails: Mapping[str, list[Any]]


def read_inputs(run: Path) -> Inputs:
    """Read what a finished run left.

    Raises:
        UserError: it is not a run, not finished, of another version, or damaged.
    """
    _check(run)
    evaluation = _read(run / "evaluation.json", _evaluation)
    recipe = _read(run / "recipe.toml", _text)
    return Inputs(
        path=run,
        summary=_read(run / "finished.json", _json),
        evaluation=evaluation,
        problems=_read(run / "problems.json", _json),
        recipe=recipe,
        settings=_read(run / "recipe.toml", lambda file: tomllib.loads(_text(file))),
        environment=_read(run / "environment.json", _json),
        curves=_read(run / "metrics.csv", _curves),
        predictions=_read(run / "predictions.parquet", _columns),
        embeddings=_read(run / "embeddings.parquet", _columns),
        thumbnails=_read(run / "thumbnails.parquet", _columns),
    )


def _check(run: Path) -> None:
    if not (run / "recipe.toml").exists():
        raise UserError(f"{run} is not a run: it holds no recipe.toml; name what --out named")
    if not (run / "finished.json").exists():
        raise UserError(
            f"{run} is not finished: repeat the line that began it, which makes the report as well"
        )


def _read(file: Path, how: Callable[[Path], Any]) -> Any:
    from pyarrow.lib import ArrowInvalid

    try:
        return how(file)
    except FileNotFoundError as error:
        raise UserError(
            f"{file.parent} has no {file.name}: the run was finished by an older version, or the "
            "file was removed; train it again with --overwrite to have a report"
        ) from error
    except UserError:
        raise
    except (ValueError, KeyError, ArrowInvalid) as error:
        raise UserError(
            f"{file} is damaged ({error}): bring it back, or train the run again with --overwrite"
        ) from error


def _text(file: Path) -> str:
    return file.read_text(encoding="utf-8")


def _evaluation(file: Path) -> Any:
    if not file.exists():
        raise FileNotFoundError(file)
    return Evaluation.read(file).as_format_1()


def _json(file: Path) -> Any:
    return json.loads(_text(file))


def _columns(file: Path) -> dict[str, list[Any]]:
    import pyarrow.parquet as pq

    table = pq.read_table(file)
    as_arrays = {"common", "style", "probabilities"}
    return {
        name: list(table[name].to_numpy()) if name in as_arrays else table[name].to_pylist()
        for name in table.column_names
    }


def _curves(file: Path) -> dict[tuple[str, str], tuple[list[int], list[float]]]:
    found: dict[tuple[str, str], tuple[list[int], list[float]]] = {}
    with file.open(newline="", encoding="utf-8") as lines:
        for row in csv.DictReader(lines):
            epochs, values = found.setdefault((row["stage"], row["metric"]), ([], []))
            epochs.append(int(row["epoch"]))
            values.append(float(row["value"]))
    return found
