"""`scs predict` and `scs embed`: what a model says of images."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from scs_supcon.cli.app import ImageDataset, Quiet, RunPath, app


@app.command()
def predict(
    run: RunPath,
    images: ImageDataset,
    topk: Annotated[int, typer.Option(help="Classes to name for each image.")] = 3,
    style: Annotated[str, typer.Option("--format", help="table, csv or jsonl.")] = "table",
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Write to a file.")] = None,
    quiet: Quiet = False,
) -> None:
    """Name images, with probabilities, or say that they are none of the classes.

    Unreadable files are listed, the rest is done, and the exit code is then 1.

        scs predict runs/birds photo.jpg more/ 'other/*.png' --format csv -o names.csv
    """
    from scs_supcon import load
    from scs_supcon.data.load import find_images
    from scs_supcon.inference import writing
    from scs_supcon.progress import Display

    formatter = writing.prediction_formatter(style)
    found = find_images(images)
    with Display(quiet).progress("predict") as tell:
        predictions = load(run).predict(found, topk, tell)
    writing.write_output(formatter(predictions.records), output)
    _report(predictions.failures)


@app.command()
def embed(
    run: RunPath,
    images: ImageDataset,
    output: Annotated[Path, typer.Option("-o", "--output", help="A .parquet or .npz file.")],
    quiet: Quiet = False,
) -> None:
    """Write the common and style vectors of images.

    scs embed runs/birds more/ -o vectors.parquet
    """
    from scs_supcon import load
    from scs_supcon.data.load import find_images
    from scs_supcon.inference import writing
    from scs_supcon.progress import Display

    writing.check_embedding_file(output)
    found = find_images(images)
    with Display(quiet).progress("embed") as tell:
        vectors = load(run).embed(found, tell)
    writing.write_embeddings(vectors, output)
    print(f"{len(vectors.names)} images: {output}")
    _report(vectors.failures)


def _report(failures: Sequence[Any]) -> None:
    for failure in failures:
        print(f"not read: {failure.reason}", file=sys.stderr)
    if failures:
        raise typer.Exit(1)
