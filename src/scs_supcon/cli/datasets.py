"""`scs datasets`: list the datasets of the paper, and download them."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from scs_supcon.cli.app import app, echo
from scs_supcon.cli.options import DataFolder, Json, Quiet
from scs_supcon.errors import UserError

if TYPE_CHECKING:
    from scs_supcon.data.named.base import NamedDataset

datasets_app = typer.Typer(
    help="List the datasets that are used by name, and download them.",
    invoke_without_command=True,
    no_args_is_help=False,
)
app.add_typer(datasets_app, name="datasets")


@datasets_app.callback()
def datasets(context: typer.Context, folder: DataFolder = None, as_json: Json = False) -> None:
    """List the datasets that are used by name: their size, and where they are on this machine.

    A dataset is looked for in the folder NAME in $SCS_DATA, or in the folder given with --data.

        scs datasets
        scs datasets --data cub200=/data/CUB_200_2011
        scs datasets download cifar100 --to /data/cifar100
    """
    if context.invoked_subcommand is not None:
        return
    from scs_supcon.data.named.registry import NAMED

    rows = [_row(dataset, folder or ()) for dataset in NAMED.values()]
    if as_json:
        echo(json.dumps(rows, indent=1))
        return
    echo(f"{'name':<14} {'classes':>7} {'train':>8} {'test':>7}  images")
    for row in rows:
        sizes = (f"{row[key]:,}" if row[key] is not None else "?" for key in ("train", "test"))
        train, test = sizes
        echo(f"{row['name']:<14} {row['classes']:>7} {train:>8} {test:>7}  {row['state']}")
    echo("\nUse one: scs train NAME --data FOLDER --out runs/NAME, or set SCS_DATA")


@datasets_app.command()
def download(
    name: Annotated[str, typer.Argument(help="Name of a dataset that `scs datasets` lists.")],
    to: Annotated[Path, typer.Option("--to", help="Folder for the archives and the images.")],
    url: Annotated[
        list[str] | None,
        typer.Option(
            help="Another address of the archive, such as a mirror. Repeat it for a dataset with "
            "several archives, in the publisher's order."
        ),
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Download a dataset from its publisher, check it, and extract it.

    Archives that are already in the folder are not downloaded again.

        scs datasets download cub200 --to /data/cub200
    """
    from scs_supcon.data.named.download import download_named
    from scs_supcon.data.named.registry import find_named
    from scs_supcon.progress import Display

    dataset = find_named(name)
    folder = download_named(dataset, to, Display(quiet), url or ())
    for issue in dataset.known_issues:
        echo(f"known issue: {issue}")
    echo(f"complete. Use it with: scs train {name} --data {folder} --out runs/{name}")


def _row(dataset: "NamedDataset", folders: Sequence[str]) -> dict[str, Any]:
    """Return what is known about a dataset, and whether it is complete on this machine."""
    from scs_supcon.data.named.registry import default_folder, load_named, named_source

    for folder in folders:
        if "=" not in folder:
            raise UserError(f"--data {folder}: write NAME=FOLDER, such as cub200={folder}")
    _, _, given = named_source(dataset.name, folders).partition("=")
    where = given or default_folder(dataset.name)
    row: dict[str, Any] = {
        "name": dataset.name,
        "page": dataset.page,
        "classes": dataset.classes,
        "train": dataset.train,
        "test": dataset.test,
        "folder": where and str(where),
        "complete": False,
    }
    if where is None:
        return row | {"state": "SCS_DATA is not set"}
    if not Path(where).exists():
        return row | {"state": f"not in {where}"}
    try:
        images = load_named(dataset.name, where)
    except UserError as error:
        return row | {"state": str(error)}
    assert images.splits is not None  # named datasets have splits
    counts = {split: int((images.splits == split).sum()) for split in ("train", "test")}
    return row | counts | {"complete": True, "state": f"complete, in {where}"}
