"""`scs search`: find the images that are most similar to an image."""

import json
from pathlib import Path
from typing import Annotated, Literal, cast

import typer

from scs_supcon.cli.app import app, echo
from scs_supcon.cli.checks import check_images
from scs_supcon.cli.options import AllowCode, Json, Quiet, RunPath
from scs_supcon.cli.predict import report_failures
from scs_supcon.errors import UserError


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
    allow_code: AllowCode = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Find the images that are most similar to an image.

    The similarity lies between -1 and 1. Pairs above the decision boundary, which is printed, are
    more likely of one class than not.

        scs search runs/birds photo.jpg holiday/
        scs search runs/birds photo.jpg --field style
    """
    check_images(run, [str(image)])
    files = check_images(run, images) if images else None
    if field not in ("common", "style"):
        raise UserError(f"--field must be common or style, got {field}")

    from scs_supcon import load
    from scs_supcon.progress import Display

    model = load(run)
    kind = cast("Literal['common', 'style']", field)
    with Display(quiet).progress("search") as progress:
        results = model.search(image, files, k, field=kind, progress=progress)
    if as_json:
        rows = [{"image": r.name, "label": r.label, "similarity": r.similarity} for r in results[0]]
        echo(json.dumps(rows, indent=1))
    else:
        for result in results[0]:
            echo(f"{result.similarity:>6.3f}  {result.label:<20} {result.name}")
        if field == "common":
            echo(f"decision boundary: {model.info.pairs.boundary:.3f}")
    report_failures(results[1])
