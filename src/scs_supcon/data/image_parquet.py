"""Datasets as Hugging Face stores them: Parquet files with an image column and a label column.

    flowers/data/train-00000-of-00002.parquet   image: {bytes, path}, label: integer or text
    flowers/data/test-00000-of-00001.parquet

The names of integer labels are in the metadata of the files. A file name that begins with train,
val, validation or test gives the split. Datasets written by `save_to_disk` are read as well
(`data.arrow_files`); there the name of the folder gives the split. Images of Parquet files are read
by row group, which is quick in sequence and slow in random order: `scs pack` makes larger datasets
quick to train on.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from scs_supcon.data.arrow_files import arrow_table, saved_arrow_files
from scs_supcon.data.dataset import ImageDataset
from scs_supcon.data.folder import SPLIT_NAMES
from scs_supcon.data.image_io import ImageError, open_image
from scs_supcon.errors import UserError

ARROW = ".arrow"
LABEL_COLUMNS = ("label", "labels", "fine_label", "class")


def image_parquet_files(source: Path) -> list[Path]:
    """Return the files with an image column in a folder or its folder `data`, sorted.

    They are Parquet files, or the Arrow files of a saved dataset. The list is empty if there are
    none, or if the folder has class folders.
    """
    if saved := saved_arrow_files(source):
        return saved
    folders = [source, source / "data"]
    files = [file for folder in folders if folder.is_dir() for file in folder.glob("*.parquet")]
    return sorted(file for file in files if file.is_file() and _image_column(file) is not None)


def read_image_parquet(source: Path, files: list[Path]) -> ImageDataset:
    """Return the dataset of Parquet or Arrow files with images.

    Args:
        source: The folder, to which names are relative.
        files: As returned by `image_parquet_files`.

    Raises:
        UserError: A file has no usable labels, or the splits are not complete.
    """
    rows = [row for file in files for row in _rows(file)]
    if not rows:
        raise UserError(f"{source} has {files[0].suffix} files without rows")
    names = [f"{row.file.relative_to(source).as_posix()}/{row.number:07d}" for row in rows]
    splits = [_split(row.file) for row in rows]
    if any(splits) and not all(splits):
        without = next(row.file for row, split in zip(rows, splits, strict=True) if not split)
        raise UserError(
            f"{without} does not say its split, but other files do: begin its name with train, "
            "validation or test"
        )
    order = sorted(range(len(rows)), key=names.__getitem__)
    classes = tuple(sorted({row.label for row in rows}))
    class_index = {name: index for index, name in enumerate(classes)}
    reader = ParquetImages(
        tuple(names[i] for i in order), tuple((rows[i].file, rows[i].number) for i in order)
    )
    sample = range(0, len(rows), max(1, len(rows) // 64))
    return ImageDataset(
        names=reader.names,
        labels=np.array([class_index[rows[i].label] for i in order], dtype=np.int64),
        classes=classes,
        splits=np.array([splits[i] for i in order]) if any(splits) else None,
        groups=None,
        folds=None,
        open=reader.open,
        file_hash=reader.file_hash,
        native_size=_median_short_side(reader, sample),
        content=reader.content,
    )


@dataclass(frozen=True, eq=False)
class ParquetImages:
    """Opens images from Parquet or Arrow files by index."""

    names: tuple[str, ...]
    places: tuple[tuple[Path, int], ...]

    def open(self, index: int, at_least: int = 0, sha256: str = "") -> Image.Image:
        content = self.content(index)
        return open_image(self.names[index], at_least, content=content, sha256=sha256)

    def file_hash(self, index: int) -> str:
        return hashlib.sha256(self.content(index)).hexdigest()

    def content(self, index: int) -> bytes:
        """Return the bytes of the image file.

        Raises:
            ImageError: The row has no image, or its file cannot be read.
        """
        import pyarrow as pa

        file, number = self.places[index]
        try:
            content = _image_bytes(file, number)
        except (pa.ArrowException, OSError, IndexError) as error:
            raise ImageError(f"{self.names[index]} cannot be read ({error})") from error
        if not content:
            raise ImageError(f"{self.names[index]} has no image bytes, only a path or nothing")
        return content


@dataclass(frozen=True)
class _LabelledRow:
    file: Path
    number: int
    label: str


def _rows(file: Path) -> Iterator[_LabelledRow]:
    import pyarrow as pa

    try:
        schema = _schema(file)
    except (pa.ArrowException, OSError) as error:
        raise UserError(f"{file} cannot be read ({error})") from error
    if _image_column(file) is None:
        raise UserError(f"{file} has no column with image files, only {', '.join(schema.names)}")
    column = next((name for name in LABEL_COLUMNS if name in schema.names), None)
    if column is None:
        raise UserError(
            f"{file} has no label column: expected {' or '.join(LABEL_COLUMNS)}, its columns are "
            f"{', '.join(schema.names)}"
        )
    try:
        labels = _column(file, column).to_pylist()
    except (pa.ArrowException, OSError) as error:
        raise UserError(f"{file} cannot be read ({error})") from error
    class_names = _class_names(schema.metadata or {}, column)
    for number, label in enumerate(labels):
        if label is None or label == "":
            raise UserError(f"{file}, row {number + 1}: the {column} is empty")
        if class_names and not (isinstance(label, int) and 0 <= label < len(class_names)):
            raise UserError(
                f"{file}, row {number + 1}: {column} is {label}, but the file names "
                f"{len(class_names)} classes"
            )
        yield _LabelledRow(file, number, class_names[label] if class_names else str(label))


def _class_names(metadata: Mapping[bytes, bytes], column: str) -> list[str]:
    """Return the class names that Hugging Face's `datasets` stores; an empty list without any."""
    try:
        features = json.loads(metadata.get(b"huggingface", b"{}"))["info"]["features"]
        names = features[column]["names"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return []
    return [str(name) for name in names] if isinstance(names, list) else []


def _split(file: Path) -> str:
    name = file.parent.name if file.suffix == ARROW else file.name
    return SPLIT_NAMES.get(name.split("-")[0].split(".")[0].lower(), "")


def _schema(file: Path) -> Any:
    import pyarrow.parquet as pq

    return arrow_table(file).schema if file.suffix == ARROW else pq.read_schema(file)


def _column(file: Path, name: str) -> Any:
    import pyarrow.parquet as pq

    if file.suffix == ARROW:
        return arrow_table(file)[name]
    return pq.read_table(file, columns=[name])[name]


def _image_column(file: Path) -> str | None:
    """Return the first column that holds image files, or None."""
    import pyarrow as pa

    try:
        schema = _schema(file)
    except (pa.ArrowException, OSError):
        return None
    for field in schema:
        if pa.types.is_struct(field.type) and field.type.get_field_index("bytes") >= 0:
            return str(field.name)
    return None


def _image_bytes(file: Path, number: int) -> bytes | None:
    if file.suffix == ARROW:
        image = arrow_table(file)[_image_column(file)][number].as_py()
        return image["bytes"] if image else None
    starts = _group_starts(file)
    group = int(np.searchsorted(starts, number, side="right")) - 1
    return _group_images(file, group)[number - int(starts[group])]


@lru_cache(maxsize=256)
def _group_starts(file: Path) -> NDArray[np.int64]:
    import pyarrow.parquet as pq

    metadata = pq.read_metadata(file)
    sizes = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
    return np.concatenate([[0], np.cumsum(sizes)[:-1]]).astype(np.int64)


@lru_cache(maxsize=8)
def _group_images(file: Path, group: int) -> list[bytes | None]:
    import pyarrow.parquet as pq

    column = _image_column(file)
    with pq.ParquetFile(file) as parquet:
        images: Any = parquet.read_row_group(group, columns=[f"{column}.bytes"])[column]
    return [None if image is None else image["bytes"] for image in images.to_pylist()]


def _median_short_side(reader: ParquetImages, sample: range) -> int:
    sides = []
    problem: ImageError | None = None
    for index in sample:
        try:
            sides.append(min(reader.open(index, 1 << 20).size))
        except ImageError as error:
            problem = error
    if not sides:
        raise UserError(f"none of the sampled images can be read, for example: {problem}")
    return int(np.median(sides))
