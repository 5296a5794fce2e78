"""Find named datasets: by a folder that the user gives, or in the folder $SCS_DATA."""

import os
from collections.abc import Sequence
from pathlib import Path

from scs_supcon.data.dataset import ImageDataset
from scs_supcon.data.named import (
    cifar10,
    cifar100,
    cub200,
    stanford_dogs,
    tiny_imagenet,
    voc2005,
)
from scs_supcon.data.named.base import NamedDataset, how_to_get, read_named
from scs_supcon.errors import UserError, did_you_mean

ROOT_VARIABLE = "SCS_DATA"
NAMED: dict[str, NamedDataset] = {
    module.DATASET.name: module.DATASET
    for module in (cifar10, cifar100, tiny_imagenet, cub200, stanford_dogs, voc2005)
}


def load_named(name: str, root: str | Path | None = None) -> ImageDataset:
    """Read a named dataset with its official split.

    Args:
        name: such as "cub200"; see `NAMED`.
        root: its folder; default: the folder `name` in $SCS_DATA.

    Raises:
        UserError: the name is unknown, or the folder does not hold the complete dataset.
    """
    dataset = find_named(name)
    folder = Path(root).expanduser() if root is not None else default_folder(name)
    if folder is None:
        raise UserError(
            f"{name} needs its images: give their folder with --data DIR, or set {ROOT_VARIABLE} "
            f"to a folder that contains {name}. {how_to_get(dataset)}"
        )
    return read_named(dataset, folder)


def find_named(name: str) -> NamedDataset:
    """Return the description of a named dataset."""
    if name not in NAMED:
        raise UserError(
            f"there is no dataset {name!r}{did_you_mean(name, NAMED)}: the names are "
            f"{', '.join(NAMED)}"
        )
    return NAMED[name]


def default_folder(name: str) -> Path | None:
    """Return the folder of a dataset in $SCS_DATA; None if the variable is not set."""
    root = os.environ.get(ROOT_VARIABLE)
    return Path(root) / name if root else None


def split_source(source: str) -> tuple[str, str | None] | None:
    """Return name and folder of a source `NAME` or `NAME=FOLDER`; None for anything else."""
    name, equals, folder = source.partition("=")
    if name not in NAMED:
        return None
    return name, folder if equals else None


def named_source(source: str, folders: Sequence[str]) -> str:
    """Return `NAME=FOLDER` for a named dataset whose folder is given with --data.

    Args:
        source: the data of a command.
        folders: values of --data: FOLDER, or NAME=FOLDER.

    Raises:
        UserError: a folder is given, but not for this dataset.
    """
    if not folders:
        return source
    by_name = {}
    for folder in folders:
        name, equals, path = folder.partition("=")
        is_pair = bool(equals) and name in NAMED
        by_name[name if is_pair else source] = path if is_pair else folder
    if source in NAMED:
        return f"{source}={by_name[source]}" if source in by_name else source
    if source in by_name:
        raise UserError(
            f"--data gives the folder of a named dataset ({', '.join(NAMED)}), but DATA is "
            f"{source!r}: leave out --data{did_you_mean(source, NAMED)}"
        )
    return source
