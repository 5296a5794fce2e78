"""Read small files from untrusted sources: JSON and TOML, with limits and one kind of error.

Every record of a run, a model, a search or a comparison is read here. A file must be a regular
file, not a pipe or a device, and have a limited size, depth and length of its integers; every
failure is a `RecordError` that names the file and, where there is one, the key.
"""

import csv
import io
import json
import os
import stat
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scs_supcon.errors import UserError
from scs_supcon.io.values import ValueTree

if TYPE_CHECKING:
    from pyarrow import Table

MAX_BYTES = 256 * 2**20
MAX_DEPTH = 50
MAX_INTEGER = 2**63


class RecordError(UserError):
    """A file is missing, damaged, too large, or not what it should be."""


class MissingRecord(RecordError):
    """A file does not exist."""


def read_bytes(path: Path, limit: int = MAX_BYTES) -> bytes:
    """Return the content of a regular file of at most `limit` bytes.

    Raises:
        RecordError: The file is something else (a pipe, a device, a folder), too large, or
            cannot be read.
    """
    try:
        # Opening a pipe would wait for a writer, unless it is opened without waiting.
        handle = os.open(
            path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
        )
        with os.fdopen(handle, "rb") as file:
            status = os.fstat(handle)
            if not stat.S_ISREG(status.st_mode):
                raise RecordError(f"{path} is not a regular file: replace it with one")
            if status.st_size > limit:
                raise RecordError(
                    f"{path} has {status.st_size:,} bytes, more than {limit:,}: it is damaged or "
                    "not a file of scs-supcon"
                )
            return file.read(status.st_size)  # not the limit: read() allocates what it is given
    except FileNotFoundError as error:
        raise MissingRecord(f"{path} does not exist") from error
    except (OSError, ValueError) as error:  # ValueError: a null character in the path
        reason = getattr(error, "strerror", None) or str(error)
        raise RecordError(f"{path} cannot be read: {reason}") from error


def memory_bytes() -> int:
    """Return the size of this machine's memory; 64 GiB if the system does not tell."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # Windows
        return 64 * 2**30


def read_text(path: Path, limit: int = MAX_BYTES) -> str:
    """Return the content of a UTF-8 file."""
    try:
        return read_bytes(path, limit).decode()
    except UnicodeDecodeError as error:
        raise RecordError(f"{path} is damaged: it is not UTF-8 ({error})") from error


def read_json(path: Path) -> Any:
    """Return the content of a JSON file."""
    return parse_json(read_bytes(path), path)


def read_json_object(path: Path, *, finite: bool = False) -> ValueTree:
    """Return the content of a JSON file, which must be an object."""
    return parse_json_object(read_bytes(path), path, finite=finite)


def parse_json(content: str | bytes, name: str | Path, *, finite: bool = False) -> Any:
    """Return the value of a JSON document.

    Args:
        content: The document.
        name: The file, for errors.
        finite: Reject NaN and infinity, which Python writes although JSON has no such numbers.
    """
    try:
        value = json.loads(content, parse_constant=_reject_constant if finite else None)
    except (ValueError, RecursionError) as error:
        raise RecordError(f"{name} is damaged: not valid JSON ({_reason(error)})") from error
    _check_values([value], name)
    return value


def parse_json_object(content: str | bytes, name: str | Path, *, finite: bool = False) -> ValueTree:
    """Return the object of a JSON document, as `parse_json` does."""
    value = parse_json(content, name, finite=finite)
    if not isinstance(value, dict):
        raise RecordError(f"{name} is damaged: expected a JSON object, got {_kind(value)}")
    return value


def read_toml(path: Path) -> ValueTree:
    """Return the content of a TOML file."""
    return parse_toml(read_text(path), path)


def parse_toml(text: str, name: str | Path = "") -> ValueTree:
    """Return the values of a TOML document; `name` is used in errors."""
    try:
        values = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # ValueError: also an integer that is too long
        prefix = f"{name} is damaged: " if str(name) else ""
        raise RecordError(f"{prefix}not valid TOML ({_reason(error)})") from error
    _check_values(values, name)
    return values


def csv_rows(path: Path, columns: Sequence[str]) -> Iterator[dict[str, str]]:
    """Yield the rows of a CSV file that has at least these columns.

    Raises:
        RecordError: The file is damaged, or a row has too few or too many cells.
    """
    reader = csv.reader(io.StringIO(read_text(path), newline=""), strict=True)
    try:
        header = next(reader, [])
        missing = [name for name in columns if name not in header]
        if missing:
            raise RecordError(f"{path} is damaged: it has no column {missing[0]!r}")
        for row in reader:
            if len(row) != len(header):
                raise RecordError(
                    f"{path} is damaged: line {reader.line_num} has {len(row)} cells, expected "
                    f"{len(header)}"
                )
            yield dict(zip(header, row, strict=True))
    except csv.Error as error:
        raise RecordError(f"{path} is damaged: not a CSV file ({error})") from error


def read_parquet(path: Path, columns: Sequence[str] | None = None) -> "Table":
    """Return the columns of a Parquet file.

    Raises:
        RecordError: The file is damaged, or a column is missing or not UTF-8.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    check_regular(path)
    try:
        names = pq.read_schema(path).names
        missing = [name for name in columns or () if name not in names]
        if missing:
            raise RecordError(f"{path} is damaged: it has no column {missing[0]!r}")
        return pq.read_table(path, columns=None if columns is None else list(columns))
    except RecordError:
        raise
    except (pa.ArrowException, OSError, ValueError) as error:  # ValueError: also UnicodeDecodeError
        raise RecordError(f"{path} is damaged: not a Parquet file ({error})") from error


def check_regular(path: Path) -> None:
    """Raise a `RecordError` unless a path is a regular file, which can be read without waiting."""
    try:
        regular = stat.S_ISREG(path.stat().st_mode)
    except FileNotFoundError as error:
        raise MissingRecord(f"{path} does not exist") from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise RecordError(f"{path} cannot be read: {reason}") from error
    if not regular:
        raise RecordError(f"{path} is not a regular file: replace it with one")


def table_of(values: ValueTree, key: str, name: str | Path) -> ValueTree:
    """Return the table `key` of a record, or an empty one; it is an error if it is not a table."""
    value = values.get(key, {})
    if not isinstance(value, dict):
        raise RecordError(f"{name} is damaged: {key} should be a table, got {_kind(value)}")
    return value


def _check_values(value: Any, name: str | Path, path: tuple[str | int, ...] = ()) -> None:
    """Raise an error if a parsed document is too deep or has an integer of more than 64 bits."""
    if len(path) > MAX_DEPTH:
        raise RecordError(f"{name} is damaged: values are nested more than {MAX_DEPTH} deep")
    for key, item in value.items() if isinstance(value, dict) else enumerate(value):
        if isinstance(item, dict | list):
            _check_values(item, name, (*path, key))
        elif isinstance(item, int) and abs(item) >= MAX_INTEGER:
            where = ".".join(map(str, (*path, key)))
            raise RecordError(f"{name} is damaged: the number {where} does not fit into 64 bits")


def _reject_constant(constant: str) -> None:
    raise ValueError(f"it contains {constant}")


def _reason(error: BaseException) -> str:
    return "nested too deep" if isinstance(error, RecursionError) else str(error)


def _kind(value: Any) -> str:
    names = {
        dict: "a table",
        list: "a list",
        str: "text",
        type(None): "null",
        bool: "true or false",
    }
    return names.get(type(value), "a number")
