"""`scs compare`: methods under one protocol, with statistics."""

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from scs_supcon.cli.app import Device, Json, Quiet, app
from scs_supcon.errors import UserError


@app.command()
def compare(
    data: Annotated[
        str,
        typer.Argument(help="Images, as for `scs train`, or a .toml file with a table."),
    ],
    methods: Annotated[
        str | None,
        typer.Option(
            help="Such as scs_supcon,supcon,scs_supcon@paper, or all; the first is "
            "what the others are compared with."
        ),
    ] = None,
    seeds: Annotated[int | None, typer.Option(help="Runs of each method, seeds 0, 1, …")] = None,
    folds: Annotated[
        int | None, typer.Option(help="Cross-validation: every image is tested once per seed.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of tables, figures and page.")] = None,
    runs: Annotated[
        Path, typer.Option(help="Folder of the runs; comparisons and machines may share it.")
    ] = Path("runs/compared"),
    jobs: Annotated[int, typer.Option(help="Runs at a time.")] = 1,
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
    epochs: Annotated[int | None, typer.Option(help="Epochs of stage 1, for all.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Images in a step, for all.")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="Such as pretrain.lr=0.05, for all.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option(help="Print the runs and what they will cost; trains nothing.")
    ] = False,
    train: Annotated[
        bool, typer.Option(help="--no-train makes the tables of the runs that are there.")
    ] = True,
    device: Device = "auto",
    cache: Annotated[Path | None, typer.Option(help="Folder for cached features.")] = None,
    offline: Annotated[bool, typer.Option(help="Never download weights.")] = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Compare methods: one protocol, equal budget, corrected statistics.

    Cross-entropy and kNN are always in. The same line again goes on where the last one stopped;
    the same line on several machines with one runs folder shares the work. If a run fails, the
    others go on and the exit code is 1.

        scs compare ./birds --methods scs_supcon,supcon,simclr --seeds 3 --jobs 2
        scs compare ./birds --methods all --folds 5 --epochs 20 --out comparisons/birds
        scs compare table.toml --dry-run
    """
    from scs_supcon.benchmark import compare as suite
    from scs_supcon.benchmark.table import Table, make_table, method_names, read_table_file
    from scs_supcon.device import cores, find_compute
    from scs_supcon.progress import Display

    given: dict[str, Any] = {"methods": methods, "seeds": seeds, "folds": folds, "encoder": encoder}
    given |= {"weights": weights, "epochs": epochs, "batch-size": batch_size}
    given |= {"set": settings or None, "from-scratch": from_scratch or None, "frozen": frozen}
    if data.endswith(".toml"):
        _must_be_alone(data, given)
        table: Table = read_table_file(Path(data))
    else:
        column: dict[str, Any] = {"data": data, "encoder": encoder, "frozen": frozen}
        column |= {"weights": str(weights) if weights else None, "from_scratch": from_scratch}
        budget = {"pretrain.epochs": epochs, "pretrain.batch_size": batch_size}
        table = make_table(
            {
                "methods": method_names(methods or "scs_supcon,supcon"),
                "columns": [{key: value for key, value in column.items() if value is not None}],
                "seeds": 1 if seeds is None else seeds,
                "folds": folds,
                "settings": [f"{key}={value}" for key, value in budget.items() if value is not None]
                + (settings or []),
            }
        )
    share = cores() // max(1, jobs)  # a job with one core loads its images itself
    place = find_compute(device, share if share > 1 else 0, cache, offline)
    folder = out or Path("comparisons") / _name_of(data)
    plan = suite.Suite(table, folder, runs, place, jobs)
    display = Display(quiet)
    if dry_run:
        print(suite.forecast(plan, display))
        return
    found = suite.compare(plan, display, train=train)
    print(json.dumps(suite.summary(found, folder), indent=1) if as_json else found.text)
    if not as_json:
        print(f"page      {folder / 'comparison.html'}")
    for cell, reason in found.failed.items():
        print(f"failed: {cell}: {reason}", file=sys.stderr)
    if found.failed:
        raise typer.Exit(1)


def _name_of(data: str) -> str:
    """The name of a folder, where a dot is no ending, or that of a file without its ending."""
    place = Path(data).resolve()
    return place.name if place.is_dir() else place.stem


def _must_be_alone(data: str, given: dict[str, Any]) -> None:
    spare = [f"--{name}" for name, value in given.items() if value is not None]
    if spare:
        raise UserError(f"{data} says what to compare: leave out {', '.join(spare)}, or edit it")
