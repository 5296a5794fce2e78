"""Packed datasets: images in tar shards, with an index for random access.

    birds-packed/
      index.parquet     one row per image: name, label, shard, offset, size, SHA-256, short side
      shard-00000.tar   000000000.jpg, 000000000.cls, 000000001.jpg, … (WebDataset's layout)

A shard is an ordinary tar file, which other tools can read in sequence. Here an image is read by
its offset, so batches, splits and resuming work as with a folder. The location may be a folder or
an address such as `s3://bucket/birds`, read with fsspec; remote images are cached locally.
"""

import hashlib
import io
import os
import tarfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from scs_supcon.data.dataset import SPLITS, ImageDataset, content_digest
from scs_supcon.data.image_io import FORMATS, MAX_PIXELS, SUFFIXES, ImageError, open_image
from scs_supcon.data.remote import check_address, is_address
from scs_supcon.device import cache_folder
from scs_supcon.errors import UserError
from scs_supcon.io import records
from scs_supcon.io.atomic import replacing, write_bytes
from scs_supcon.progress import ProgressCallback

INDEX = "index.parquet"
FORMAT = "scs-supcon packed images 1"
SHARD_BYTES = 256 * 2**20
CACHE_BYTES = 20 * 2**30
INDEX_ROWS = 16_384  # rows that are held in memory while writing
MAX_IMAGE_BYTES = 2**30
COLUMNS: records.ColumnTypes = {
    **{"name": str, "label": str, "shard": int, "offset": int, "size": int},
    **{"sha256": bytes, "short_side": int, "split": str, "group": str, "fold": int},
}
OPTIONAL = ("split", "group", "fold")


def is_packed(source: str | Path) -> bool:
    """Return whether a source is a packed dataset: a folder with an index, or an address."""
    return is_address(source) or (Path(source) / INDEX).exists()


