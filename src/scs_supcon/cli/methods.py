"""`scs methods` and `scs show`: list and explain the methods."""

import json
import sys
from typing import Annotated

import typer

from scs_supcon.cli.app import ScsCommand, app, echo
from scs_supcon.cli.options import Json


@app.command(cls=ScsCommand)
def methods(
    as_json: Json = False,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Print the reference of all methods as Markdown.")
    ] = False,
) -> None:
    """List the methods, one line each. "Adapted" marks those that differ from their original.

    scs methods
    """
    from scs_supcon.cli.method_page import method_page, short_description
    from scs_supcon.methods import available, method_class

    if markdown:
        echo(method_page(), end="")
        return
    classes = {name: method_class(name) for name in available()}
    lines = {
        name: short_description(method) + " [adapted]" * method.adapted
        for name, method in classes.items()
    }
    if as_json:
        echo(json.dumps(lines, indent=1))
        return
    width = max(map(len, lines))
    for name, line in lines.items():
        echo(f"{name:<{width}}  {line}")


@app.command()
def show(
    name: Annotated[
        str, typer.Argument(help="Name of a method, such as supcon, or my_lab.losses:SoftCircle.")
    ],
) -> None:
    """Print the formula, the options and the reference of a method.

    scs show supcon
    """
    import inspect

    from scs_supcon.methods import method_class, parse

    method = method_class(parse(name)[0])  # the user has named it
    sections = (
        inspect.getdoc(sys.modules[method.__module__]),
        f"{method.__name__}{inspect.signature(method)}",
        inspect.getdoc(method),
    )
    echo("\n\n".join(section for section in sections if section))
