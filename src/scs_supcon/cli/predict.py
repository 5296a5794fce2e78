"""`scs predict` and `scs embed`: use a model on images."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from scs_supcon.cli.app import app
from scs_supcon.cli.checks import check_images
from scs_supcon.cli.options import FalseRejection, ImagePaths, Quiet, RunPath, Threshold
from scs_supcon.io.atomic import check_writable


@app.command()
def predict(
    run: RunPath,
    images: ImagePaths,
    topk: Annotated[int, typer.Option(help="Number of classes to list for each image.")] = 3,
    output_format: Annotated[
        str, typer.Option("--format", help="Output format: table, csv or jsonl.")
    ] = "table",
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Output file. Default: standard output.")
    ] = None,
    false_rejection: FalseRejection = None,
    threshold: Threshold = None,
    quiet: Quiet = False,
) -> None:
    """Classify images: print the most probable classes, or "unknown".

    Files that cannot be read are listed and skipped, and the exit code is 1.

        scs predict runs/birds photo.jpg more/ 'other/*.png' --format csv -o names.csv
    """
    files = check_images(run, images)
    if output is not None:
        check_writable(output)

    from scs_supcon import load
    from scs_supcon.inference import writing
    from scs_supcon.progress import Display

    formatter = writing.prediction_formatter(output_format)
    with Display(quiet).progress("predict") as progress:
        predictions = load(run).predict(
            files, topk, progress, false_rejection=false_rejection, threshold=threshold
        )
    writing.write_output(formatter(predictions.records), output)
    _report_failures(predictions.failures)


@app.command()
def embed(
    run: RunPath,
    images: ImagePaths,
    output: Annotated[Path, typer.Option("-o", "--output", help="Output file: .parquet or .npz.")],
    quiet: Quiet = False,
) -> None:
    """Write the common and style fields of images to a file.

    scs embed runs/birds more/ -o vectors.parquet
    """
    files = check_images(run, images)
    check_writable(output)

    from scs_supcon import load
    from scs_supcon.inference import writing
    from scs_supcon.progress import Display

    writing.check_embedding_file(output)
    with Display(quiet).progress("embed") as progress:
        vectors = load(run).embed(files, progress)
    writing.write_embeddings(vectors, output)
    print(f"{len(vectors.names)} images: {output}")
    _report_failures(vectors.failures)


def _report_failures(failures: Sequence[Any]) -> None:
    for failure in failures:
        print(f"not read: {failure.reason}", file=sys.stderr)
    if failures:
        raise typer.Exit(1)
