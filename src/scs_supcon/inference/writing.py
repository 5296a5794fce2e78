"""Write predictions as tables, CSV or JSON Lines, and embeddings as Parquet or NumPy files."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypedDict

from scs_supcon.errors import UserError, did_you_mean
from scs_supcon.inference.types import Embeddings, Prediction
from scs_supcon.io.atomic import replacing, write_text
from scs_supcon.io.csv import csv_text, text_cell
from scs_supcon.io.text import printable, printable_name

PredictionFormatter = Callable[[Sequence[Prediction]], str]


def prediction_formatter(name: str) -> PredictionFormatter:
    """Return the function that writes predictions as "table", "csv", "jsonl" or "summary"."""
    formatters: dict[str, PredictionFormatter] = {
        "table": _table,
        "csv": _csv,
        "jsonl": _json_lines,
        "summary": summarise,
    }
    if name not in formatters:
        raise UserError(
            f"unknown format {name!r}: choose table, csv, jsonl, summary or html"
            f"{did_you_mean(name, [*formatters, 'summary', 'html'])}"
        )
    return formatters[name]


def summarise(predictions: Sequence[Prediction], failures: int = 0) -> str:
    """Return the number of images per predicted class, unknown and unreadable ones."""
    known = [prediction for prediction in predictions if not prediction.unknown]
    unknown = len(predictions) - len(known)
    counts = [f"{len(known):,} classified", f"{unknown:,} unknown"]
    if failures:
        counts.append(f"{failures:,} could not be read")
    lines = [f"{len(predictions) + failures:,} images: {', '.join(counts)}", ""]
    by_class: dict[str, list[float]] = {}
    for prediction in known:
        by_class.setdefault(prediction.label, []).append(prediction.probability)
    width = max(map(len, by_class), default=0)
    for name, values in sorted(by_class.items(), key=lambda item: (-len(item[1]), item[0])):
        mean = f"mean probability {sum(values) / len(values):.1%}"
        lines.append(f"{name:<{width}}  {len(values):>6,}  {mean}")
    if unknown:
        lines.append(f"{'unknown':<{width}}  {unknown:>6,}")
    return "\n".join(lines) + "\n"


def write_output(text: str, file: Path | None) -> None:
    """Print the text, or write it to a file atomically."""
    if file is None:
        print(printable(text), end="")
    else:
        write_text(file, text)


def check_embedding_file(file: Path) -> None:
    """Raise a `UserError` unless the file ends with .parquet or .npz."""
    if file.suffix not in (".parquet", ".npz"):
        raise UserError(f"the file for embeddings must end with .parquet or .npz, got {file}")


def write_embeddings(embeddings: Embeddings, file: Path) -> None:
    """Write image names, common and style vectors in their precision, one row per image."""
    names = [printable_name(name) for name in embeddings.names]
    with replacing(file) as temporary:
        if file.suffix == ".npz":
            import numpy as np

            with temporary.open("wb") as stream:
                np.savez(
                    stream,
                    image=names,
                    common=embeddings.common,
                    style=embeddings.style,
                )
            return
        import pyarrow as pa
        import pyarrow.parquet as pq

        columns = {
            "image": names,
            "common": list(embeddings.common),
            "style": list(embeddings.style),
        }
        vectors = pa.list_(pa.from_numpy_dtype(embeddings.common.dtype))
        schema = pa.schema({"image": pa.string(), "common": vectors, "style": vectors})
        pq.write_table(pa.table(columns, schema=schema), temporary)


def _table(predictions: Sequence[Prediction]) -> str:
    names = [printable_name(prediction.name) for prediction in predictions]
    width = max(map(len, names), default=0)
    lines = []
    for shown, prediction in zip(names, predictions, strict=True):
        top = ", ".join(
            f"{printable_name(name)} {probability:.1%}" for name, probability in prediction.top
        )
        unknown = "unknown; " if prediction.unknown else ""
        lines.append(f"{shown:<{width}}  {unknown}{top}\n")
    return "".join(lines)


def _csv(predictions: Sequence[Prediction]) -> str:
    """Write one row per image; the columns of the second most probable class end with "_2"."""
    others = range(2, max((len(prediction.top) for prediction in predictions), default=1) + 1)
    columns = ["image", "label", "probability", "unknown", "nearest", "similarity", "threshold"]
    columns += [f"{c}_{k}" for k in others for c in ("label", "probability")]
    rows: list[list[object]] = [[*columns]]
    for prediction in predictions:
        row: list[object] = [
            text_cell(prediction.name),
            text_cell(prediction.label),
            f"{prediction.probability:.6f}",
            prediction.unknown,
            text_cell(prediction.nearest),
            f"{prediction.similarity:.6f}",
            f"{prediction.threshold:.6f}",
        ]
        for name, probability in prediction.top[1:]:
            row += [text_cell(name), f"{probability:.6f}"]
        rows.append(row)
    return csv_text(rows)


def _json_lines(predictions: Sequence[Prediction]) -> str:
    return "".join(json.dumps(prediction_row(prediction)) + "\n" for prediction in predictions)


class PredictionRow(TypedDict):
    """A prediction in JSON; `top` holds probabilities by class."""

    image: str
    label: str
    probability: float
    top: dict[str, float]
    unknown: bool
    nearest: str
    similarity: float
    threshold: float


def prediction_row(prediction: Prediction) -> PredictionRow:
    """Return a prediction as an object for JSON."""
    return {
        "image": prediction.name,
        "label": prediction.label,
        "probability": prediction.probability,
        "top": dict(prediction.top),
        "unknown": prediction.unknown,
        "nearest": prediction.nearest,
        "similarity": prediction.similarity,
        "threshold": prediction.threshold,
    }
