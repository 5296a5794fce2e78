"""`scs doctor`: what is wrong with the data, before it is trained on."""

import csv
import io
import json
import shlex
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from scs_supcon.cli.app import Data, Json, Quiet, app
from scs_supcon.errors import UserError

if TYPE_CHECKING:
    from scs_supcon.data.clean import Mended
    from scs_supcon.data.dataset import Problem
    from scs_supcon.data.doctor import Diagnosis

EXAMPLES = 3


@app.command()
def doctor(
    data: Data,
    out: Annotated[
        Path | None,
        typer.Option(help="CSV for all that is found; default: DATA-problems.csv, here."),
    ] = None,
    fix: Annotated[
        bool,
        typer.Option(
            "--fix",
            help="Write DATA-fixed.csv beside it, a table to train on; no image is touched.",
        ),
    ] = False,
    workers: Annotated[int | None, typer.Option(help="Threads; default: one per core.")] = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Find unusable images, duplicates, look-alikes and odd classes, before training.

    The exit code is 1 if something would harm training or its results, 0 if not.

        scs doctor ./birds
        scs doctor ./birds --fix && scs train birds-fixed.csv --out runs/birds
    """
    import os

    from scs_supcon.data.doctor import diagnose
    from scs_supcon.io.atomic import write_text
    from scs_supcon.progress import Display

    threads = workers if workers is not None else os.cpu_count() or 1
    with Display(quiet).progress("looking and comparing") as tell:
        found = diagnose(data, threads, tell)
    place = Path(os.path.abspath(data))  # noqa: PTH100 - a link keeps its own name
    stem = place.name if place.is_dir() else place.stem
    table = out or Path(f"{stem}-problems.csv")
    if found.problems:
        write_text(table, _csv(found.problems))
    fixed = table.with_name(f"{stem}-fixed.csv") if fix else None
    mended = None if fixed is None else _mend(found, fixed)
    if as_json:
        print(json.dumps(_summary(found, table, fixed, mended), indent=1))
    else:
        print("\n".join(_lines(found, data, table, fixed, mended)))
    if not found.healthy:
        raise typer.Exit(1)


def _mend(found: "Diagnosis", file: Path) -> "Mended":
    from scs_supcon.data.clean import mend, table_of
    from scs_supcon.io.atomic import write_text

    mended = mend(found)
    text = table_of(mended, file.parent)
    if file.exists() and file.read_text(encoding="utf-8") != text:
        raise UserError(
            f"{file} exists and says something else: remove it, or choose another --out"
        )
    write_text(file, text)
    return mended


def _csv(problems: Sequence["Problem"]) -> str:
    from scs_supcon.io.csv import text_cell

    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(["kind", "name", "other", "detail"])
    rows.writerows(map(text_cell, (p.kind, p.name, p.same_as, p.detail)) for p in problems)
    return text.getvalue()


def _summary(
    found: "Diagnosis", table: Path, fixed: Path | None, mended: "Mended | None"
) -> dict[str, Any]:
    summary = {
        "healthy": found.healthy,
        "images": len(found.images),
        "classes": len(found.images.classes),
        "handled": {what: len(names) for what, names in found.handled.items()},
        "counts": {kind: len(of_kind) for kind, of_kind in _by_kind(found)},
        "problems": [
            {"kind": p.kind, "name": p.name, "other": p.same_as, "detail": p.detail}
            for p in found.problems
        ],
        "table": str(table) if found.problems else None,
    }
    if mended is not None:
        kept = {"images": len(mended.images), "left_out": mended.left_out}
        summary["fixed"] = {"table": str(fixed), **kept, "moved": mended.moved}
    return summary


def _lines(
    found: "Diagnosis", data: str, table: Path, fixed: Path | None, mended: "Mended | None"
) -> Iterator[str]:
    images = found.images
    yield f"{data}: {len(images):,} images of {len(images.classes)} classes"
    if found.handled:
        odd = ", ".join(f"{what} ({len(names):,})" for what, names in found.handled.items())
        yield f"handled when opened: {odd}"
    yield from _kind_lines(found)
    yield ""
    if found.healthy:
        yield "nothing that would harm training was found"
    if found.problems:
        yield f"all of it: {table}"
    if mended is not None:
        yield from _mended_lines(mended, fixed)
    elif not found.healthy and images.paths is not None:
        yield f"a table without these: scs doctor {shlex.quote(data)} --fix (no image is touched)"


def _kind_lines(found: "Diagnosis") -> Iterator[str]:
    from scs_supcon.data.doctor import HARMFUL, HARMLESS

    for heading, advice in (("problems", HARMFUL), ("notes", HARMLESS)):
        kinds = [(kind, of_kind) for kind, of_kind in _by_kind(found) if kind in advice]
        if kinds:
            yield f"\n{heading}"
        for kind, of_kind in kinds:
            yield f"  {kind}: {len(of_kind):,} · {advice[kind]}"
            yield from (f"    {problem.detail}" for problem in of_kind[:EXAMPLES])
            if len(of_kind) > EXAMPLES:
                yield f"    … and {len(of_kind) - EXAMPLES:,} more"


def _mended_lines(mended: "Mended", file: Path | None) -> Iterator[str]:
    out = ", ".join(f"{count:,} {reason}" for reason, count in mended.left_out.items()) or "none"
    yield f"left out: {out}; moved to another split: {mended.moved:,}"
    table = shlex.quote(str(file))
    yield f"train on the {len(mended.images):,} others: scs train {table} --out runs/NAME"


def _by_kind(found: "Diagnosis") -> list[tuple[str, list["Problem"]]]:
    return [(kind, list(group)) for kind, group in groupby(found.problems, lambda p: p.kind)]
