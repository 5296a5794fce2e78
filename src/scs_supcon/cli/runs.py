"""`scs runs`: list the runs on disk."""

import json
from pathlib import Path
from typing import Annotated

import typer

from scs_supcon.cli.app import ScsCommand, app, echo
from scs_supcon.cli.options import Json
from scs_supcon.errors import UserError


@app.command(cls=ScsCommand)
def runs(
    folder: Annotated[Path, typer.Argument(help="Folder with the runs.")] = Path("runs"),
    clean: Annotated[
        bool,
        typer.Option(
            "--clean",
            help="Remove checkpoints and cached features of finished runs. Models are kept.",
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """List the runs on disk with their sizes and the space that can be freed.

    scs runs runs/ --clean
    """
    from scs_supcon.runs import listing

    if not folder.is_dir():
        raise UserError(
            f"folder {folder} does not exist: specify the folder that contains your runs"
        )
    summaries = listing.find_runs(folder)
    if clean:
        freed = sum(listing.remove_spare_files(run) for run in summaries)
        echo(f"freed {freed / 2**20:,.1f} MiB")
        return
    if as_json:
        echo(json.dumps([vars(run) | {"path": str(run.path)} for run in summaries], indent=1))
        return
    if not summaries:
        echo(f"no runs in {folder}")
        return
    echo(f"{'run':<28} {'data':<24} {'method':<20} {'accuracy':>10} {'MiB':>9} {'spare':>9}")
    for run in summaries:
        accuracy = "unfinished" if run.accuracy is None else f"{run.accuracy:.2%}"
        sizes = f"{run.bytes / 2**20:>9,.1f} {run.spare / 2**20:>9,.1f}"
        echo(f"{run.path!s:<28} {run.source:<24} {run.method:<20} {accuracy:>10} {sizes}")
