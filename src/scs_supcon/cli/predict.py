"""`scs predict` and `scs embed`: use a model on images."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from scs_supcon.cli.app import ScsCommand, app, echo
from scs_supcon.cli.checks import check_images
from scs_supcon.cli.options import (
    AllowCode,
    Dask,
    FalseRejection,
    ImagePaths,
    Quiet,
    RunPath,
    Slurm,
    Threshold,
)
from scs_supcon.errors import UserError
from scs_supcon.io.atomic import check_writable

if TYPE_CHECKING:
    from scs_supcon.inference.types import Embeddings
    from scs_supcon.progress import Display

LISTED = 20  # images up to which every one is printed by default


@app.command()
def predict(
    run: RunPath,
    images: ImagePaths,
    topk: Annotated[int, typer.Option(help="Number of classes to list for each image.")] = 3,
    output_format: Annotated[
        str | None,
        typer.Option(
            "--format",
            help="table, csv, jsonl, html (a page with thumbnails; needs -o), or summary: the "
            "number of images per class. Default: table; summary for more than 20 images.",
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Output file. Default: standard output.")
    ] = None,
    sort_into: Annotated[
        Path | None,
        typer.Option(
            help="Copy the images into subfolders of this folder, one per class and one for "
            "unknown images. The originals are not changed."
        ),
    ] = None,
    false_rejection: FalseRejection = None,
    threshold: Threshold = None,
    allow_code: AllowCode = None,
    quiet: Quiet = False,
) -> None:
    """Classify images: print the most probable classes, or "unknown".

    Files that cannot be read are listed and skipped, and the exit code is 1.

        scs predict runs/birds photo.jpg more/ 'other/*.png' --format csv -o names.csv
        scs predict runs/birds holiday/ --format html -o holiday.html
        scs predict runs/birds holiday/ --sort-into sorted/
    """
    files = check_images(run, images)
    for path in (output, sort_into):
        if path is not None:
            check_writable(path)
    if output_format == "html" and output is None:
        raise UserError("--format html writes a page: add -o FILE.html")
    if output_format is None:
        output_format = "table" if len(files) <= LISTED or output is not None else "summary"

    from scs_supcon import load
    from scs_supcon.inference import writing
    from scs_supcon.progress import Display

    if output_format != "html":
        formatter = writing.prediction_formatter(output_format)
    with Display(quiet).progress("predict") as progress:
        predictions = load(run).predict(
            files, topk, progress, false_rejection=false_rejection, threshold=threshold
        )
    if output_format == "html":
        from scs_supcon.report.predictions_page import predictions_page

        title = f"Predictions of {run}"
        text = predictions_page(predictions.records, predictions.failures, title)
    elif output_format == "summary":
        text = writing.summarise(predictions.records, len(predictions.failures))
        text += "\nall images: --format table, csv, jsonl or html, with -o FILE\n"
    else:
        text = formatter(predictions.records)
    writing.write_output(text, output)
    if sort_into is not None:
        from scs_supcon.inference.sorting import sort_into as copy_into

        copied = sum(copy_into(predictions.records, sort_into).values())
        echo(f"{copied:,} images are in {sort_into}", err=True)
    report_failures(predictions.failures)


@app.command(cls=ScsCommand)
def embed(
    run: RunPath,
    images: ImagePaths,
    output: Annotated[Path, typer.Option("-o", "--output", help="Output file: .parquet or .npz.")],
    parts: Annotated[
        Path | None,
        typer.Option(
            help="Compute parts of 4,096 images and keep them in this folder: the same command "
            "resumes, and commands that share the folder divide the work. Delete it afterwards. "
            "Default: none; OUTPUT.parts with --dask.",
        ),
    ] = None,
    half: Annotated[
        bool, typer.Option("--half", help="Write float16 vectors, which take half the space.")
    ] = False,
    dask: Dask = None,
    slurm: Slurm = None,
    allow_code: AllowCode = None,
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
    display = Display(quiet)
    if parts is None and dask is not None:
        parts = output.with_name(f"{output.name}.parts")
    if parts is not None:
        vectors = _embed_in_parts(run, files, parts, dask, display)
    else:
        with display.progress("embed") as progress:
            vectors = load(run).embed(files, progress)
    writing.write_embeddings(vectors.half() if half else vectors, output)
    echo(f"{len(vectors.names)} images: {output}")
    report_failures(vectors.failures)


def _embed_in_parts(
    run: Path, files: Sequence[Path], folder: Path, dask: str | None, display: "Display"
) -> "Embeddings":
    from scs_supcon.cluster.tasks import SharedTask, run_tasks, task_pool
    from scs_supcon.inference.parts import embed_part, embedding_parts, join_parts
    from scs_supcon.io.atomic import make_folder

    make_folder(folder)
    parts = embedding_parts(run, files, folder)
    tasks = {
        part.file.stem: SharedTask(
            f"part {number} of {len(parts)}",
            embed_part,
            (str(run), json.dumps([str(file) for file in part.images]), str(part.file)),
            part.file,
            part.lock,
            part.file.with_suffix(".log"),
        )
        for number, part in enumerate(parts, start=1)
    }
    failed = run_tasks(tasks, task_pool(1, dask, [embed_part.__module__]), display, "parts")
    if failed:
        raise UserError(
            f"{len(failed)} of {len(parts)} parts failed: {next(iter(failed.values()))}"
        )
    return join_parts(parts)


def report_failures(failures: Sequence[Any]) -> None:
    """List the images that could not be read, or three of HEIC images; then the exit code is 1."""
    from scs_supcon.data.image_io import INSTALL_HEIF, NEEDS_HEIF

    reasons = [failure.reason for failure in failures]
    more = set([reason for reason in reasons if reason.endswith(NEEDS_HEIF)][3:])
    for reason in (reason for reason in reasons if reason not in more):
        echo(f"not read: {reason}", err=True)
    if more:
        echo(f"not read: {len(more):,} more HEIC images: {INSTALL_HEIF}", err=True)
    if failures:
        raise typer.Exit(1)
