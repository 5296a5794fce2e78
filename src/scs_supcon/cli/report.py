"""`scs report`: rebuild the report of a run."""

from pathlib import Path
from typing import Annotated

import typer

from scs_supcon.cli.app import app, echo
from scs_supcon.runs.layout import check_run


@app.command()
def report(
    run: Annotated[Path, typer.Argument(help="Directory of a finished run.")],
) -> None:
    """Rebuild the report and the figures of a finished run.

    report.html is a self-contained file that requires neither the images nor a network.

        scs report runs/birds
    """
    check_run(run)

    from scs_supcon.report import build_report

    echo(build_report(run))
