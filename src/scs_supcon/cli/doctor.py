"""`scs doctor`: check a dataset for problems before training."""

import json
import os
import shlex
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from scs_supcon.cli.app import app, echo
from scs_supcon.cli.options import Data, DataFolder, Json, Quiet
from scs_supcon.errors import UserError
from scs_supcon.io.records import read_text

if TYPE_CHECKING:
    from scs_supcon.data.audit import Diagnosis
    from scs_supcon.data.clean import CleanDataset
    from scs_supcon.data.dataset import Problem

EXAMPLES = 3


@app.command()
def doctor(
    data: Data,
    folder: DataFolder = None,
    out: Annotated[
        Path | None,
        typer.Option(help="CSV file for the problems. Default: DATA-problems.csv here."),
    ] = None,
    fix: Annotated[
        bool,
        typer.Option(
            "--fix",
            help="Write DATA-fixed.csv, a clean table to train on. Images are not changed.",
        ),
    ] = False,
    workers: Annotated[
        int | None, typer.Option(help="Number of threads. Default: one per core.")
    ] = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Find unusable images, duplicates, near duplicates and problematic classes before training.

    The exit code is 1 if a problem would harm training or its results, and 0 otherwise.

        scs doctor ./birds
        scs doctor ./birds --fix && scs train birds-fixed.csv --out runs/birds
    """
    from scs_supcon.data.audit import diagnose
    from scs_supcon.data.load import load_images, source_name
    from scs_supcon.data.named.registry import named_source
    from scs_supcon.io.atomic import write_text
    from scs_supcon.progress import Display

    data = named_source(data, folder or ())
    threads = workers if workers is not None else os.cpu_count() or 1
    with Display(quiet).progress("checking images") as progress:
        # Each image counts twice, decoded and compared; users count images.
        diagnosis = diagnose(
            load_images(data, forgiving=True),
            threads,
            lambda done, total: progress(done // 2, total // 2),
        )
    stem = source_name(data)
    table = out or Path(f"{stem}-problems.csv")
    if diagnosis.problems:
        write_text(table, _csv(diagnosis.problems))
    fixed_table = table.with_name(f"{stem}-fixed.csv") if fix else None
    fixed = None if fixed_table is None else _write_fixed_table(diagnosis, fixed_table)
    if as_json:
        echo(json.dumps(_summary(diagnosis, table, fixed_table, fixed), indent=1))
    else:
        echo("\n".join(_lines(diagnosis, data, table, fixed_table, fixed)))
    if not diagnosis.healthy:
        raise typer.Exit(1)


def _write_fixed_table(diagnosis: "Diagnosis", file: Path) -> "CleanDataset":
    from scs_supcon.data.clean import clean, table_csv
    from scs_supcon.io.atomic import write_text

    fixed = clean(diagnosis)
    text = table_csv(fixed, file.parent)
    if file.exists() and read_text(file, links=True) != text:
        raise UserError(
            f"{file} already exists with different content: remove it, or choose another --out"
        )
    write_text(file, text)
    return fixed


def _csv(problems: Sequence["Problem"]) -> str:
    from scs_supcon.io.csv import csv_text, text_cell

    rows = (map(text_cell, (p.kind, p.name, p.same_as, p.detail)) for p in problems)
    return csv_text([["kind", "name", "other", "detail"], *rows])


def _summary(
    diagnosis: "Diagnosis", table: Path, fixed_table: Path | None, fixed: "CleanDataset | None"
) -> dict[str, Any]:
    summary = {
        "healthy": diagnosis.healthy,
        "images": len(diagnosis.images),
        "classes": len(diagnosis.images.classes),
        "conversions": {
            conversion: len(names) for conversion, names in diagnosis.conversions.items()
        },
        "counts": {kind: len(problems) for kind, problems in _by_kind(diagnosis)},
        "problems": [
            {"kind": p.kind, "name": p.name, "other": p.same_as, "detail": p.detail}
            for p in diagnosis.problems
        ],
        "table": str(table) if diagnosis.problems else None,
    }
    if fixed is not None:
        counts = {"images": len(fixed.images), "left_out": fixed.left_out, "moved": fixed.moved}
        summary["fixed"] = {"table": str(fixed_table), **counts}
    return summary


def _lines(
    diagnosis: "Diagnosis",
    data: str,
    table: Path,
    fixed_table: Path | None,
    fixed: "CleanDataset | None",
) -> Iterator[str]:
    images = diagnosis.images
    yield f"{data}: {len(images):,} images in {len(images.classes)} classes"
    if diagnosis.conversions:
        counts = [f"{key} ({len(names):,})" for key, names in diagnosis.conversions.items()]
        yield f"converted on reading: {', '.join(counts)}"
    yield from _problem_lines(diagnosis)
    yield ""
    if diagnosis.healthy:
        yield "no problems that would harm training"
    if diagnosis.problems:
        yield f"full list: {table}"
    if fixed is not None:
        yield from _fixed_lines(fixed, fixed_table)
    elif not diagnosis.healthy and images.paths is not None:
        yield (
            f"to write a clean table to train on: scs doctor {shlex.quote(data)} --fix "
            "(images are not changed)"
        )


def _problem_lines(diagnosis: "Diagnosis") -> Iterator[str]:
    from scs_supcon.data.dataset import PROBLEM_KINDS

    for heading, harmful in (("problems", True), ("notes", False)):
        groups = [
            (PROBLEM_KINDS[kind], problems)
            for kind, problems in _by_kind(diagnosis)
            if PROBLEM_KINDS[kind].harmful == harmful
        ]
        if groups:
            yield f"\n{heading}"
        for kind, problems in groups:
            yield f"  {kind.title}: {len(problems):,} · {kind.advice}"
            yield from (f"    {problem.detail}" for problem in problems[:EXAMPLES])
            if len(problems) > EXAMPLES:
                yield f"    … and {len(problems) - EXAMPLES:,} more"


def _fixed_lines(fixed: "CleanDataset", file: Path | None) -> Iterator[str]:
    from scs_supcon.data.clean import LEFT_OUT_REASONS

    counts = [f"{LEFT_OUT_REASONS[key]} ({count:,})" for key, count in fixed.left_out.items()]
    yield f"left out: {', '.join(counts) or 'none'}; moved to another split: {fixed.moved:,}"
    table = shlex.quote(str(file))
    yield f"to train on the other {len(fixed.images):,} images: scs train {table} --out runs/NAME"


def _by_kind(diagnosis: "Diagnosis") -> list[tuple[str, list["Problem"]]]:
    return [(kind, list(group)) for kind, group in groupby(diagnosis.problems, lambda p: p.kind)]
