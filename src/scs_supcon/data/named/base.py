"""What the readers of named datasets share: the description of a dataset, and its checks."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import numpy as np

from scs_supcon.data.dataset import ImageDataset, Problem
from scs_supcon.data.folder import read_folder
from scs_supcon.data.image_io import ImageFiles, median_short_side
from scs_supcon.errors import UserError
from scs_supcon.io.records import read_text

LISTED = 3  # missing files that an error names


@dataclass(frozen=True)
class Archive:
    """A file to download.

    Attributes:
        url: where the publisher offers it.
        md5: its MD5, if the publisher or many independent copies agree on it.
    """

    url: str
    md5: str | None = None

    @property
    def name(self) -> str:
        """Name of the file."""
        return PurePosixPath(self.url.partition("?")[0]).name


@dataclass(frozen=True)
class NamedDataset:
    """A dataset that can be used by its name.

    Attributes:
        name: such as "cub200".
        title: its usual name.
        classes: number of classes.
        train: number of images of the official training split; None if it is not known.
        test: number of images of the official test split; None if it is not known.
        native_size: usual short side of an image in pixels.
        page: the publisher's page.
        archives: files to download.
        folder: the folder that the archives contain; "" if there are several.
        files: files and folders by which the publisher's layout is recognised.
        read: reads the publisher's layout; its argument is the folder that contains `files`.
        known_issues: what to know before trusting a result.
        test_folder: folder whose images are the test set, if class folders are used.
        check: raises an error for a layout that is recognised but not supported.
    """

    name: str
    title: str
    classes: int
    train: int | None
    test: int | None
    native_size: int
    page: str
    archives: tuple[Archive, ...]
    folder: str
    files: tuple[str, ...]
    read: Callable[[Path], ImageDataset]
    known_issues: tuple[str, ...] = ()
    test_folder: str = "test"
    check: Callable[[Path], None] | None = None


class ListedImage(NamedTuple):
    """A row of a publisher's list: path relative to the root, name of the class, split."""

    path: str
    label: str
    split: str


def read_named(dataset: NamedDataset, root: Path) -> ImageDataset:
    """Read a dataset from the publisher's layout or from class folders, and check its size.

    Args:
        dataset: the dataset.
        root: the publisher's folder, the folder that contains it, or a folder with `train` and
            `test` folders of class folders.

    Raises:
        UserError: the folder does not hold the complete dataset; the message says what is missing
            and where to get it.
    """
    if not root.is_dir():
        raise UserError(f"{dataset.title}: {root} is not a folder. {how_to_get(dataset, root)}")
    for folder in (root, root / dataset.folder):
        if dataset.check is not None:
            dataset.check(folder)
        if any((folder / file).exists() for file in dataset.files):
            _check_files(dataset, folder)
            images = dataset.read(folder)
            break
    else:
        images = _read_class_folders(dataset, root)
    _check_counts(dataset, images, root)
    issues = [
        Problem("known_issue", f"{dataset.name}, {number}", text)
        for number, text in enumerate(dataset.known_issues, start=1)
    ]
    return replace(images, notes=(*images.notes, *issues))


def how_to_get(dataset: NamedDataset, root: Path | str = "DIR") -> str:
    """Return a sentence that says where to get a dataset."""
    return f"Get it from {dataset.page}, or run: scs datasets download {dataset.name} --to {root}"


def dataset_from_list(
    dataset: str, root: Path, rows: Sequence[ListedImage], notes: Iterable[Problem] = ()
) -> ImageDataset:
    """Return the dataset of files that a list names.

    Raises:
        UserError: a file is missing, or lies outside of `root`.
    """
    rows = sorted(rows)
    for row in rows:
        path = PurePosixPath(row.path)
        if path.is_absolute() or ".." in path.parts or "\\" in row.path:
            raise UserError(f"{dataset}: the list names {row.path!r}, which is not below {root}")
    paths = tuple(root / row.path for row in rows)
    missing = [row.path for row, path in zip(rows, paths, strict=True) if not path.is_file()]
    if missing:
        more = f" and {len(missing) - LISTED:,} more" if len(missing) > LISTED else ""
        raise UserError(
            f"{dataset}: {len(missing):,} of {len(rows):,} images are missing in {root}: "
            f"{', '.join(missing[:LISTED])}{more}. Extract the archive again"
        )
    classes = tuple(sorted({row.label for row in rows}))
    index = {name: number for number, name in enumerate(classes)}
    files = ImageFiles(paths)
    return ImageDataset(
        names=tuple(row.path for row in rows),
        labels=np.array([index[row.label] for row in rows], dtype=np.int64),
        classes=classes,
        splits=np.array([row.split for row in rows]),
        groups=None,
        folds=None,
        open=files.open,
        file_hash=files.file_hash,
        native_size=median_short_side(paths),
        notes=tuple(notes),
        paths=paths,
    )


def read_words(file: Path, columns: int) -> list[list[str]]:
    """Return the rows of a text file with `columns` words each; the last may contain spaces.

    Raises:
        UserError: a row has fewer words.
    """
    rows = []
    for number, line in enumerate(read_text(file, links=True).splitlines(), start=1):
        if not line.strip():
            continue
        words = line.split(maxsplit=columns - 1)
        if len(words) != columns:
            raise UserError(f"{file}, line {number}: expected {columns} words, got {line[:80]!r}")
        rows.append([word.strip() for word in words])
    return rows


def _check_files(dataset: NamedDataset, folder: Path) -> None:
    missing = [file for file in dataset.files if not (folder / file).exists()]
    if missing:
        raise UserError(
            f"{dataset.title}: {folder} has no {', '.join(missing)}. {how_to_get(dataset, folder)}"
        )


def _read_class_folders(dataset: NamedDataset, root: Path) -> ImageDataset:
    test = dataset.test_folder
    if not ((root / "train").is_dir() and (root / test).is_dir()):
        expected = ", ".join(dataset.files)
        raise UserError(
            f"{dataset.title}: {root} has neither the publisher's files ({expected}) nor train and "
            f"{test} folders of class folders. {how_to_get(dataset, root)}"
        )
    images = read_folder(root)
    assert images.splits is not None  # there is a folder called train
    if test == "val":
        return replace(images, splits=np.where(images.splits == "val", "test", images.splits))
    return images


def _check_counts(dataset: NamedDataset, images: ImageDataset, root: Path) -> None:
    splits = np.array([]) if images.splits is None else images.splits
    train = int(np.isin(splits, ("train", "val")).sum())  # an own validation split is allowed
    counts = {
        "classes": (len(images.classes), dataset.classes),
        "training images": (train, dataset.train),
        "test images": (int((splits == "test").sum()), dataset.test),
    }
    for title, (count, expected) in counts.items():
        if expected is not None and count != expected:
            raise UserError(
                f"{dataset.title}: {root} has {count:,} {title}, expected {expected:,}: extract "
                "the archive again, or give the folder itself as DATA to use other images"
            )
