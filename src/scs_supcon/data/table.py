"""Read a table of images: CSV or Parquet with `image_path,label[,split,fold,group]`."""

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from scs_supcon.data.dataset import ImageDataset, Problem
from scs_supcon.data.folder import SPLIT_NAMES, class_name
from scs_supcon.data.image_io import ImageFiles, median_short_side
from scs_supcon.errors import UserError, did_you_mean
from scs_supcon.io.csv import unquoted_cell

REQUIRED = ("image_path", "label")
OPTIONAL = ("split", "fold", "group")
COLUMNS = REQUIRED + OPTIONAL
MAX_FOLD = 1_000_000


@dataclass(frozen=True)
class ImageTable:
    """The rows of a table, sorted by name; `unread` lists the columns that are not read."""

    names: tuple[str, ...]
    labels: tuple[str, ...]
    splits: tuple[str, ...] | None
    folds: tuple[int, ...] | None
    groups: tuple[str, ...] | None
    unread: tuple[str, ...]


def read_image_table(path: Path, *, forgiving: bool = False) -> ImageDataset:
    """Return the dataset of the images that a table lists.

    Args:
        path: The `.csv` or `.parquet` file.
        forgiving: Accept files that do not exist and cannot be opened later.

    Raises:
        UserError: The table cannot be read, or lists missing files.
    """
    table = read_table(path)
    files = ImageFiles(tuple(path.parent / name for name in table.names))
    missing = [file for file in files.paths if not _is_file(file)]
    if missing and not forgiving:
        more = f" (and {len(missing) - 1} more)" if len(missing) > 1 else ""
        raise UserError(
            f"{path} lists {missing[0]}{more}, which does not exist: "
            "image_path is relative to the folder of the table"
        )
    classes = tuple(sorted(set(table.labels)))
    class_index = {name: index for index, name in enumerate(classes)}
    return ImageDataset(
        names=table.names,
        labels=np.array([class_index[label] for label in table.labels], dtype=np.int64),
        classes=classes,
        splits=None if table.splits is None else np.array(table.splits),
        groups=None if table.groups is None else np.array(table.groups),
        folds=None if table.folds is None else np.array(table.folds, dtype=np.int64),
        open=files.open,
        file_hash=files.file_hash,
        native_size=median_short_side(files.paths),
        notes=tuple(
            Problem(
                "unread_column",
                column,
                f"column {column!r} of {path.name} is not read{did_you_mean(column, OPTIONAL)}",
            )
            for column in table.unread
        ),
        paths=files.paths,
    )


def read_column(path: Path, column: str) -> dict[str, str]:
    """Return the cells of any column of a table by the name of the image.

    Raises:
        UserError: The table cannot be read, or does not have the column.
    """
    if path.suffix.lower() == ".parquet":
        columns = _parquet_columns(path, (*COLUMNS, column))
    else:
        columns = _csv_columns(path)
    _check_columns(path, columns)
    if column not in columns:
        raise UserError(
            f"{path} has no column {column!r}{did_you_mean(column, columns)}: its columns are "
            f"{', '.join(columns)}"
        )
    return dict(zip(columns["image_path"], columns[column], strict=True))


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # a name that is too long, or contains a null character
        return False


def read_table(path: Path) -> ImageTable:
    """Return the rows of a table after checking them.

    Raises:
        UserError: A column or cell is invalid; the message names the row.
    """
    columns = _parquet_columns(path) if path.suffix.lower() == ".parquet" else _csv_columns(path)
    _check_columns(path, columns)
    if not columns["image_path"]:
        raise UserError(f"{path} has no rows below its header")
    names = _nonempty_cells(path, columns, "image_path")
    order = sorted(range(len(names)), key=names.__getitem__)
    for a, b in pairwise(order):
        if names[a] == names[b]:
            raise UserError(
                f"{path} lists {names[a]!r} twice, in rows {a + 2} and {b + 2}: keep one"
            )

    def sort(cells: list[str]) -> tuple[str, ...]:
        return tuple(cells[row] for row in order)

    splits = _splits(path, columns) if "split" in columns else None
    folds = _folds(path, columns) if "fold" in columns else None
    return ImageTable(
        names=sort(names),
        labels=sort([class_name(cell) for cell in _nonempty_cells(path, columns, "label")]),
        splits=None if splits is None else sort(splits),
        folds=None if folds is None else tuple(folds[row] for row in order),
        groups=sort(columns["group"]) if "group" in columns else None,
        unread=tuple(name for name in columns if name not in COLUMNS),
    )


