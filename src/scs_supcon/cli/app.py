"""The command itself, and the arguments that several verbs share."""

from pathlib import Path
from typing import Annotated

import typer

from scs_supcon import __version__

app = typer.Typer(
    name="scs",
    help="Supervised contrastive learning with a learnable decision boundary.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

Data = Annotated[
    str,
    typer.Argument(
        help="Folder of class folders, train/val/test folders, .csv or .parquet with "
        "image_path,label[,split,fold,group], or a built-in set: digits, drawn."
    ),
]
RunPath = Annotated[Path, typer.Argument(help="A run's folder, or its model folder.")]
ImageDataset = Annotated[
    list[str], typer.Argument(help="Files, folders and patterns such as 'x/*.jpg'.")
]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:1.")]
Json = Annotated[bool, typer.Option("--json", help="Print the result for programs.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="Show no progress.")]


def _version(wanted: bool) -> None:
    if wanted:
        print(f"scs-supcon {__version__}")
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None: ...
