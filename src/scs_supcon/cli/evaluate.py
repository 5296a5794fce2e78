"""`scs evaluate`: evaluate a model."""

import sys
from typing import Annotated

import typer

from scs_supcon.cli.app import app
from scs_supcon.cli.options import DataFolder, Device, Json, Quiet, RunPath, Workers


@app.command()
def evaluate(
    run: RunPath,
    data: Annotated[
        str | None,
        typer.Argument(
            help="Labelled images as for `scs train`; if they have splits, only the test split is "
            "used. Default: the test split of the run, whose results are already recorded."
        ),
    ] = None,
    folder: DataFolder = None,
    device: Device = "auto",
    workers: Workers = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Evaluate a model: accuracy with intervals, calibration, pairs, rejection, leakage.

    Images of classes that the model was not trained on do not count as errors; the share of them
    that is rejected as unknown is reported. Results on DATA are saved in RUN/evaluations. Files
    that cannot be read are listed and skipped, and the exit code is 1.

        scs evaluate runs/birds
        scs evaluate runs/birds ./birds/test
    """
    from scs_supcon.data.named.registry import named_source
    from scs_supcon.evaluation.evaluate import evaluate as evaluate_model
    from scs_supcon.evaluation.format import describe

    data = None if data is None else named_source(data, folder or ())
    evaluation = evaluate_model(run, data, device=device, workers=workers, quiet=quiet)
    print(evaluation.to_json().rstrip() if as_json else describe(evaluation))
    for image in evaluation.unreadable:
        print(f"not read: {image.detail}", file=sys.stderr)
    if evaluation.unreadable:
        raise typer.Exit(1)
