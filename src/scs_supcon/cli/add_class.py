"""`scs add-class`: add a class to a trained model without training."""

from pathlib import Path
from typing import Annotated

import typer

from scs_supcon.cli.app import app, echo
from scs_supcon.cli.options import AllowCode, ImagePaths, RunPath

FEW_IMAGES = 5


@app.command()
def add_class(
    run: RunPath,
    name: Annotated[str, typer.Argument(help="Name of the new class.")],
    images: ImagePaths,
    out: Annotated[
        Path | None,
        typer.Option(help="Directory for the extended model. Default: the model of RUN itself."),
    ] = None,
    allow_code: AllowCode = None,
) -> None:
    """Add a class to a model, represented by the mean of example images; nothing is trained.

    The other classes stay as they are. Five images or more are recommended; train again when there
    are many new classes. Files that cannot be read are listed and skipped, and the exit code is 1.

        scs add-class runs/birds jackdaw ./new/jackdaw
        scs add-class runs/birds jackdaw ./new/jackdaw --out models/birds-41
    """
    from contextlib import nullcontext

    from scs_supcon import load
    from scs_supcon.data.load import find_images
    from scs_supcon.io.lock import Lock
    from scs_supcon.runs.layout import find_model

    source = find_model(run)
    target = out or source
    is_run = out is None and (source.parent / "recipe.toml").exists()
    with Lock(source.parent / ".lock") if is_run else nullcontext():
        model = load(run)
        files = find_images(images)
        failures = model.add_class(name, files)
        model.save(target)
    used = len(files) - len(failures)
    echo(f"{name}: added from {used} images; {target} now has {len(model.classes)} classes")
    if used < FEW_IMAGES:
        echo(f"caution: {used} images describe a class poorly, use at least {FEW_IMAGES}")
    for failure in failures:
        echo(f"not read: {failure.reason}", err=True)
    if failures:
        raise typer.Exit(1)
