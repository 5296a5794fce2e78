"""Load images from a folder, a table, a built-in or a named dataset."""

import os
from collections.abc import Iterable, Iterator
from dataclasses import replace
from glob import glob, has_magic
from pathlib import Path

from scs_supcon.data.archive import is_archive, unpack
from scs_supcon.data.audit import check_images, keep_duplicates_together, unusable_indices
from scs_supcon.data.builtin import BUILT_IN
from scs_supcon.data.dataset import ImageDataset, KnownHashes, Problem, without
from scs_supcon.data.folder import read_folder
from scs_supcon.data.image_io import HEIF_SUFFIXES, SUFFIXES
from scs_supcon.data.image_parquet import image_parquet_files, read_image_parquet
from scs_supcon.data.named.registry import NAMED, load_named, split_source
from scs_supcon.data.packed import is_packed, read_packed
from scs_supcon.data.table import read_image_table
from scs_supcon.errors import UserError, did_you_mean
from scs_supcon.progress import ProgressCallback


def load_dataset(
    source: str, workers: int, progress: ProgressCallback
) -> tuple[ImageDataset, list[Problem]]:
    """Read a dataset and check its images.

    Args:
        source: Folder, table or name of a dataset, as for `load_images`.
        workers: Number of threads that decode images.
        progress: Called with (images checked, images in total).

    Returns:
        The usable images, with duplicates in one group, and all problems.
    """
    return check_dataset(load_images(source), workers, progress)


def check_dataset(
    images: ImageDataset, workers: int, progress: ProgressCallback
) -> tuple[ImageDataset, list[Problem]]:
    """Decode the images of a dataset; the arguments and the result are those of `load_dataset`."""
    images = replace(images, file_hash=KnownHashes(images.file_hash))
    problems = check_images(images, workers, lambda done: progress(done, len(images)))
    unusable = unusable_indices(images, problems)
    images = without(images, unusable) if unusable else images
    return keep_duplicates_together(images, problems), problems


def load_images(source: str | Path, *, forgiving: bool = False) -> ImageDataset:
    """Read a dataset without decoding its images.

    Args:
        source: A folder of class folders, a folder with `train/`, `val/`, `test/` of them, a
            `.zip` archive of such a folder, a `.csv` or `.parquet` table, a folder or address
            written by `scs pack`, a folder of Parquet files with an image column (Hugging Face), a
            folder written by `save_to_disk` of `datasets`, a built-in dataset ("digits", "shapes"),
            or a dataset of the paper, such as "cub200" or "cub200=FOLDER".
        forgiving: Accept a table with missing files, which cannot be opened later.

    Raises:
        UserError: The source does not exist, or does not have the expected layout.
    """
    if isinstance(source, str) and source in BUILT_IN:
        if Path(source).exists():
            raise UserError(
                f"{source!r} is both a built-in dataset and a path: write ./{source} for the "
                "path, or run from another folder for the built-in dataset"
            )
        return BUILT_IN[source]()
    if (named := split_source(str(source))) is not None:
        return _load_named(*named)
    if is_packed(source):
        return read_packed(source)
    path = unpack(Path(source)) if is_archive(Path(source)) else Path(source)
    if path.is_dir() and (parquet_files := image_parquet_files(path)):
        return read_image_parquet(path, parquet_files)
    if path.is_dir():
        return read_folder(path, forgiving=forgiving)
    if path.is_file() and path.suffix.lower() in (".csv", ".parquet"):
        return read_image_table(path, forgiving=forgiving)
    known = (*BUILT_IN, *NAMED)
    expected = (
        "a folder of class folders or a .zip of it, a .csv or .parquet table, or the name of a "
        "dataset "
        f"({', '.join(known)})"
    )
    if path.exists():
        raise UserError(f"{path} is not an image dataset: expected {expected}")
    neighbours = [p.name for p in path.parent.iterdir()] if path.parent.is_dir() else []
    hint = did_you_mean(path.name, [*neighbours, *known])
    raise UserError(f"{str(source)!r} does not exist: expected {expected}{hint}")


def _load_named(name: str, folder: str | None) -> ImageDataset:
    if folder is None and Path(name).exists():
        raise UserError(
            f"{name!r} is both a dataset and a path: write ./{name} for a folder of class "
            f"folders, or add --data {name} for the dataset in this folder"
        )
    return load_named(name, folder)


def source_name(source: str) -> str:
    """Return a short name of the data: a dataset, a folder, or a file without its suffix."""
    if (named := split_source(source)) is not None:
        return named[0]
    path = Path(os.path.abspath(source))  # noqa: PTH100 - keeps the name of a symbolic link
    return path.name if path.is_dir() else path.stem


def find_images(arguments: Iterable[str], skipped: list[Path] | None = None) -> list[Path]:
    """Return the image files that command-line arguments match, without repetition.

    Args:
        arguments: Files, folders (including subfolders), zip archives, and patterns such as
            `x/*.jpg`.
        skipped: The visible files of folders that are not images are appended to this list.

    Raises:
        UserError: An argument matches no image.
    """
    paths: dict[Path, None] = {}
    for argument in arguments:
        matches = dict.fromkeys(_matches(argument, [] if skipped is None else skipped))
        if not matches:
            raise UserError(
                f"no images at {argument}: expected files, folders or patterns such as 'x/*.jpg'"
            )
        paths |= matches
    return list(paths)


def _matches(argument: str, skipped: list[Path]) -> Iterator[Path]:
    if Path(argument).exists() or not has_magic(argument):
        yield from _images_below(Path(argument), skipped)
        return
    # pathlib cannot match absolute patterns
    for match in sorted(glob(argument, recursive=True)):  # noqa: PTH207
        yield from _images_below(Path(match), skipped)


def _images_below(path: Path, skipped: list[Path]) -> Iterator[Path]:
    """Yield every image in a folder or zip archive, or the path itself if it is neither."""
    if is_archive(path):
        path = unpack(path)
    if not path.is_dir():
        yield path  # if it does not exist, opening it reports that
        return
    for file in sorted(path.rglob("*")):
        relative = file.relative_to(path)
        visible = not any(name.startswith(".") for name in relative.parts)
        if visible and file.is_file():
            # Without its package, reading a HEIC photograph is an error that names the package.
            if file.suffix.lower() in (*SUFFIXES, *HEIF_SUFFIXES):
                yield file
            else:
                skipped.append(file)
