"""Tables of images: CSV or Parquet with `image_path,label[,split,fold,group]`."""

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from scs_supcon.errors import UserError, did_you_mean

REQUIRED = ("image_path", "label")
OPTIONAL = ("split", "fold", "group")


@dataclass(frozen=True)
class Table:
    """The rows in the order of their names; `unread` are columns this package does not know."""

    names: tuple[str, ...]
    labels: tuple[str, ...]
    splits: tuple[str, ...] | None
    folds: tuple[int, ...] | None
    groups: tuple[str, ...] | None
    unread: tuple[str, ...]


def read_table(path: Path, split_names: Mapping[str, str]) -> Table:
    """Read and check one table.

    Args:
        path: The `.csv` (UTF-8) or `.parquet` file.
        split_names: What may stand in the split column, and what it means.

    Raises:
        UserError: Columns or cells are not as expected; the text names the row.
    """
    columns = _parquet_columns(path) if path.suffix.lower() == ".parquet" else _csv_columns(path)
    _check_columns(path, columns)
    if not columns["image_path"]:
        raise UserError(f"{path} has no rows below its header")
    names = _filled(path, columns, "image_path")
    order = sorted(range(len(names)), key=names.__getitem__)
    for a, b in pairwise(order):
        if names[a] == names[b]:
            raise UserError(
                f"{path} lists {names[a]!r} twice, in rows {a + 2} and {b + 2}: keep one"
            )

    def sort(cells: list[str]) -> tuple[str, ...]:
        return tuple(cells[row] for row in order)

    splits = _splits(path, columns, split_names) if "split" in columns else None
    folds = _folds(path, columns) if "fold" in columns else None
    return Table(
        names=sort(names),
        labels=sort(_filled(path, columns, "label")),
        splits=None if splits is None else sort(splits),
        folds=None if folds is None else tuple(folds[row] for row in order),
        groups=sort(columns["group"]) if "group" in columns else None,
        unread=tuple(name for name in columns if name not in REQUIRED + OPTIONAL),
    )


def _column(name: str) -> str:
    """A column's name; the ones that are read may be written in capitals."""
    name = name.strip()
    return name.lower() if name.lower() in REQUIRED + OPTIONAL else name


def _csv_columns(path: Path) -> dict[str, list[str]]:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file, strict=True)
            header = [_column(name) for name in next(reader, [])]
            rows = [row for row in reader if row]
    except (csv.Error, UnicodeDecodeError) as error:
        raise UserError(f"{path} is not a UTF-8 CSV file ({error})") from error
    if header and len(set(header)) < len(header):
        raise UserError(f"{path} has two columns of one name: {', '.join(header)}")
    for number, row in enumerate(rows, start=2):
        if len(row) != len(header):
            raise UserError(
                f"{path}, row {number}: {len(row)} cells, but the header has {len(header)}"
            )
    return {name: [row[i].strip() for row in rows] for i, name in enumerate(header)}


def _parquet_columns(path: Path) -> dict[str, list[str]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        present = {_column(name): name for name in pq.read_schema(path).names}
        wanted = [name for name in present if name in REQUIRED + OPTIONAL]
        table = pq.read_table(path, columns=[present[name] for name in wanted])
    except (pa.ArrowException, OSError) as error:
        raise UserError(f"{path} is not a Parquet file ({error})") from error
    read = {
        name: ["" if cell is None else str(cell) for cell in table[present[name]].to_pylist()]
        for name in wanted
    }
    return read | {name: [] for name in present if name not in wanted}


def _check_columns(path: Path, columns: Mapping[str, list[str]]) -> None:
    for name in REQUIRED:
        if name not in columns:
            only = next(iter(columns), "")
            separator = "; separate the columns by commas" if set(only) & set(";\t|") else ""
            raise UserError(
                f"{path} has no column {name!r}; its columns are {', '.join(columns) or 'none'}"
                f"{separator}{_similar(name, columns)}"
            )


def _similar(name: str, columns: Mapping[str, list[str]]) -> str:
    spare = [column for column in columns if column not in REQUIRED + OPTIONAL]
    common = {"image_path": ("path", "file", "filename", "image", "img"), "label": ("class", "y")}
    for column in spare:
        if column.lower() in common[name] or did_you_mean(column.lower(), [name]):
            return f"; rename {column!r} to {name!r}?"
    return ""


def _filled(path: Path, columns: Mapping[str, list[str]], name: str) -> list[str]:
    for row, cell in enumerate(columns[name], start=2):
        if not cell:
            raise UserError(f"{path}, row {row}: {name} is empty; every row needs one")
    return columns[name]


def _splits(
    path: Path, columns: Mapping[str, list[str]], split_names: Mapping[str, str]
) -> list[str]:
    splits = []
    for row, cell in enumerate(_filled(path, columns, "split"), start=2):
        if cell.lower() not in split_names:
            raise UserError(
                f"{path}, row {row}: split is {cell!r}, expected train, val or test"
                f"{did_you_mean(cell, split_names)}"
            )
        splits.append(split_names[cell.lower()])
    return splits


def _folds(path: Path, columns: Mapping[str, list[str]]) -> list[int]:
    folds = []
    for row, cell in enumerate(_filled(path, columns, "fold"), start=2):
        try:
            folds.append(int(cell))
        except ValueError:
            raise UserError(
                f"{path}, row {row}: fold is {cell!r}, expected a whole number"
            ) from None
    return folds
