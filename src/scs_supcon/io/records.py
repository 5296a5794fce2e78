"""Read JSON, TOML, CSV and Parquet from untrusted sources, with limits and one kind of error.

Every record of a run, a model, a packed dataset, a search or a comparison is opened by
`open_record`. It must be a regular file, not a pipe or a device, in the folder that it belongs to,
and have a limited size, depth and length of its integers; every failure is a `RecordError` that
names the file and, where there is one, the key.
"""

import csv
import io
import json
import math
import os
import stat
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeAlias, TypeVar, cast

from scs_supcon.errors import UserError
from scs_supcon.io.values import Value, ValueTree

if TYPE_CHECKING:
    from pyarrow import Table

MAX_BYTES = 256 * 2**20
MAX_DEPTH = 50
MAX_INTEGER = 2**63
ColumnTypes: TypeAlias = Mapping[str, type]
T = TypeVar("T")


class RecordError(UserError):
    """A file is missing, damaged, too large, or not what it should be."""


class MissingRecord(RecordError):
    """A file does not exist."""


def open_record(
    path: Path | str, limit: int | None = MAX_BYTES, *, links: bool = False
) -> io.BufferedReader:
    """Open a regular file to read its bytes.

    Args:
        path: The file.
        limit: Largest size in bytes; None for any.
        links: Whether the file may be a link to another folder, because the user has named it or
            it belongs to a dataset. A record may not: whoever made its folder could name any file.

    Raises:
        RecordError: The file is something else, a link out of its folder, too large or unreadable.
    """
    with _errors_of(path):
        if not links and Path(path).is_symlink():
            inside(Path(path).parent, Path(path).name)
        # Opening a pipe would wait for a writer, unless it is opened without waiting.
        at_once = getattr(os, "O_NONBLOCK", 0)
        file = open(path, "rb", opener=lambda x, flags: os.open(x, flags | at_once))  # noqa: SIM115
        status, problem = os.fstat(file.fileno()), ""
    if not stat.S_ISREG(status.st_mode):
        problem = "is not a regular file: replace it with one"
    elif limit is not None and status.st_size > limit:
        size = f"{status.st_size:,} bytes, more than {limit:,}"
        problem = f"has {size}: it is damaged or not a file of scs-supcon"
    if problem:
        file.close()
        raise RecordError(f"{path} {problem}")
    return file


def read_bytes(path: Path, limit: int = MAX_BYTES, *, links: bool = False) -> bytes:
    """Return the content of a file, which is opened by `open_record`."""
    with open_record(path, limit, links=links) as file, _errors_of(path):
        # Not the limit: read() allocates what it is given.
        return file.read(os.fstat(file.fileno()).st_size)


def inside(folder: Path, name: str) -> Path:
    """Return a path in a folder; raise a `RecordError` if it is a link that leaves the folder."""
    path = folder / name
    if not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder)):
        raise RecordError(f"{path} is a link that leaves its folder: replace it with a copy")
    return path


@contextmanager
def _errors_of(path: Path | str) -> Iterator[None]:
    """Raise a `RecordError` instead of an error of the file system."""
    try:
        yield
    except RecordError:
        raise
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


def read_text(path: Path, limit: int = MAX_BYTES, *, links: bool = False) -> str:
    """Return the content of a UTF-8 file; `links` as for `open_record`, also below."""
    try:
        return read_bytes(path, limit, links=links).decode()
    except UnicodeDecodeError as error:
        raise RecordError(f"{path} is damaged: it is not UTF-8 ({error})") from error


def read_json(path: Path) -> Any:
    """Return the content of a JSON file."""
    return parse_json(read_bytes(path), path)


def read_json_object(path: Path, *, finite: bool = False, links: bool = False) -> ValueTree:
    """Return the content of a JSON file, which must be an object."""
    return parse_json_object(read_bytes(path, links=links), path, finite=finite)


def parse_json(content: str | bytes, name: str | Path, *, finite: bool = False) -> Any:
    """Return the value of a JSON document.

    Args:
        content: The document.
        name: The file, for errors.
        finite: Reject NaN and infinity, which Python writes although JSON has no such numbers.
    """
    try:
        number = _finite if finite else float
        value = json.loads(content, parse_constant=number, parse_float=number)
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


def read_toml(path: Path, *, links: bool = False) -> ValueTree:
    """Return the content of a TOML file."""
    return parse_toml(read_text(path, links=links), path)


