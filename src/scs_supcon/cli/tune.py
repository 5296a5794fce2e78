"""`scs tune`: search for a better recipe."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from scs_supcon.cli.app import ScsCommand, app, echo
from scs_supcon.cli.checks import check_training
from scs_supcon.cli.options import (
    COMPUTE,
    OUTPUT,
    AcceptOld,
    Cache,
    Dask,
    Data,
    DataFolder,
    Device,
    Json,
    Method,
    Offline,
    Quiet,
    Seed,
    Slurm,
    Workers,
    with_recipe_options,
)

if TYPE_CHECKING:
    from scs_supcon.training.train import TrainArguments

SEARCH = "Search"


@app.command(cls=ScsCommand)
@with_recipe_options
def tune(
    data: Data,
    options: "TrainArguments",
    out: Annotated[
        Path,
        typer.Option(
            help="Folder for the search, such as tunings/birds. The same command resumes it.",
            rich_help_panel=OUTPUT,
        ),
    ],
    folder: DataFolder = None,
    trials: Annotated[
        int, typer.Option(min=1, help="Number of trials to complete.", rich_help_panel=SEARCH)
    ] = 20,
    over: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=RANGE",
            help="Recipe value to search over: pretrain.lr=0.01..1:log, head.overlap=0..32, or "
            "pretrain.batches=shuffle|balanced. May be repeated. Default: the learning rate and "
            "the main options of the method (t0, b0, beta or temperature), or those of the search "
            "to resume.",
            rich_help_panel=SEARCH,
        ),
    ] = None,
    objective: Annotated[
        str | None,
        typer.Option(
            help="accuracy: highest validation accuracy, and among equal ones the lowest loss. "
            "loss: lowest validation loss. Default: accuracy, or that of the search to resume.",
            rich_help_panel=SEARCH,
        ),
    ] = None,
    retrain: Annotated[
        int,
        typer.Option(
            min=0,
            help="Retrain the best recipe with this many new seeds, on the same split.",
            rich_help_panel=SEARCH,
        ),
    ] = 0,
    storage: Annotated[
        str,
        typer.Option(
            help="Database URL of the Optuna study. Default: a journal file in --out.",
            rich_help_panel=SEARCH,
        ),
    ] = "",
    jobs: Annotated[
        int,
        typer.Option(min=1, help="Number of trials to run in parallel.", rich_help_panel=COMPUTE),
    ] = 1,
    dask: Dask = None,
    slurm: Slurm = None,
    method: Method = None,
    seed: Seed = 0,
    device: Device = "auto",
    workers: Workers = None,
    cache: Cache = None,
    offline: Offline = False,
    accept_old: AcceptOld = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Search for the recipe with the highest validation accuracy, using Optuna.

    Test images are not used. Run the same command again to resume. Run it in a second terminal,
    or on another machine that shares the folder, to add workers. Trials of workers that crashed
    are resumed by the others.

        scs tune ./birds --out tunings/birds --trials 30 --jobs 2
        scs train ./birds --recipe tunings/birds/best.toml --out runs/birds
    """
    from scs_supcon.data.named.registry import named_source

    data = named_source(data, folder or ())
    check_training(data, method, options["settings"], weights=options["weights"])

    from scs_supcon.progress import Display
    from scs_supcon.tuning import tune as tuning
    from scs_supcon.tuning.study import Objective, Search, space_of

    settings = options.pop("settings")
    options["method"] = method
    loaders = 0 if workers is None and jobs > 1 else workers
    compute = {"device": device, "workers": loaders, "cache": cache, "offline": offline}
    varied = tuple(over or space_of(out, method or "scs_supcon"))
    search = Search(
        data,
        out,
        trials,
        varied,
        seed or 0,
        dict(options),
        settings,
        compute,
        storage,
        cast("Objective | None", objective),  # `prepare` checks it
    )
    result = tuning.run_search(
        search,
        jobs=jobs,
        retrain=retrain,
        display=Display(quiet),
        accept_old=accept_old,
        dask=dask,
    )
    if as_json:
        retrained = {"accuracies": result.accuracies, "split": result.split}
        values = {"trials": len(result.trials), "best": vars(result.best), "retrained": retrained}
        echo(json.dumps(values, indent=1))
    else:
        echo(tuning.describe(search, result))
