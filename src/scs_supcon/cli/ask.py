"""`scs predict` and `scs embed`: what a model says of pictures."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from scs_supcon.cli.app import Pictures, Quiet, RunPath, app


@app.command()
def predict(
    run: RunPath,
    pictures: Pictures,
    topk: Annotated[int, typer.Option(help="Classes to name for each picture.")] = 3,
    style: Annotated[str, typer.Option("--format", help="table, csv or jsonl.")] = "table",
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Write to a file.")] = None,
    quiet: Quiet = False,
) -> None:
    """Name pictures, with probabilities, or say that they are none of the classes.

    Unreadable files are listed, the rest is done, and the exit code is then 1.

        scs predict runs/birds photo.jpg more/ 'other/*.png' --format csv -o names.csv
    """
    from scs_supcon import load
    from scs_supcon.data.finding import find_pictures
    from scs_supcon.display import Display
    from scs_supcon.model import writing

    writer = writing.writer(style)
    found = find_pictures(pictures)
    with Display(quiet).progress("predict") as tell:
        predictions = load(run).predict(found, topk, tell)
    writing.put(writer(predictions.records), output)
    _report(predictions.failures)


@app.command()
def embed(
    run: RunPath,
    pictures: Pictures,
    output: Annotated[Path, typer.Option("-o", "--output", help="A .parquet or .npz file.")],
    quiet: Quiet = False,
) -> None:
    """Write the common and style vectors of pictures.

    scs embed runs/birds more/ -o vectors.parquet
    """
    from scs_supcon import load
    from scs_supcon.data.finding import find_pictures
    from scs_supcon.display import Display
    from scs_supcon.model import writing

    writing.check_vector_file(output)
    found = find_pictures(pictures)
    with Display(quiet).progress("embed") as tell:
        vectors = load(run).embed(found, tell)
    writing.write_vectors(vectors, output)
    print(f"{len(vectors.names)} pictures: {output}")
    _report(vectors.failures)


def _report(failures: Sequence[Any]) -> None:
    for failure in failures:
        print(f"not read: {failure.reason}", file=sys.stderr)
    if failures:
        raise typer.Exit(1)
