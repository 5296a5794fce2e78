"""`scs replay`: compute a step again whose loss was not finite."""

from typing import Annotated

import typer

from scs_supcon.cli.app import app, echo
from scs_supcon.cli.options import AllowCode, RunPath


@app.command()
def replay(
    run: RunPath,
    method: Annotated[
        str | None,
        typer.Option(
            help="Method of the run, if it is your own code: module:Class or file.py:Class."
        ),
    ] = None,
    allow_code: AllowCode = None,
) -> None:
    """Find out why training stopped: name the first value that was not finite, and its images.

    Training stops before a step whose loss or gradient is NaN or infinite, and stores the step. The
    exit code is 1 if the step is finite on this machine.

        scs replay runs/birds
    """
    from scs_supcon.training.replay import replay as compute

    result = compute(run, method)
    echo(result.describe())
    if not result.first:
        raise typer.Exit(1)
