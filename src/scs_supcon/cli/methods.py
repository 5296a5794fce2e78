"""`scs methods` and `scs show`: what there is to train with."""

import json
import sys
from typing import Annotated, Any

import typer

from scs_supcon.cli.app import Json, app


@app.command()
def methods(as_json: Json = False) -> None:
    """List the methods, one line each."""
    from scs_supcon.methods import available, method_class

    found = {name: _first_line(method_class(name)) for name in available()}
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


def _first_line(method: Any) -> str:
    line = (sys.modules[method.__module__].__doc__ or "").splitlines()[0].partition(": ")[2]
    return f"{line} [adapted]" if method.adapted else line
