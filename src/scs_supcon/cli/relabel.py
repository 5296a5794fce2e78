"""`scs relabel`: correct labels by a table."""

import shlex
from pathlib import Path
from typing import Annotated

import typer

from scs_supcon.cli.app import app, echo
from scs_supcon.cli.options import RunData
from scs_supcon.errors import UserError
from scs_supcon.io.atomic import check_writable, write_text
from scs_supcon.io.records import read_text


@app.command()
def relabel(
    run: Annotated[Path, typer.Argument(help="Directory of a finished run.")],
    corrections: Annotated[
        Path | None,
        typer.Argument(
            help="CSV with the columns image and new_label: a class, or - to leave the image out. "
            "Also corrections.jsonl of `scs serve`. Default: list the suspected labels."
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            help="Output file. Default: NAME-labels.csv or NAME-corrected.csv here, with the name "
            "of the run.",
        ),
    ] = None,
    data: RunData = None,
) -> None:
    """List labels that are probably wrong, and write a table with corrected ones to train on.

    Labels of all splits are checked, each by a classifier that was not fitted to the image. Fill in
    the column new_label, and give the file to the same command. Image files are not changed.

        scs relabel runs/birds
        scs relabel runs/birds birds-labels.csv
        scs train birds-corrected.csv --out runs/birds-2
    """
    from scs_supcon.runs.relabel import corrected_table, suspected_labels_csv

    ending = "labels" if corrections is None else "corrected"
    file = output or Path(f"{run.resolve().name}-{ending}.csv")
    check_writable(file)
    if corrections is None:
        text, count = suspected_labels_csv(run)
        if file.exists() and read_text(file, links=True) != text:
            raise UserError(f"{file} already exists: remove it, or choose another file with -o")
        write_text(file, text)
        echo(f"{count} suspected labels: {file}")
        again = f"scs relabel {shlex.quote(str(run))} {shlex.quote(str(file))}"
        echo(f"fill in the column new_label (a class, or - to leave the image out), then: {again}")
        return
    table = corrected_table(run, corrections, file, data)
    write_text(file, table.text)
    echo(f"{table.changed} labels corrected, {table.left_out} images left out: {file}")
    if table.test_images:
        echo(
            f"caution: {table.test_images} of them are test images, so the accuracies before and "
            "after are measured on different labels"
        )
    echo(f"train     scs train {shlex.quote(str(file))} --out {shlex.quote(str(run))}-2")