def parse_toml(text: str, name: str | Path = "") -> ValueTree:
    """Return the values of a TOML document; `name` is used in errors."""
    try:
        values = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # ValueError: also an integer that is too long
        prefix = f"{name} is damaged: " if str(name) else ""
        raise RecordError(f"{prefix}not valid TOML ({_reason(error)})") from error
    _check_values(values, name)
    return values


def csv_rows(path: Path, columns: Sequence[str] | ColumnTypes) -> Iterator[dict[str, str]]:
    """Yield the rows of a CSV file that has at least these columns, with cells of these types.

    Raises:
        RecordError: The file is damaged, or a row has too few or too many cells.
    """
    types = columns if isinstance(columns, Mapping) else dict.fromkeys(columns, str)
    reader = csv.reader(io.StringIO(read_text(path), newline=""), strict=True)
    try:
        header = next(reader, [])
        missing = [name for name in columns if name not in header]
        if missing:
            raise RecordError(f"{path} is damaged: it has no column {missing[0]!r}")
        for row in reader:
            if len(row) != len(header):
                counts = f"{len(row)} cells, expected {len(header)}"
                raise RecordError(f"{path} is damaged: line {reader.line_num} has {counts}")
            cells = dict(zip(header, row, strict=True))
            for name, kind in types.items():
                kind(cells[name])
            yield cells
    except RecordError:
        raise
    except (csv.Error, ValueError) as error:
        raise RecordError(f"{path} is damaged: not a CSV file ({error})") from error


def read_parquet(
    path: Path | str,
    columns: ColumnTypes,
    *,
    optional: Iterable[str] = (),
    content: BinaryIO | None = None,
    links: bool = False,
) -> "Table":
    """Return columns of a Parquet file, without empty cells.

    Args:
        path: The file; `links` as for `open_record`.
        columns: The type of each column: str, int, float, bool, bytes, or list for vectors of
            finite numbers, which have one length in all rows.
        optional: Columns that may be missing.
        content: The file, if it is open already.

    Raises:
        RecordError: The file is damaged, or a column is missing or has another type.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    types = {str: pa.string(), int: pa.int64(), float: pa.float64(), bool: pa.bool_()}
    types |= {bytes: pa.binary(), list: pa.list_(pa.float32())}
    column = ""
    try:
        with content or open_record(path, memory_bytes() // 2, links=links) as file:
            stored = pq.ParquetFile(file)
            names = stored.schema_arrow.names
            table = stored.read([x for x in columns if x in names])
        table.validate(full=True)  # text that is not UTF-8
        cells = {}
        for column, kind in columns.items():
            if column not in names:
                if column in optional:
                    continue
                raise RecordError(f"{path} is damaged: it has no column {column!r}")
            values = table[column]
            if kind is not list or values.type != pa.list_(pa.float16()):  # of `scs embed --half`
                values = values.cast(types[kind])
            if values.null_count or (kind is list and not _are_vectors(values)):
                detail = "has empty cells, or vectors of different lengths or with NaN"
                raise RecordError(f"{path} is damaged: the column {column!r} {detail}")
            cells[column] = values
        return pa.table(cells, metadata=table.schema.metadata)
    except RecordError:
        raise
    except (pa.ArrowException, OSError, ValueError) as error:  # ValueError: also UnicodeDecodeError
        where = f"the column {column!r} has another type" if column else "not a Parquet file"
        raise RecordError(f"{path} is damaged: {where} ({error})") from error


def _are_vectors(column: Any) -> bool:
    import pyarrow.compute as pc

    numbers, lengths = pc.list_flatten(column), pc.list_value_length(column).unique()
    finite = pc.all(pc.is_finite(numbers)).as_py() is not False  # None: there are none
    return len(lengths) < 2 and not numbers.null_count and finite


def value_of_type(values: Mapping[str, Value], key: str, kind: type[T], name: str | Path) -> T:
    """Return a required value of a record; whole numbers are also floats."""
    value = values.get(key)
    allowed = (int, float) if kind is float else kind
    if not isinstance(value, allowed) or isinstance(value, bool):
        expected = "a whole number" if kind is int else _kind(kind())
        raise RecordError(f"{name} is damaged: {key} should be {expected}, got {_kind(value)}")
    return cast(T, value)


def table_of(values: ValueTree, key: str, name: str | Path) -> ValueTree:
    """Return the table `key` of a record, or an empty one; it is an error if it is not a table."""
    return value_of_type({key: {}, **values}, key, dict, name)


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


def _finite(text: str) -> float:
    if not math.isfinite(value := float(text)):  # also 1e999
        raise ValueError(f"it contains {text}")
    return value


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
