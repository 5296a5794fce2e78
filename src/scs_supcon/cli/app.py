"""The command `scs`."""

import sys
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from scs_supcon import __version__
from scs_supcon.errors import UserError
from scs_supcon.io.text import printable

app = typer.Typer(
    name="scs",
    help="Supervised contrastive learning with an explicit decision boundary: train, use and "
    "compare image classifiers.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def echo(text: object, *, end: str = "\n", err: bool = False) -> None:
    """Print text; control characters, which names of files may contain, are written as escapes."""
    print(printable(str(text)), end=end, file=sys.stderr if err else sys.stdout, flush=err)


class ScsCommand(TyperCommand):
    """A command that suggests `--set` for options that are recipe keys."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the command line."""
        ctx.meta["arguments"] = tuple(args)  # for --slurm, which runs the same command elsewhere
        try:
            return super().parse_args(ctx, args)
        except Exception as error:
            # Compare by name: newer versions of typer contain a copy of click.
            option = getattr(error, "option_name", "")
            has_set = any("--set" in parameter.opts for parameter in self.params)
            if type(error).__name__ != "NoSuchOption" or not has_set:
                raise
            if (key := _recipe_key(option)) is None:
                raise
            raise UserError(f"no such option: {option}; use --set {key}=VALUE") from error


def _recipe_key(option: str) -> str | None:
    """Return the recipe key for an option, such as "pretrain.lr" for "--lr", or None."""
    from scs_supcon.recipe import SECTIONS

    name = option.lstrip("-").replace("-", "_")
    for section, fields in SECTIONS.items():
        if name in fields.model_fields:
            return f"{section}.{name}"
    from scs_supcon.methods import available, method_defaults  # imports torch

    if any(name in method_defaults(method) for method in available()):
        return f"method.options.{name}"
    return None


def _print_version(requested: bool) -> None:
    if requested:
        echo(f"scs-supcon {__version__}")
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> Any: ...
