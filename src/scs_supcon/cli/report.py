"""`scs report`."""

from pathlib import Path
from typing import Annotated

import typer

from scs_supcon.cli.app import app


@app.command()
def report(
    run: Annotated[Path, typer.Argument(help="A finished run's folder.")],
) -> None:
    """Make a run's page and figures again, from the files it left.

    The page, report.html, needs nothing beside itself: no images, no network.

        scs report runs/birds
    """
    from scs_supcon.report import build_report

    print(build_report(run))
