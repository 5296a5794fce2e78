"""A model's answers as tables, CSV, JSON lines, Parquet and NumPy files."""

import csv
import io
import json
from collections.abc import Callable, Sequence
from pathlib import Path

from scs_supcon.errors import UserError, did_you_mean
from scs_supcon.inference import Embeddings, Prediction
from scs_supcon.io.atomic import replacing, write_text
from scs_supcon.io.csv import text_cell

Writer = Callable[[Sequence[Prediction]], str]
NONE = "none of these"


def writer(style: str) -> Writer:
    """Return the function that writes predictions in this style."""
    styles = {"table": _table, "csv": _csv, "jsonl": _json_lines}
    if style not in styles:
        raise UserError(
            f"unknown format {style!r}: choose table, csv or jsonl{did_you_mean(style, styles)}"
        )
    return styles[style]


def put(text: str, output: Path | None) -> None:
    """Print, or write to a file in one step."""
    if output is None:
        print(text, end="")
    else:
        write_text(output, text)


def check_vector_file(path: Path) -> None:
    if path.suffix not in (".parquet", ".npz"):
        raise UserError(f"{path}: vectors go to a .parquet or an .npz file")


def write_vectors(vectors: Embeddings, path: Path) -> None:
    """Write names, common and style, one row for each image."""
    with replacing(path) as temporary:
        if path.suffix == ".npz":
            import numpy as np

            with temporary.open("wb") as file:
                np.savez(file, name=vectors.names, common=vectors.common, style=vectors.style)
            return
        import pyarrow as pa
        import pyarrow.parquet as pq

        columns = {
            "name": list(vectors.names),
            "common": list(vectors.common),
            "style": list(vectors.style),
        }
        rows = pa.list_(pa.float32())
        schema = pa.schema({"name": pa.string(), "common": rows, "style": rows})
        pq.write_table(pa.table(columns, schema=schema), temporary)


def _table(records: Sequence[Prediction]) -> str:
    width = max((len(record.name) for record in records), default=0)
    lines = []
    for record in records:
        ranked = ", ".join(f"{name} {chance:.1%}" for name, chance in record.top)
        lines.append(
            f"{record.name:<{width}}  {f'{NONE}; ' if record.none_of_these else ''}{ranked}\n"
        )
    return "".join(lines)


def _csv(records: Sequence[Prediction]) -> str:
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(["image", "class", "probability", "none_of_these", "nearest", "similarity"])
    for r in records:
        rows.writerow(
            [
                text_cell(r.name),
                text_cell(r.label),
                f"{r.probability:.6f}",
                r.none_of_these,
                text_cell(r.nearest),
                f"{r.similarity:.6f}",
            ]
        )
    return text.getvalue()


def _json_lines(records: Sequence[Prediction]) -> str:
    rows = (record.__dict__ | {"top": dict(record.top)} for record in records)
    return "".join(json.dumps(row) + "\n" for row in rows)
