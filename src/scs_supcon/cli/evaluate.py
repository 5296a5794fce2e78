"""`scs evaluate`: how good a model is."""

import json
import sys
from typing import Annotated

import typer

from scs_supcon.cli.app import Device, Json, Quiet, RunPath, app


@app.command()
def evaluate(
    run: RunPath,
    data: Annotated[
        str | None,
        typer.Argument(
            help="Labelled images as for train; of data with parts the test part. Default: the "
            "run's own test part, from its record."
        ),
    ] = None,
    device: Device = "auto",
    workers: Annotated[int | None, typer.Option(help="Processes that load images.")] = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Say how good a model is: scores with intervals, calibration, pairs, refusals, leakage.

    Classes that the model does not know are held out: what counts is how many it refuses.
    Results on DATA are kept in RUN/evaluations.
    Unreadable files are listed, the rest is done, and the exit code is then 1.

        scs evaluate runs/birds
        scs evaluate runs/birds ./birds/test
    """
    from scs_supcon.evaluation.evaluate import evaluate as judge
    from scs_supcon.evaluation.format import describe

    record = judge(run, data, device=device, workers=workers, quiet=quiet)
    print(json.dumps(record, indent=1) if as_json else describe(record))
    unreadable = record.get("unreadable", [])
    for one in unreadable:
        print(f"not read: {one['detail']}", file=sys.stderr)
    if unreadable:
        raise typer.Exit(1)
