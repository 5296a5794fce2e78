"""`scs reproduce`: the paper's tables and figures."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from scs_supcon.cli.app import ScsCommand, app, echo
from scs_supcon.cli.options import (
    OUTPUT,
    PROTOCOL,
    AcceptOld,
    Cache,
    Dask,
    Device,
    Jobs,
    Json,
    NoTrain,
    Offline,
    Quiet,
    Runs,
    Slurm,
    exit_if_failed,
)
from scs_supcon.errors import UserError

if TYPE_CHECKING:
    from scs_supcon.reproduce.plan import ReproduceOptions
    from scs_supcon.reproduce.resources import Resources


@app.command(cls=ScsCommand)
def reproduce(
    name: Annotated[
        str,
        typer.Argument(
            help="A table or figure, such as table8 or figure_boundary, or all. Without a name, "
            "list them.",
            show_default=False,
        ),
    ] = "",
    scale: Annotated[
        str,
        typer.Option(
            help="smoke: does everything run? Minutes. small: hours on a CPU, three seeds. paper: "
            "the paper's encoders and 1000 epochs, on GPUs.",
            rich_help_panel=PROTOCOL,
        ),
    ] = "smoke",
    data: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=PATH",
            help="Images of a dataset of the paper (cifar10, cifar100, tiny_imagenet, cub200, "
            "stanford_dogs, voc2005), or any images to use instead of it, as for `scs train`. May "
            "be repeated. Default: the folders NAME in $SCS_DATA; at the scale smoke, built-in "
            "images.",
            rich_help_panel=PROTOCOL,
        ),
    ] = None,
    row: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Run only this row of the table, such as SupCon. May be repeated. Cross-entropy "
            "is always included.",
            rich_help_panel=PROTOCOL,
        ),
    ] = None,
    seeds: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Number of runs per method. Default: 1 (smoke), otherwise 3.",
            rich_help_panel=PROTOCOL,
        ),
    ] = None,
    images_per_class: Annotated[
        str,
        typer.Option(
            metavar="COUNTS",
            help="Numbers of images per class for training and validation, such as 5,10,20,all; "
            "each one is a column. Default: that of the scale.",
            rich_help_panel=PROTOCOL,
        ),
    ] = "",
    weights: Annotated[
        Path | None,
        typer.Option(
            help="Safetensors file with the weights of tf_efficientnet_lite0, for large images at "
            "the scale small. Default: timm's pretrained weights.",
            rich_help_panel=PROTOCOL,
        ),
    ] = None,
    unfreeze: Annotated[
        bool,
        typer.Option(
            "--unfreeze",
            help="Fine-tune the encoder for large images at the scale small, instead of freezing "
            "it. Use another --out: the results have the same folder.",
            rich_help_panel=PROTOCOL,
        ),
    ] = False,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Set any value of every recipe, such as pretrain.epochs=10. May be repeated.",
            rich_help_panel=PROTOCOL,
        ),
    ] = None,
    verify: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Train one run of a results folder again and compare its predictions with the "
            "stored ones; the exit code is 1 if they do not agree.",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    run: Annotated[
        str | None,
        typer.Option(
            help="With --verify: the run, by its name in rows.csv. Default: the quickest one.",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    out: Annotated[
        Path,
        typer.Option(
            help="Folder for the results: OUT/SCALE/NAME.",
            rich_help_panel=OUTPUT,
        ),
    ] = Path("results"),
    runs: Runs = Path("runs/compared"),
    jobs: Jobs = 1,
    dask: Dask = None,
    slurm: Slurm = None,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Estimate the cost on this device (at the scale paper also in GPU hours), then "
            "exit.",
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
    """Reproduce a table or a figure of the paper at any scale, with its numbers beside ours.

    Run the same command again to resume; run it on several machines that share the folder --runs
    to divide the work.

        scs reproduce
        scs reproduce table8 --scale small --data cifar100=./cifar100 --dry-run
        scs reproduce all --scale smoke
        scs reproduce --verify results/small/table8_ablation --data cifar100=./cifar100
    """
    from scs_supcon.device import compute_per_job
    from scs_supcon.progress import Display
    from scs_supcon.reproduce.experiment import experiment_names, find_experiment, read_experiment
    from scs_supcon.reproduce.plan import ReproduceOptions, parse_data
    from scs_supcon.reproduce.resources import Resources

    compute = compute_per_job(jobs, device, cache, offline)
    display, locations = Display(quiet), parse_data(data or ())
    if verify is not None:
        from scs_supcon.reproduce.verify import verify as verify_run

        result = verify_run(
            verify, data=locations, compute=compute, display=display, address=run, weights=weights
        )
        echo(json.dumps(vars(result) | {"agrees": result.agrees}) if as_json else result.sentence)
        if not result.agrees:
            raise typer.Exit(1)
        return
    if not name:
        width = max(map(len, experiment_names()))
        for known in experiment_names():
            echo(f"{known:<{width}}  {read_experiment(known).title}")
        return
    names = experiment_names() if name == "all" else (find_experiment(name),)
    options = ReproduceOptions(
        scale,
        locations,
        tuple(row or ()),
        seeds,
        _counts(images_per_class),
        weights,
        tuple(settings or ()),
        unfreeze,
    )
    resources = Resources(out, runs, compute, jobs, display, not no_train, accept_old, dask)
    _run(names, options, resources, dry_run, as_json)


def _run(
    names: tuple[str, ...],
    options: "ReproduceOptions",
    resources: "Resources",
    dry_run: bool,
    as_json: bool,
) -> None:
    if dry_run:
        from scs_supcon.reproduce.cost import estimate

        echo(estimate(names, options, resources))
        return
    from scs_supcon.reproduce.run import reproduce_all

    outcomes = reproduce_all(names, options, resources)
    if as_json:
        values = {o.name: {"results": str(o.path), "failed": dict(o.failed)} for o in outcomes}
        echo(json.dumps(values, indent=1))
    for outcome in () if as_json else outcomes:
        echo(f"\n{outcome.name}\n\n{outcome.text}\n\nresults   {outcome.path / 'README.md'}")
    exit_if_failed({run: why for outcome in outcomes for run, why in outcome.failed.items()})


def _counts(text: str) -> tuple[int | None, ...]:
    """Parse "5,10,all"."""
    words = [word.strip() for word in text.split(",") if word.strip()]
    wrong = [word for word in words if word != "all" and not (word.isdecimal() and int(word) >= 2)]
    if wrong:
        raise UserError(
            f"--images-per-class {text}: {wrong[0]!r} is neither a number of at least 2 nor all"
        )
    return tuple(None if word == "all" else int(word) for word in words)
