"""`scs search`: find the images that are most similar to an image."""

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, cast

import typer

from scs_supcon.cli.app import app, echo
from scs_supcon.cli.checks import check_images
from scs_supcon.cli.options import AllowCode, Json, Quiet, RunPath
from scs_supcon.cli.predict import report_failures
from scs_supcon.errors import UserError

if TYPE_CHECKING:
    from scs_supcon.inference.types import StoredNeighbours


@app.command()
def search(
    run: RunPath,
    image: Annotated[Path, typer.Argument(help="The image to compare with.")],
    images: Annotated[
        list[str] | None,
        typer.Argument(
            help="Image files, folders or patterns to search. Default: the training images."
        ),
    ] = None,
    k: Annotated[int, typer.Option("-k", min=1, help="Number of images to list.")] = 10,
    field: Annotated[
        str,
        typer.Option(help="common compares what defines a class, style what varies within it."),
    ] = "common",
    vectors: Annotated[
        Path | None,
        typer.Option(help="Search the images of this .parquet file, written by `scs embed`."),
    ] = None,
    index: Annotated[
        bool | None,
        typer.Option(
            "--index/--exact",
            help="With --vectors: use an approximate index, which is built once beside the file, "
            "or compare with every vector. An index needs usearch and prints its measured recall. "
            "Default: --exact up to 1,000,000 vectors.",
            show_default=False,
        ),
    ] = None,
    allow_code: AllowCode = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Find the images that are most similar to an image.

    The similarity lies between -1 and 1. Pairs above the decision boundary, which is printed, are
    more likely of one class than not.

        scs search runs/birds photo.jpg holiday/
        scs search runs/birds photo.jpg --field style
        scs search runs/birds photo.jpg --vectors vectors.parquet
    """
    check_images(run, [str(image)])
    files = check_images(run, images) if images else None
    _check_options(field, bool(images), vectors, index)

    from scs_supcon import load
    from scs_supcon.progress import Display

    model = load(run)
    kind = cast("Literal['common', 'style']", field)
    if vectors is not None:
        _print_stored(
            model.search_vectors(image, vectors, k, field=kind, approximate=index), as_json
        )
        return
    with Display(quiet).progress("search") as progress:
        results = model.search(image, files, k, field=kind, progress=progress)
    source = None if files else model.info.recipe.data.source
    listed = [(r, _path(r.name, source) if source else r.name) for r in results[0]]
    if as_json:
        labelled = [
            {"image": name, "label": r.label, "similarity": r.similarity} for r, name in listed
        ]
        echo(json.dumps(labelled, indent=1))
    else:
        for result, name in listed:
            echo(f"{result.similarity:>6.3f}  {result.label:<20} {name}")
        if field == "common":
            echo(f"decision boundary: {model.info.pairs.boundary:.3f}")
    report_failures(results[1])


def _path(name: str, source: str) -> str:
    """Return the path of a training image from here; its name if it is not a file, or was moved."""
    root = Path(source).parent if Path(source).is_file() else Path(source)
    return os.path.relpath(root / name) if (root / name).is_file() else name


def _check_options(field: str, images: bool, vectors: Path | None, index: bool | None) -> None:
    if field not in ("common", "style"):
        raise UserError(f"--field must be common or style, got {field}")
    if vectors is not None and images:
        raise UserError("give either images or --vectors FILE to search, not both")
    if vectors is None and index is not None:
        raise UserError("--index and --exact are for --vectors FILE")
    if vectors is not None and not vectors.is_file():
        raise UserError(f"--vectors {vectors} does not exist: write it with scs embed")


def _print_stored(found: "StoredNeighbours", as_json: bool) -> None:
    if as_json:
        rows = [{"image": name, "similarity": value} for name, value in found.images]
        echo(json.dumps(rows, indent=1))
    else:
        for name, value in found.images:
            echo(f"{value:>6.3f}  {name}")
    if found.note:
        echo(found.note, err=True)