def _normalize_name(name: str) -> str:
    """Return a column's name, in lower case if it is one of `COLUMNS`."""
    name = name.strip()
    return name.lower() if name.lower() in COLUMNS else name


def _csv_columns(path: Path) -> dict[str, list[str]]:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file, strict=True)
            header = [_normalize_name(name) for name in next(reader, [])]
            rows = [row for row in reader if row]
    except (csv.Error, UnicodeDecodeError, OSError) as error:
        raise UserError(f"{path} is not a UTF-8 CSV file ({error})") from error
    if header and len(set(header)) < len(header):
        raise UserError(f"{path} has two columns with the same name: {', '.join(header)}")
    for number, row in enumerate(rows, start=2):
        if len(row) != len(header):
            raise UserError(
                f"{path}, row {number}: {len(row)} cells, but the header has {len(header)}"
            )
    return {name: [unquoted_cell(row[i].strip()) for row in rows] for i, name in enumerate(header)}


def _parquet_columns(path: Path, wanted: Sequence[str] = COLUMNS) -> dict[str, list[str]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        stored_names = {_normalize_name(name): name for name in pq.read_schema(path).names}
        readable = [name for name in stored_names if name in wanted]
        table = pq.read_table(path, columns=[stored_names[name] for name in readable])
        columns = {
            name: ["" if cell is None else str(cell) for cell in table[stored].to_pylist()]
            for name, stored in stored_names.items()
            if name in readable
        }
    except (pa.ArrowException, OSError, ValueError, LookupError) as error:  # also not UTF-8
        raise UserError(f"{path} is not a Parquet file ({error})") from error
    return columns | {name: [] for name in stored_names if name not in readable}


def _check_columns(path: Path, columns: Mapping[str, list[str]]) -> None:
    for name in REQUIRED:
        if name not in columns:
            first = next(iter(columns), "")
            separator = "; separate the columns by commas" if set(first) & set(";\t|") else ""
            raise UserError(
                f"{path} has no column {name!r}; its columns are {', '.join(columns) or 'none'}"
                f"{separator}{_rename_hint(name, columns)}"
            )


def _rename_hint(name: str, columns: Mapping[str, list[str]]) -> str:
    unread = [column for column in columns if column not in COLUMNS]
    synonyms = {"image_path": ("path", "file", "filename", "image", "img"), "label": ("class", "y")}
    for column in unread:
        if column.lower() in synonyms[name] or did_you_mean(column.lower(), [name]):
            return f"; rename {column!r} to {name!r}?"
    return ""


def _nonempty_cells(path: Path, columns: Mapping[str, list[str]], name: str) -> list[str]:
    for row, cell in enumerate(columns[name], start=2):
        if not cell:
            raise UserError(f"{path}, row {row}: {name} is empty; every row needs a value")
    return columns[name]


def _splits(path: Path, columns: Mapping[str, list[str]]) -> list[str]:
    splits = []
    for row, cell in enumerate(_nonempty_cells(path, columns, "split"), start=2):
        if cell.lower() not in SPLIT_NAMES:
            raise UserError(
                f"{path}, row {row}: split is {cell!r}, expected train, val or test"
                f"{did_you_mean(cell, SPLIT_NAMES)}"
            )
        splits.append(SPLIT_NAMES[cell.lower()])
    return splits


def _folds(path: Path, columns: Mapping[str, list[str]]) -> list[int]:
    folds = []
    for row, cell in enumerate(_nonempty_cells(path, columns, "fold"), start=2):
        try:
            fold = int(cell)
        except ValueError:
            fold = -MAX_FOLD - 1
        if abs(fold) > MAX_FOLD:
            raise UserError(
                f"{path}, row {row}: fold is {cell[:50]!r}, expected a whole number of at most "
                f"{MAX_FOLD:,}"
            )
        folds.append(fold)
    return folds
