"""`scs pack`: write a dataset as tar shards with an index."""

from pathlib import Path
from typing import Annotated

import typer

from scs_supcon.cli.app import app, echo
from scs_supcon.cli.options import Data, Quiet, Workers


@app.command()
def pack(
    data: Data,
    out: Annotated[Path, typer.Argument(help="New folder for the shards and their index.")],
    shard_size: Annotated[
        int, typer.Option(min=1, help="Size at which a new shard is started, in MiB.")
    ] = 256,
    workers: Workers = None,
    quiet: Quiet = False,
) -> None:
    """Write a dataset as a few large tar files, for object storage or millions of images.

    Every image is checked once; unusable ones are left out. The shards have WebDataset's layout,
    the index allows random access. The result can be used wherever a folder of images can, also
    from an address such as s3://bucket/birds (with the fsspec package for it installed).

        scs pack ./birds birds-packed
        scs train birds-packed --out runs/birds
    """
    from scs_supcon.data.audit import UNUSABLE
    from scs_supcon.data.load import load_dataset
    from scs_supcon.data.packed import pack as write_packed
    from scs_supcon.device import find_compute
    from scs_supcon.progress import Display

    display = Display(quiet)
    with display.progress("checking images") as progress:
        images, problems = load_dataset(data, find_compute(workers=workers).workers, progress)
    with display.progress("packing images") as progress:
        shards = write_packed(images, out, shard_bytes=shard_size * 2**20, progress=progress)
    for problem in problems:
        if problem.kind in UNUSABLE:
            echo(f"left out: {problem.detail}")
    files = "1 shard" if shards == 1 else f"{shards:,} shards"
    echo(f"packed {len(images):,} images of {len(images.classes)} classes: {files} in {out}")
