"""`scs diff`: compare the settings and results of two runs or recipes."""

from typing import Annotated

import typer

from scs_supcon.cli.app import app, echo
from scs_supcon.cli.options import Json

SIDE = "A run directory, a recipe file, paper or recommended."


@app.command()
def diff(
    first: Annotated[str, typer.Argument(metavar="A", help=SIDE)],
    second: Annotated[str, typer.Argument(metavar="B", help=SIDE)],
    data: Annotated[
        str,
        typer.Option(
            help="Data for which the recipes paper and recommended are completed: a dataset of the "
            "paper, whose images are not needed, or images as for `scs train`."
        ),
    ] = "cub200",
    as_json: Json = False,
) -> None:
    """Show what differs between two runs or recipes: settings, and results if they have any.

    scs diff runs/a runs/b
    scs diff paper recommended --data cifar100
    """
    from scs_supcon.evaluation.difference import describe_differences, find_differences

    report = find_differences(first, second, data)
    echo(report.to_json() if as_json else describe_differences(report))
