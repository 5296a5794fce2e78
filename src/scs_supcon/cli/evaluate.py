"""`scs evaluate`: evaluate a model."""

from typing import TYPE_CHECKING, Annotated

import typer

from scs_supcon.cli.app import app, echo
from scs_supcon.cli.checks import check_data
from scs_supcon.cli.options import (
    AllowCode,
    DataFolder,
    Device,
    FalseRejection,
    Json,
    Quiet,
    RunPath,
    Threshold,
    Workers,
)
from scs_supcon.errors import UserError
from scs_supcon.runs.layout import check_run

if TYPE_CHECKING:
    from scs_supcon.evaluation.record import Evaluation, UnknownEvaluation


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
    false_rejection: FalseRejection = None,
    threshold: Threshold = None,
    group: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN",
            help="Column of the table of images, such as camera or site: also print accuracy, "
            "calibration and rejection for each of its values.",
        ),
    ] = None,
    shift: Annotated[
        bool,
        typer.Option(
            "--shift",
            help="Evaluate on shifted copies of up to 500 images instead: blurred, noisy, darker, "
            "brighter and rotated, in three strengths each.",
        ),
    ] = False,
    device: Device = "auto",
    workers: Workers = None,
    allow_code: AllowCode = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Evaluate a model: accuracy with intervals, calibration, pairs, rejection, leakage.

    Images of classes that the model was not trained on do not count as errors; the share of them
    that is rejected as unknown is reported, also if there are no other images. Results on DATA are
    saved in RUN/evaluations. Files that cannot be read are listed and skipped, and the exit code
    is 1.

        scs evaluate runs/birds
        scs evaluate runs/birds ./birds/test
        scs evaluate runs/birds ./other-animals --false-rejection 0.1
        scs evaluate runs/birds birds.csv --group camera
        scs evaluate runs/birds --shift
    """
    from scs_supcon.data.named.registry import named_source
    from scs_supcon.evaluation.format import describe

    check_run(run)
    if data is not None:
        data = named_source(data, folder or ())
        check_data(data)
    if shift:
        if group is not None or false_rejection is not None or threshold is not None:
            raise UserError(
                "--shift cannot be combined with --group, --false-rejection or --threshold"
            )
        from scs_supcon.evaluation.domain_shift import describe_shifts, evaluate_shifts

        table = evaluate_shifts(run, data, device=device, workers=workers, quiet=quiet)
        echo(table.model_dump_json(indent=1) if as_json else describe_shifts(table))
        return
    if data is None and false_rejection is None and threshold is None and group is None:
        from scs_supcon.evaluation.stored import run_directory, stored_evaluation

        evaluation: Evaluation | UnknownEvaluation = stored_evaluation(run_directory(run))
    else:
        from scs_supcon.evaluation.evaluate import evaluate as evaluate_model

        evaluation = evaluate_model(
            run,
            data,
            device=device,
            workers=workers,
            group=group,
            quiet=quiet,
            false_rejection=false_rejection,
            threshold=threshold,
        )
    echo(evaluation.to_json().rstrip() if as_json else describe(evaluation))
    for image in evaluation.unreadable:
        echo(f"not read: {image.detail}", err=True)
    if evaluation.unreadable:
        raise typer.Exit(1)
