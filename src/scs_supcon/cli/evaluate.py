"""`scs evaluate`: how good a model is."""

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
    from scs_supcon.evaluation.evaluate import evaluate as evaluate_model
    from scs_supcon.evaluation.format import describe

    evaluation = evaluate_model(run, data, device=device, workers=workers, quiet=quiet)
    print(evaluation.to_json().rstrip() if as_json else describe(evaluation))
    for image in evaluation.unreadable:
        print(f"not read: {image.detail}", file=sys.stderr)
    if evaluation.unreadable:
        raise typer.Exit(1)
