"""`scs train`: train a classifier on a folder of images."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from scs_supcon.cli.app import ScsCommand, app, echo
from scs_supcon.cli.checks import check_training
from scs_supcon.cli.options import (
    OUTPUT,
    TRAINING,
    Cache,
    Data,
    DataFolder,
    Device,
    Json,
    Method,
    Offline,
    Quiet,
    Seed,
    Workers,
    with_recipe_options,
)
from scs_supcon.errors import UserError
from scs_supcon.runs.layout import check_new_run

if TYPE_CHECKING:
    from scs_supcon.training.train import TrainArguments


@app.command(cls=ScsCommand)
@with_recipe_options
def train(
    data: Data,
    options: "TrainArguments",
    folder: DataFolder = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Run directory, such as runs/birds. The same command resumes an interrupted run.",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    method: Method = None,
    seed: Seed = None,
    recipe: Annotated[
        Path | None,
        typer.Option(
            help="TOML file with any part of a recipe, such as recipe.toml of another run, or "
            "paper: the protocol of the paper. Other options override it.",
            rich_help_panel=TRAINING,
        ),
    ] = None,
    init_from: Annotated[
        Path | None,
        typer.Option(
            help="Finished run whose encoder and head to start from.", rich_help_panel=TRAINING
        ),
    ] = None,
    print_recipe: Annotated[
        bool,
        typer.Option(
            "--print-recipe",
            help="Print the complete recipe, every value with a comment, and exit.",
            rich_help_panel=OUTPUT,
        ),
    ] = False,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Run every step on one batch, then delete the result.",
            rich_help_panel=OUTPUT,
        ),
    ] = False,
    no_report: Annotated[
        bool,
        typer.Option(
            "--no-report", help="Do not write report.html and figures.", rich_help_panel=OUTPUT
        ),
    ] = False,
    log_to: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Also log the metrics to wandb (offline, unless $WANDB_MODE says otherwise) or to "
            "mlflow (the folder mlruns beside the run, unless $MLFLOW_TRACKING_URI says otherwise)."
            " May be repeated. Default: metrics.csv and TensorBoard only.",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    overwrite: Annotated[
        bool,
        typer.Option(
            "--overwrite",
            help="Delete the run in --out first if it is finished or has a different recipe.",
            rich_help_panel=OUTPUT,
        ),
    ] = False,
    device: Device = "auto",
    workers: Workers = None,
    cache: Cache = None,
    offline: Offline = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Train a classifier on labelled images, evaluate it, and write a report.

    Stage 1 trains encoder and projection head with the method's loss, stage 2 a linear probe.
    Run the same command again to resume, even after a crash.

        scs train ./birds --out runs/birds
        scs train digits --out runs/digits --method supcon --set pretrain.lr=0.05
    """
    from scs_supcon.data.load import source_name
    from scs_supcon.data.named.registry import named_source
    from scs_supcon.recipe.encoders import check_start

    data = named_source(data, folder or ())
    options |= {"method": method, "seed": seed, "recipe": recipe, "init_from": init_from}
    if out is None and not dry_run and not print_recipe:
        raise UserError(f"--out is missing: add for example --out runs/{source_name(data)}")
    check_training(
        data,
        method,
        options["settings"],
        recipe=recipe,
        weights=options["weights"],
        init_from=init_from,
    )
    check_start(
        frozen=options.get("frozen"),
        unfreeze=options.get("unfreeze", False),
        from_scratch=options.get("from_scratch", False),
        weights=options["weights"],
    )
    if out is not None and not dry_run and not print_recipe:
        check_new_run(out, data)

    from scs_supcon.device import first_process
    from scs_supcon.recipe import write_toml
    from scs_supcon.training import train as training
    from scs_supcon.training.result import describe

    if print_recipe:
        echo(write_toml(training.resolved_recipe(data, device=device, **options)), end="")
        return
    result = training.train(
        data,
        out=out or "",
        device=device,
        workers=workers,
        cache=cache,
        offline=offline,
        overwrite=overwrite,
        dry_run=dry_run,
        report=not no_report,
        log_to=log_to or (),
        quiet=quiet,
        **options,
    )
    if not first_process():
        return
    if as_json:
        echo(result.summary.model_dump_json(indent=1))
    elif not dry_run:
        echo(describe(result.summary, result.recipe))
