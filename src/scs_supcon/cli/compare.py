"""`scs compare`: compare methods under one protocol, with corrected statistics."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from scs_supcon.cli.app import ScsCommand, app, echo
from scs_supcon.cli.checks import check_method, check_training
from scs_supcon.cli.options import (
    OUTPUT,
    PROTOCOL,
    AcceptOld,
    Cache,
    Dask,
    DataFolder,
    Device,
    Jobs,
    Json,
    NoTrain,
    Offline,
    Quiet,
    Runs,
    Slurm,
    exit_if_failed,
    with_recipe_options,
)
from scs_supcon.errors import UserError

if TYPE_CHECKING:
    from scs_supcon.training.train import TrainArguments


@app.command(cls=ScsCommand)
@with_recipe_options
def compare(
    data: Annotated[
        str,
        typer.Argument(
            help="Labelled images as for `scs train`, or a .toml file that describes a comparison."
        ),
    ],
    options: "TrainArguments",
    folder: DataFolder = None,
    methods: Annotated[
        str | None,
        typer.Option(
            help="Methods separated by commas, such as scs_supcon,supcon,scs_supcon@paper, or all; "
            "also your own code, such as ./losses.py:SoftCircle. Each is compared with the first "
            "one. Default: scs_supcon,supcon.",
            rich_help_panel=PROTOCOL,
        ),
    ] = None,
    seeds: Annotated[
        int | None,
        typer.Option(
            help="Number of runs per method, with the seeds 0, 1, … Default: 1.",
            rich_help_panel=PROTOCOL,
        ),
    ] = None,
    folds: Annotated[
        int | None,
        typer.Option(
            help="Number of cross-validation folds; every image is tested once per seed. Default: "
            "no cross-validation.",
            rich_help_panel=PROTOCOL,
        ),
    ] = None,
    tune: Annotated[
        bool | None,
        typer.Option(
            help="Train every method with three learning rates (a third of its own, its own, three "
            "times its own) and choose one on the validation images of each run. Default: --tune "
            "with a frozen encoder; --no-tune if the encoder is trained, because it takes three "
            "times as long.",
            rich_help_panel=PROTOCOL,
        ),
    ] = None,
    metric: Annotated[
        str | None,
        typer.Option(
            help="What the tests compare: accuracy, macro_f1, balanced_accuracy, map_at_r, "
            "precision_at_1, pair_auc, ece or nll. results.csv has all of them. Default: accuracy.",
            rich_help_panel=PROTOCOL,
        ),
    ] = None,
    readout: Annotated[
        str | None,
        typer.Option(
            help="What predicts the class in every row: linear (stage 2 on the method's default "
            "input), features, embeddings or common (stage 2 on these), or fused (class means of "
            "the fused field). The page names the readout of each row. Default: that of each "
            "recipe.",
            rich_help_panel=PROTOCOL,
        ),
    ] = None,
    recipe: Annotated[
        str | None,
        typer.Option(
            help="TOML file with any part of a recipe for all methods, or paper: the protocol of "
            "the paper. Other options override it.",
            rich_help_panel=PROTOCOL,
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder for tables, figures and comparison.html. Default: comparisons/NAME.",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    runs: Runs = Path("runs/compared"),
    jobs: Jobs = 1,
    dask: Dask = None,
    slurm: Slurm = None,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="List the runs and estimate their cost, then exit.",
            rich_help_panel=OUTPUT,
        ),
    ] = False,
    no_train: NoTrain = False,
    device: Device = "auto",
    cache: Cache = None,
    offline: Offline = False,
    accept_old: AcceptOld = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Compare methods: one protocol, equal budget, corrected statistics.

    Cross-entropy (baseline) and kNN are always included. Run the same command again to resume;
    run it on several machines that share the folder --runs to divide the work. If a run
    fails, the others continue and the exit code is 1.

        scs compare ./birds --methods scs_supcon,supcon,simclr --seeds 3 --jobs 2
        scs compare ./birds --methods all --folds 5 --epochs 20 --out comparisons/birds
        scs compare table.toml --dry-run
    """
    from scs_supcon.data.named.registry import named_source
    from scs_supcon.data.remote import is_address

    addresses = [value for value in folder or () if data.endswith(".toml") and is_address(value)]
    folders = [value for value in folder or () if value not in addresses]
    source = named_source(data, folders)
    check_training(source, None, options["settings"], weights=options["weights"])
    for method in (methods or "").split(","):
        if method.strip() not in ("", "all"):
            check_method(method.strip())

    from scs_supcon.benchmark import compare as benchmark
    from scs_supcon.benchmark.api import single_column_table
    from scs_supcon.benchmark.table import (
        Table,
        make_table,
        method_names,
        read_table_file,
        with_folders,
    )
    from scs_supcon.data.load import source_name
    from scs_supcon.device import compute_per_job
    from scs_supcon.progress import Display

    if data.endswith(".toml"):
        _check_no_other_options(
            data,
            {"methods": methods, "seeds": seeds, "folds": folds, "tune": tune, "recipe": recipe}
            | {"readout": readout}
            | dict(options),
        )
        table: Table = with_folders(read_table_file(Path(data), addresses), folders)
    else:
        column: dict[str, Any] = {
            key: str(value) if isinstance(value, Path) else value
            for key, value in (dict(options) | {"recipe": recipe}).items()
        }
        table = single_column_table(
            source,
            method_names(methods or "scs_supcon,supcon"),
            seeds=1 if seeds is None else seeds,
            folds=folds,
            tune=tune,
            readout=readout,
            **column,
        )
    if metric is not None:
        table = make_table(**table.model_dump() | {"metric": metric})
    target = out or Path("comparisons") / source_name(data)
    shared: dict[str, Any] = {
        "runs": runs,
        "compute": compute_per_job(jobs, device, cache, offline),
        "jobs": jobs,
        "display": Display(quiet),
        "accept_old": accept_old,
    }
    if dry_run:
        echo(benchmark.dry_run(table, **shared))
        return
    report = benchmark.run_comparison(table, out=target, train=not no_train, dask=dask, **shared)
    echo(json.dumps(benchmark.summary(report, target), indent=1) if as_json else report.text)
    if not as_json:
        echo(f"page      {target / 'comparison.html'}")
    exit_if_failed(report.failed)


def _check_no_other_options(data: str, given: Mapping[str, object]) -> None:
    flags = {name: f"--{name.replace('_', '-')}" for name in given}
    flags |= {"settings": "--set", "frozen": "--frozen" if given["frozen"] else "--no-frozen"}
    flags |= {"tune": "--tune" if given["tune"] else "--no-tune"}
    extra = [
        flags[name]
        for name, value in given.items()
        if value is not None and value != () and (name != "from_scratch" or value)
    ]
    if extra:
        raise UserError(
            f"{data} describes the whole comparison: leave out {', '.join(extra)}, or edit the file"
        )
