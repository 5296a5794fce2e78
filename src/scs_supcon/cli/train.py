"""`scs train`."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from scs_supcon.cli.app import Data, Device, Json, Quiet, app
from scs_supcon.errors import UserError


@app.command()
def train(
    data: Data,
    out: Annotated[
        Path | None, typer.Option(help="The run's folder; the same line again goes on.")
    ] = None,
    method: Annotated[
        str | None,
        typer.Option(
            help="Loss of stage 1: scs_supcon, scs_supcon@paper, …; see `scs methods`. Or your own "
            "code: my_lab.losses:SoftCircle, ./my_loss.py:SoftCircle."
        ),
    ] = None,
    encoder: Annotated[str | None, typer.Option(help="Any timm model, or tiny.")] = None,
    weights: Annotated[
        Path | None, typer.Option(help="Safetensors file with the encoder's weights.")
    ] = None,
    from_scratch: Annotated[
        bool, typer.Option(help="Start the encoder from random weights.")
    ] = False,
    frozen: Annotated[
        bool | None,
        typer.Option(help="Train on cached features; default without an accelerator."),
    ] = None,
    epochs: Annotated[int | None, typer.Option(help="Epochs of stage 1.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Images in a step.")] = None,
    micro_batch: Annotated[
        int | None,
        typer.Option(help="Views encoded at a time: less memory, a third more time."),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="All randomness follows from it.")] = None,
    recipe: Annotated[
        Path | None, typer.Option(help="TOML file with any part of a recipe.")
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="Such as pretrain.lr=0.05; may be repeated.")
    ] = None,
    print_recipe: Annotated[bool, typer.Option(help="Print the whole recipe and stop.")] = False,
    dry_run: Annotated[bool, typer.Option(help="One batch of everything; keeps nothing.")] = False,
    report: Annotated[bool, typer.Option(help="Make report.html and figures/ at the end.")] = True,
    init_from: Annotated[
        Path | None, typer.Option(help="Finished run whose encoder and head to start from.")
    ] = None,
    device: Device = "auto",
    workers: Annotated[int | None, typer.Option(help="Processes that load images.")] = None,
    cache: Annotated[Path | None, typer.Option(help="Folder for cached features.")] = None,
    offline: Annotated[bool, typer.Option(help="Never download weights.")] = False,
    overwrite: Annotated[
        bool, typer.Option(help="Delete a finished or different run first.")
    ] = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Train both stages on a folder of images.

    The same line again goes on where the last one stopped, whatever stopped it.

        scs train ./birds --out runs/birds
        scs train digits --out runs/digits --method supcon
    """
    from scs_supcon.device import first_process
    from scs_supcon.training import train as training
    from scs_supcon.training.stage2 import describe

    options: dict[str, Any] = {
        "method": method,
        "encoder": encoder,
        "weights": weights,
        "from_scratch": from_scratch,
        "frozen": frozen,
        "epochs": epochs,
        "batch_size": batch_size,
        "micro_batch": micro_batch,
        "seed": seed,
        "recipe": recipe,
        "settings": settings or (),
        "init_from": init_from,
    }
    if print_recipe:
        print(training.recipe_of(data, device=device, **options), end="")
        return
    if out is None and not dry_run:
        raise UserError(f"say where the run goes: --out runs/{Path(data).stem}")
    summary = training.train(
        data,
        out=out or "",
        device=device,
        workers=workers,
        cache=cache,
        offline=offline,
        overwrite=overwrite,
        dry_run=dry_run,
        report=report,
        quiet=quiet,
        **options,
    )
    if not first_process():
        return
    if as_json:
        print(json.dumps(summary, indent=1))
    elif not dry_run:
        print(describe(summary))
