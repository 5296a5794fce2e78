"""The table of predictions for labelled images: `predictions.parquet`."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from scs_supcon.inference.decision import Decision
from scs_supcon.io.atomic import replacing
from scs_supcon.io.records import RecordError, read_json, read_parquet
from scs_supcon.io.typed import validate


def prediction_columns(
    names: Sequence[str], labels: Sequence[str], classes: Sequence[str], decision: Decision
) -> dict[str, list[Any]]:
    """Return the columns of the table: names and labels of images and the model's decision."""
    return {
        "name": list(names),
        "label": list(labels),
        "prediction": [classes[index] for index in decision.probabilities.argmax(1)],
        "unknown": decision.unknown.tolist(),
        "similarity": decision.similarity.tolist(),
        "probabilities": list(decision.probabilities.float().numpy()),
    }


def write_predictions(path: Path, columns: Mapping[str, list[Any]]) -> None:
    """Write the table, one row per image; "split" and "neighbours" are optional columns."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    types = {
        "name": pa.string(),
        "split": pa.string(),
        "label": pa.string(),
        "prediction": pa.string(),
        "unknown": pa.bool_(),
        "similarity": pa.float64(),
        "probabilities": pa.list_(pa.float32()),
        "neighbours": pa.string(),
    }
    schema = pa.schema({name: kind for name, kind in types.items() if name in columns})
    ordered = {name: columns[name] for name in schema.names}
    with replacing(path) as temporary:
        pq.write_table(pa.table(ordered, schema=schema), temporary)


class ValidationScores(NamedTuple):
    """Scores of a finished run on its validation images.

    Attributes:
        loss: mean −ln p(true class).
        accuracy: share of correctly classified images.
        images: number of images.
    """

    loss: float
    accuracy: float
    images: int


def validation_scores(run: Path) -> ValidationScores:
    """Return the scores of a finished run on its validation images."""
    file = run / "predictions.parquet"
    columns = {"split": str, "label": str, "prediction": str, "probabilities": list}
    rows = [row for row in read_parquet(file, columns).to_pylist() if row["split"] == "val"]
    classes = validate(list[str], read_json(run / "classes.json"), run / "classes.json")
    class_index = {name: index for index, name in enumerate(classes)}
    try:
        # Float32 may have rounded a small probability to 0.
        likelihoods = [max(row["probabilities"][class_index[row["label"]]], 1e-30) for row in rows]
        loss = -sum(map(math.log, likelihoods)) / len(rows)
    except (LookupError, TypeError, ValueError, ZeroDivisionError) as error:
        raise RecordError(f"{file} is damaged: it does not fit classes.json ({error!r})") from error
    correct = sum(row["prediction"] == row["label"] for row in rows)
    return ValidationScores(loss, correct / len(rows), len(rows))