def pack(
    images: ImageDataset,
    out: Path,
    *,
    shard_bytes: int = SHARD_BYTES,
    progress: ProgressCallback | None = None,
) -> int:
    """Write a dataset as tar shards and an index; return the number of shards.

    Files are copied unchanged; images that are not files are stored as PNG. The index is written
    last, so an interrupted call leaves no usable dataset and can simply be repeated.

    Args:
        images: The dataset; unusable images must have been removed.
        out: A new or empty folder, or one from an interrupted call.
        shard_bytes: Size at which a new shard is started.
        progress: Called with (images written, images in total).

    Raises:
        UserError: The folder holds other files, or cannot be written to.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    if (out / INDEX).exists():
        return _packed_before(images, out)
    _check_folder(out)
    schema = _schema(images)
    report = progress or (lambda done, total: None)
    with (
        replacing(out / INDEX) as file,
        pq.ParquetWriter(file, schema, compression="zstd") as writer,
    ):
        shards = 0
        for shard, start, stop in _shard_ranges(images, shard_bytes):
            with replacing(out / shard_name(shard)) as shard_file:
                rows = _write_shard(images, range(start, stop), shard, shard_file)
                while batch := list(islice(rows, INDEX_ROWS)):
                    writer.write_table(pa.Table.from_pylist(batch, schema))
            shards = shard + 1
            report(stop, len(images))
    return shards


def read_packed(location: str | Path) -> ImageDataset:
    """Return the dataset of a packed folder or address.

    Raises:
        UserError: There is no index, it is not valid, or the address is not supported.
    """
    source = str(location)
    check_address(source)
    name = f"{source}/{INDEX}"
    try:
        with _open(name) as file:
            content = (
                io.BytesIO(file.read(records.memory_bytes() // 2)) if is_address(source) else file
            )
            table = records.read_parquet(name, COLUMNS, optional=OPTIONAL, content=content)
    except (FileNotFoundError, records.MissingRecord) as error:
        raise UserError(f"{source} has no {INDEX}: write it with `scs pack`") from error
    except records.RecordError as error:
        raise UserError(f"{error}: write it again with `scs pack`") from error
    except (OSError, ValueError, ImportError) as error:
        raise UserError(f"{name} cannot be read ({error})") from error
    found_format = (table.schema.metadata or {}).get(b"format", b"").decode("utf-8", "replace")
    if found_format != FORMAT:
        raise UserError(f"{name} has the format {found_format!r}, expected {FORMAT!r}")
    return _dataset(source, table)


def shard_name(number: int) -> str:
    """Return the file name of a shard."""
    return f"shard-{number:05d}.tar"


def _packed_before(images: ImageDataset, out: Path) -> int:
    """Return the number of shards of a folder that already holds just these images."""
    if content_digest(read_packed(out)) != content_digest(images):
        raise UserError(f"{out} already holds another packed dataset: give a new folder")
    return len(list(out.glob("shard-*.tar")))


def _check_folder(out: Path) -> None:
    if out.exists() and not out.is_dir():
        raise UserError(f"{out} is a file: give a new folder")
    others = [path.name.removeprefix(".") for path in out.iterdir()] if out.exists() else []
    others = [name for name in others if not name.startswith(("shard-", INDEX))]
    if others:
        raise UserError(f"{out} holds other files, such as {others[0]}: give a new folder")
    out.mkdir(parents=True, exist_ok=True)


def _schema(images: ImageDataset) -> Any:
    import pyarrow as pa

    fields = [
        ("name", pa.string()),
        ("label", pa.dictionary(pa.int32(), pa.string())),
        ("shard", pa.int32()),
        ("offset", pa.int64()),
        ("size", pa.int64()),
        ("sha256", pa.binary(32)),
        ("short_side", pa.int32()),
    ]
    optional = (("split", images.splits), ("group", images.groups), ("fold", images.folds))
    for name, column in optional:
        if column is not None:
            fields.append((name, pa.int64() if name == "fold" else pa.string()))
    return pa.schema(fields, metadata={"format": FORMAT})


def _shard_ranges(images: ImageDataset, shard_bytes: int) -> Iterator[tuple[int, int, int]]:
    """Yield (shard, first image, image after the last) such that shards have about one size."""
    shard = start = size = 0
    for index in range(len(images)):
        size += 1024 if images.paths is None else images.paths[index].stat().st_size + 1024
        if size >= shard_bytes or index + 1 == len(images):
            yield shard, start, index + 1
            shard, start, size = shard + 1, index + 1, 0


def _write_shard(
    images: ImageDataset, indices: Sequence[int], shard: int, path: Path
) -> Iterator[dict[str, Any]]:
    with path.open("wb") as file, tarfile.open(fileobj=file, mode="w") as tar:
        for index in indices:
            content, suffix = _content(images, index)
            offset = _add(tar, f"{index:09d}{suffix}", content)
            _add(tar, f"{index:09d}.cls", str(images.labels[index]).encode())
            yield {
                "name": images.names[index],
                "label": images.classes[images.labels[index]],
                "shard": shard,
                "offset": offset,
                "size": len(content),
                "sha256": hashlib.sha256(content).digest(),
                "short_side": _header(content)[0],
                "split": None if images.splits is None else str(images.splits[index]),
                "group": None if images.groups is None else str(images.groups[index]),
                "fold": None if images.folds is None else int(images.folds[index]),
            }


def _content(images: ImageDataset, index: int) -> tuple[bytes, str]:
    """Return the bytes of an image file and its extension."""
    if images.content is not None:
        content = images.content(index)
        return content, f".{_header(content)[1].lower()}"
    if images.paths is None:
        buffer = io.BytesIO()
        images.open(index).save(buffer, format="PNG")
        return buffer.getvalue(), ".png"
    path = images.paths[index]
    suffix = path.suffix.lower()
    return path.read_bytes(), suffix if suffix in SUFFIXES else ".img"


def _header(content: bytes) -> tuple[int, str]:
    """Return the length of the short side and the format."""
    with Image.open(io.BytesIO(content), formats=FORMATS) as image:
        return min(image.size), str(image.format)


def _add(tar: tarfile.TarFile, name: str, content: bytes) -> int:
    """Add a file and return the offset of its content."""
    member = tarfile.TarInfo(name)  # no owner and no time: equal images give equal shards
    member.size = len(content)
    tar.addfile(member, io.BytesIO(content))
    tar.members.clear()  # type: ignore[attr-defined]  # millions of them would fill the memory
    return tar.offset - tarfile.BLOCKSIZE * -(-len(content) // tarfile.BLOCKSIZE)


def _dataset(source: str, table: Any) -> ImageDataset:
    columns = {name: table[name] for name in table.column_names}
    if not len(table):
        raise UserError(f"{source}/{INDEX} has no rows: write it again with `scs pack`")
    names = tuple(columns["name"].to_pylist())
    classes, labels = np.unique(columns["label"].to_numpy().astype(np.str_), return_inverse=True)
    shards, offsets, sizes, sides = (
        columns[name].to_numpy() for name in ("shard", "offset", "size", "short_side")
    )
    stored_digests = columns["sha256"].to_pylist()
    valid = (
        len(set(names)) == len(names)
        and shards.min() >= 0
        and offsets.min() >= tarfile.BLOCKSIZE
        and 0 < sizes.min() <= sizes.max() <= MAX_IMAGE_BYTES
        and 0 < sides.min() <= sides.max() <= MAX_PIXELS
        and {len(digest) for digest in stored_digests} == {hashlib.sha256().digest_size}
    )
    if not valid:
        raise UserError(
            f"{source}/{INDEX} has repeated names, or numbers or hashes that are not possible: "
            "write it again with `scs pack`"
        )
    digests = np.frombuffer(b"".join(stored_digests), np.uint8).reshape(-1, 32)
    splits = _texts(columns, "split")
    if splits is not None and (other := set(splits.tolist()) - set(SPLITS)):
        raise UserError(f"{source}/{INDEX}: split is {other.pop()!r}, expected train, val or test")
    reader = PackedImages(source, names, shards, offsets, sizes, digests)
    return ImageDataset(
        names=names,
        labels=labels.astype(np.int64),
        classes=tuple(classes.tolist()),
        splits=splits,
        groups=_texts(columns, "group"),
        folds=columns["fold"].to_numpy().astype(np.int64) if "fold" in columns else None,
        open=reader.open,
        file_hash=reader.file_hash,
        native_size=int(np.median(sides)),
        content=reader.content,
        checked=True,
    )


def _texts(columns: dict[str, Any], name: str) -> NDArray[np.str_] | None:
    if name not in columns:
        return None
    return np.array(columns[name].to_pylist(), dtype=np.str_)


@dataclass(frozen=True, eq=False)
class PackedImages:
    """Opens the images of a packed dataset by index."""

    source: str
    names: tuple[str, ...]
    shards: NDArray[np.int64]
    offsets: NDArray[np.int64]
    sizes: NDArray[np.int64]
    digests: NDArray[np.uint8]

    def open(self, index: int, at_least: int = 0, sha256: str = "") -> Image.Image:
        return open_image(self.names[index], at_least, content=self.content(index))

    def file_hash(self, index: int) -> str:
        digest: str = self.digests[index].tobytes().hex()
        return digest

    def content(self, index: int) -> bytes:
        """Return the bytes of an image file, from the local cache if the source is remote.

        Raises:
            ImageError: The shard cannot be read, or its content does not match the index.
        """
        cached = _cache_path(self.file_hash(index)) if is_address(self.source) else None
        if cached is not None and (content := _read_cached(cached)) is not None:
            if hashlib.sha256(content).digest() == self.digests[index].tobytes():
                return content
            cached.unlink(missing_ok=True)
        content = self._read(index)
        if hashlib.sha256(content).digest() != self.digests[index].tobytes():
            shard = f"{self.source}/{shard_name(int(self.shards[index]))}"
            raise ImageError(f"{self.names[index]}: {shard} does not match {INDEX}: copy it again")
        if cached is not None:
            _write_cached(cached, content)
        return content

    def _read(self, index: int) -> bytes:
        path = f"{self.source}/{shard_name(int(self.shards[index]))}"
        start, size = int(self.offsets[index]), int(self.sizes[index])
        try:
            with _open(path, block_size=size) as file:
                file.seek(start)
                return bytes(file.read(size))
        except Exception as error:  # each file system has errors of its own
            raise ImageError(f"{self.names[index]}: {path} cannot be read ({error})") from error


def _open(path: str, block_size: int | None = None) -> BinaryIO:
    """Open a local file or an address; `block_size` avoids reading more than is needed."""
    if not is_address(path):
        return records.open_record(
            path, records.memory_bytes() // 2 if block_size is None else None
        )
    import fsspec

    options = {} if block_size is None else {"block_size": block_size}
    file_system, name = fsspec.core.url_to_fs(path)
    opened: BinaryIO = file_system.open(name, "rb", cache_type="readahead", **options)
    return opened


def _cache_path(digest: str) -> Path:
    return cache_folder().parent / "images" / digest[:2] / digest


def _read_cached(path: Path) -> bytes | None:
    try:
        content = records.read_bytes(path, MAX_IMAGE_BYTES)
        os.utime(path)  # the images that were not used for the longest time are removed first
    except (records.RecordError, OSError):
        return None
    return content


def _write_cached(path: Path, content: bytes, limit: int = CACHE_BYTES) -> None:
    with suppress(UserError, OSError):  # a full disk must not stop training
        path.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(path, content)
        if path.name.endswith("00"):  # about every 256th image: the scan takes a while
            trim_cache(path.parents[1], limit)


def trim_cache(folder: Path, limit: int) -> None:
    """Remove the images that were not used for the longest time until `limit` bytes are left."""
    files = [(file.stat(), file) for file in folder.glob("??/*") if file.is_file()]
    total = sum(stat.st_size for stat, _ in files)
    for stat, file in sorted(files, key=lambda entry: entry[0].st_mtime):
        if total <= limit:
            return
        file.unlink(missing_ok=True)
        total -= stat.st_size
