"""Read a folder of class folders, or `train/`, `val/` and `test/` folders of them."""

import os
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from scs_supcon.data.dataset import ImageDataset, Problem
from scs_supcon.data.image_io import (
    HEIF_SUFFIXES,
    INSTALL_HEIF,
    SUFFIXES,
    ImageFiles,
    median_short_side,
)
from scs_supcon.errors import UserError
from scs_supcon.io.text import printable_name

SPLIT_NAMES = {
    "train": "train",
    "training": "train",
    "val": "val",
    "valid": "val",
    "validation": "val",
    "test": "test",
    "testing": "test",
}


@dataclass(frozen=True)
class _ImageFile:
    name: str
    path: Path
    label: str
    split: str


@dataclass
class _FolderScan:
    """Image files and notes found while reading a dataset folder."""

    root: Path
    files: list[_ImageFile] = field(default_factory=list)
    notes: list[Problem] = field(default_factory=list)

    def name(self, path: Path) -> str:
        return path.relative_to(self.root).as_posix()


def read_folder(root: Path, *, forgiving: bool = False) -> ImageDataset:
    """Read class folders, with or without split folders above them.

    Args:
        root: The folder.
        forgiving: Report hidden files as notes.

    Raises:
        UserError: The folder does not have the expected layout.
    """
    splits = _split_folders(root)
    scan = _FolderScan(root)
    for split, folder in splits.items() if splits else [("", root)]:
        _scan_class_folders(scan, folder, split)
    if forgiving:
        scan.notes += _hidden_notes(root)
    files = sorted(scan.files, key=lambda file: file.name)
    _check_file_names(files)
    classes = tuple(sorted({file.label for file in files}))
    class_index = {name: index for index, name in enumerate(classes)}
    reader = ImageFiles(tuple(file.path for file in files))
    return ImageDataset(
        names=tuple(file.name for file in files),
        labels=np.array([class_index[file.label] for file in files], dtype=np.int64),
        classes=classes,
        splits=np.array([file.split for file in files]) if splits else None,
        groups=None,
        folds=None,
        open=reader.open,
        file_hash=reader.file_hash,
        native_size=median_short_side(reader.paths),
        notes=tuple(sorted(scan.notes, key=lambda note: (note.kind, note.name))),
        paths=reader.paths,
    )


def class_name(name: str) -> str:
    """Return the name of a class in composed form.

    Systems write "é" as one character or as "e" and an accent: these are the same class.
    """
    return unicodedata.normalize("NFC", name)


def is_hidden(name: str) -> bool:
    """Return whether a file or folder is skipped: dot files and macOS metadata."""
    return name.startswith(".") or name == "__MACOSX"


def _split_folders(root: Path) -> dict[str, Path]:
    """Return the folders `train/`, `val/` and `test/` by split, or an empty dictionary.

    A class may be called "train" too: a split folder holds folders, a class folder holds images.
    """
    by_split: dict[str, Path] = {}
    others = []
    for folder in _folders(root):
        split = SPLIT_NAMES.get(folder.name.lower())
        if split is None or not any(_folders(folder)):
            others.append(folder)
        elif split in by_split:
            raise UserError(
                f"{by_split[split]} and {folder} are both {split} folders: keep one of them"
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


def _scan_class_folders(scan: _FolderScan, folder: Path, split: str) -> None:
    """Add the images of each class folder in `folder`, and a note for everything skipped."""
    loose = [path for path in folder.iterdir() if path.is_file() and not is_hidden(path.name)]
    scan.notes += [_skipped_file(scan, path) for path in loose]
    class_folders = _folders(folder)
    count_before = len(scan.files)
    for class_folder in class_folders:
        paths = list(_files(class_folder))
        image_paths = [path for path in paths if _is_image(path)]
        scan.notes += [_skipped_file(scan, path) for path in paths if not _is_image(path)]
        if not image_paths:
            others = f" (files with other extensions: {len(paths)})" if paths else ""
            name = printable_name(scan.name(class_folder))
            detail = f"{printable_name(class_folder)} has no images{others}"
            scan.notes.append(Problem("empty_folder", name, detail))
        scan.files += [
            _ImageFile(scan.name(path), path, class_name(class_folder.name), split)
            for path in image_paths
        ]
    if len(scan.files) == count_before:
        loose_images = sum(map(_is_image, loose))
        content = (
            f"{loose_images} images but no class folders" if loose_images else "no class folders"
        )
        if class_folders:
            content = "no image in any of its class folders"
        raise UserError(
            f"{folder} contains {content}: put the images of each class into one folder"
        )


def _skipped_file(scan: _FolderScan, path: Path) -> Problem:
    name = printable_name(scan.name(path))
    reason = "it is not in a class folder" if _is_image(path) else "it has no image extension"
    if path.suffix.lower() in HEIF_SUFFIXES and not _is_image(path):
        reason = f"HEIC needs a package, {INSTALL_HEIF}"
    return Problem("skipped_file", name, f"{name} is not read: {reason}")


def _hidden_notes(root: Path) -> Iterator[Problem]:
    """Yield a problem for each topmost hidden file or folder."""
    for path, folders, files in os.walk(root):
        hidden = [name for name in (*folders, *files) if is_hidden(name)]
        folders[:] = [name for name in folders if not is_hidden(name)]
        for entry in (Path(path) / name for name in hidden):
            name = printable_name(entry.relative_to(root).as_posix())
            count = sum(_is_image(file) for file in entry.rglob("*"))
            images_inside = f" (images inside: {count})" if count else ""
            yield Problem("hidden", name, f"{name} is not read{images_inside}")


def _folders(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_dir() and not is_hidden(path.name))


def _files(folder: Path) -> Iterator[Path]:
    """Yield every visible file below, following links but visiting no folder twice."""
    visited = set()
    for path, folders, files in os.walk(folder, followlinks=True):
        parent = Path(path)
        folders[:] = sorted(name for name in folders if not is_hidden(name))
        if (real := parent.resolve()) in visited:
            folders.clear()
            continue
        visited.add(real)
        yield from (parent / name for name in sorted(files) if not is_hidden(name))


def _is_image(path: Path) -> bool:
    return path.suffix.lower() in SUFFIXES


def _check_file_names(files: list[_ImageFile]) -> None:
    for file in files:
        try:
            file.name.encode()
        except UnicodeEncodeError:
            raise UserError(f"the file name {file.name!r} is not valid UTF-8: rename it") from None
