"""`scs add-class`: add a class to a trained model without training."""

from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer

from scs_supcon.cli.app import app, echo
from scs_supcon.cli.options import AllowCode, RunPath
from scs_supcon.errors import UserError

FEW_IMAGES = 5


@app.command()
def add_class(
    run: RunPath,
    name: Annotated[str | None, typer.Argument(help="Name of the new class.")] = None,
    images: Annotated[
        list[str] | None,
        typer.Argument(help="Image files, folders, or patterns such as 'photos/*.jpg'."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Directory for the extended model. Default: the model of RUN itself."),
    ] = None,
    undo: Annotated[
        bool, typer.Option("--undo", help="Restore the model before the last added class.")
    ] = False,
    allow_code: AllowCode = None,
) -> None:
    """Add a class to a model, represented by the mean of example images; nothing is trained.

    The other classes stay as they are. Five images or more are recommended; train again when there
    are many new classes. Files that cannot be read are listed and skipped, and the exit code is 1.
    The model before it is kept beside the new one; --undo exchanges the two.

        scs add-class runs/birds jackdaw ./new/jackdaw
        scs add-class runs/birds jackdaw ./new/jackdaw --out models/birds-41
        scs add-class runs/birds --undo
    """
    from scs_supcon import load
    from scs_supcon.data.load import find_images
    from scs_supcon.inference.package import keep_previous, restore_previous
    from scs_supcon.io.exchange import remove_abandoned
    from scs_supcon.io.lock import Lock
    from scs_supcon.runs.layout import find_model

    if undo == (name is not None) or bool(name) != bool(images):
        raise UserError("give the name of the new class and images of it, or --undo alone")
    source = find_model(run)
    target = out or source
    is_run = target == source and (source.parent / "recipe.toml").exists()
    with Lock(source.parent / ".lock") if is_run else nullcontext():
        if name is None:
            classes = len(restore_previous(target).classes)
            echo(f"{target} has {classes} classes again; --undo once more reverses it")
            return
        remove_abandoned(target)
        model = load(run)
        files = find_images(images or [])
        failures = model.add_class(name, files)
        if target == source:
            keep_previous(target)
        model.save(target)
    used = len(files) - len(failures)
    echo(f"{name}: added from {used} images; {target} now has {len(model.classes)} classes")
    if used < FEW_IMAGES:
        echo(f"caution: {used} images describe a class poorly, use at least {FEW_IMAGES}")
    for failure in failures:
        echo(f"not read: {failure.reason}", err=True)
    if failures:
        raise typer.Exit(1)
