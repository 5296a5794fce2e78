"""Read a labelled set of images: class folders, split folders, a table, or a built-in name."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from scs_supcon.data.builtin import digits
from scs_supcon.data.check import check_images
from scs_supcon.data.dataset import ImageDataset, Problem, printable, without
from scs_supcon.data.image_io import SUFFIXES, Files, ImageError, short_side
from scs_supcon.data.shapes import drawn
from scs_supcon.data.table import OPTIONAL, read_table
from scs_supcon.errors import UserError, did_you_mean

__all__ = ["ImageDataset", "Problem", "check_images", "load_images", "without"]

BUILT_IN = {"digits": digits, "drawn": drawn}
SPLIT_NAMES = {
    "train": "train",
    "training": "train",
    "val": "val",
    "valid": "val",
    "validation": "val",
    "test": "test",
    "testing": "test",
}


def load_images(source: str | Path, *, forgiving: bool = False) -> ImageDataset:
    """Read DATA.

    Args:
        source: A folder of class folders, a folder with `train/`, `val/`, `test/` of them, a
            `.csv` or `.parquet` table, or a built-in name: "digits", "drawn".
        forgiving: Note empty class folders instead of refusing them, and leave it to whoever opens
            the images to find that files of a table are missing.

    Raises:
        UserError: There is nothing to read there, or it is not laid out as expected.
    """
    if isinstance(source, str) and source in BUILT_IN:
        if Path(source).exists():
            raise UserError(
                f"{source!r} is a built-in set and also a path here: write ./{source} to mean the "
                "path, or run from another folder to mean the built-in set"
            )
        return BUILT_IN[source]()
    path = Path(source)
    if path.is_dir():
        return _read_folder(path, forgiving)
    if path.is_file() and path.suffix.lower() in (".csv", ".parquet"):
        return _read_table(path, forgiving)
    expected = "a folder of class folders, a .csv or .parquet table, or digits or drawn"
    if path.exists():
        raise UserError(f"{path} is no image data: expected {expected}")
    neighbours = [p.name for p in path.parent.iterdir()] if path.parent.is_dir() else []
    hint = did_you_mean(path.name, [*neighbours, *BUILT_IN])
    raise UserError(f"there is no {str(source)!r}: expected {expected}{hint}")


@dataclass(frozen=True)
class _Found:
    name: str
    path: Path
    label: str
    split: str


def _read_folder(root: Path, forgiving: bool) -> ImageDataset:
    splits = _split_folders(root)
    found: list[_Found] = []
    notes: list[Problem] = []
    for split, folder in splits.items() if splits else [("", root)]:
        images, others = _class_folders(root, folder, split, forgiving)
        found += images
        notes += others
    found.sort(key=lambda one: one.name)
    _must_be_text(one.name for one in found)
    classes = tuple(sorted({one.label for one in found}))
    number = {name: label for label, name in enumerate(classes)}
    files = Files(tuple(one.path for one in found))
    return ImageDataset(
        names=tuple(one.name for one in found),
        labels=np.array([number[one.label] for one in found], dtype=np.int64),
        classes=classes,
        splits=np.array([one.split for one in found]) if splits else None,
        groups=None,
        folds=None,
        open=files.open,
        file_hash=files.file_hash,
        native_size=_native_size(files.paths),
        notes=tuple(sorted(notes, key=lambda note: (note.kind, note.name))),
        paths=files.paths,
    )


def _split_folders(root: Path) -> dict[str, Path]:
    """`train/`, `val/`, `test/` if that is how the folder is laid out, else nothing.

    A class may be called "train" too: split folders hold class folders, class folders images.
    """
    by_split: dict[str, Path] = {}
    others = []
    for folder in _folders(root):
        split = SPLIT_NAMES.get(folder.name.lower())
        if split is None or not any(_folders(folder)):
            others.append(folder)
        elif split in by_split:
            raise UserError(
                f"{by_split[split]} and {folder} are both the {split} part: keep one of them"
            )
        else:
            by_split[split] = folder
    if not by_split:
        return {}
    if "train" not in by_split:
        raise UserError(f"{root} has {', '.join(sorted(by_split))} but no train folder: add it")
    for folder in others:
        if any(_is_image(path) for path in _files(folder)):
            raise UserError(
                f"{root} has {', '.join(sorted(by_split))} and also images in {folder.name!r}: "
                "move that folder away, or into the split it belongs to"
            )
    return by_split


def _class_folders(
    root: Path, folder: Path, split: str, forgiving: bool
) -> tuple[list[_Found], list[Problem]]:
    """The images of each class folder in `folder`, and what is not read."""
    found = []
    loose = [path for path in folder.iterdir() if path.is_file() and not _hidden(path)]
    notes = [_skipped(root, path) for path in loose]
    for class_folder in _folders(folder):
        files = list(_files(class_folder))
        images = [path for path in files if _is_image(path)]
        notes += [_skipped(root, path) for path in files if not _is_image(path)]
        if not images:
            others = f" ({len(files)} files with other endings)" if files else ""
            if split in ("", "train") and not forgiving:
                raise UserError(
                    f"class folder {class_folder} has no image{others}: add "
                    f"{', '.join(sorted(SUFFIXES))} files or remove the folder"
                )
            detail = f"{printable(class_folder)} has no image{others}"
            name = printable(_name(root, class_folder))
            notes.append(Problem("empty folder", name, detail))
        found += [_Found(_name(root, p), p, class_folder.name, split) for p in images]
    if not found:
        flat = sum(map(_is_image, loose))
        what = f"{flat} images but no class folders" if flat else "no class folders"
        if any(_folders(folder)):
            what = "no image in any of its class folders"
        raise UserError(f"{folder} holds {what}: put the images of each class into one folder")
    return found, notes


def _skipped(root: Path, path: Path) -> Problem:
    name = printable(_name(root, path))
    return Problem("skipped file", name, f"{name} is not read: no image's ending, or no class")


def _folders(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_dir() and not _hidden(path))


def _files(folder: Path) -> Iterator[Path]:
    """Every file below, links followed but no folder entered twice, hidden ones left out."""
    entered = set()
    for place, folders, files in os.walk(folder, followlinks=True):
        here = Path(place)
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        if (real := here.resolve()) in entered:
            folders.clear()
            continue
        entered.add(real)
        yield from (here / name for name in sorted(files) if not name.startswith("."))


def _hidden(path: Path) -> bool:
    return path.name.startswith(".")


def _is_image(path: Path) -> bool:
    return path.suffix.lower() in SUFFIXES


def _name(root: Path, path: Path) -> str:
    return path.relative_to(root).as_posix()


def _must_be_text(names: Iterator[str]) -> None:
    for name in names:
        try:
            name.encode()
        except UnicodeEncodeError:
            raise UserError(f"the file name {name!r} is not valid UTF-8: rename it") from None


def _read_table(path: Path, forgiving: bool) -> ImageDataset:
    table = read_table(path, SPLIT_NAMES)
    files = Files(tuple(path.parent / name for name in table.names))
    missing = [place for place in files.paths if not place.is_file()]
    if missing and not forgiving:
        more = f" (and {len(missing) - 1} more)" if len(missing) > 1 else ""
        raise UserError(
            f"{path} lists {missing[0]}{more}, which does not exist: "
            "image_path is relative to the table's own folder"
        )
    classes = tuple(sorted(set(table.labels)))
    number = {name: label for label, name in enumerate(classes)}
    return ImageDataset(
        names=table.names,
        labels=np.array([number[label] for label in table.labels], dtype=np.int64),
        classes=classes,
        splits=None if table.splits is None else np.array(table.splits),
        groups=None if table.groups is None else np.array(table.groups),
        folds=None if table.folds is None else np.array(table.folds, dtype=np.int64),
        open=files.open,
        file_hash=files.file_hash,
        native_size=_native_size(files.paths),
        notes=tuple(
            Problem(
                "unread column",
                column,
                f"column {column!r} of {path.name} is not read{did_you_mean(column, OPTIONAL)}",
            )
            for column in table.unread
        ),
        paths=files.paths,
    )


def _native_size(paths: tuple[Path, ...], sample: int = 64) -> int:
    sides = []
    problem: ImageError | None = None
    for path in paths[:: max(1, len(paths) // sample)]:
        try:
            sides.append(short_side(path))
        except ImageError as error:
            problem = error
    if not sides:
        raise UserError(f"none of the images tried can be read, such as: {problem}")
    return int(np.median(sides))
