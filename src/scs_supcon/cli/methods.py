"""`scs methods` and `scs show`: what there is to train with."""

import json
import sys
from typing import Annotated

import typer

from scs_supcon.cli.app import Json, app


@app.command()
def methods(
    as_json: Json = False,
    markdown: Annotated[bool, typer.Option(help="Print all that is known of each.")] = False,
) -> None:
    """List the methods, one line each."""
    from scs_supcon.cli.method_page import method_page, one_line
    from scs_supcon.methods import available, method_class

    if markdown:
        print(method_page(), end="")
        return
    classes = {name: method_class(name) for name in available()}
    found = {
        name: f"{one_line(made)} [adapted]" if made.adapted else one_line(made)
        for name, made in classes.items()
    }
    if as_json:
        print(json.dumps(found, indent=1))
        return
    width = max(map(len, found))
    for name, line in found.items():
        print(f"{name:<{width}}  {line}")


@app.command()
def show(
    name: Annotated[
        str, typer.Argument(help="A method, such as scs_supcon or my_lab.losses:SoftCircle.")
    ],
) -> None:
    """Print a method's formula, arguments and origin.

    scs show supcon
    """
    import inspect

    from scs_supcon.methods import method_class, parse

    found = method_class(parse(name)[0])
    said = (
        inspect.getdoc(sys.modules[found.__module__]),
        f"{found.__name__}{inspect.signature(found)}",
        inspect.getdoc(found),
    )
    print("\n\n".join(part for part in said if part))
