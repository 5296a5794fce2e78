"""Cached features on disk, in small files (shards) that are written atomically.

A row of features has two keys: the SHA-256 digests of the image's content and of the view's key. A
shard contains the rows of a few images and a few views. Its name is the digest of its bytes, so
damage is detected and concurrent writers cannot conflict.
"""

import hashlib
import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from scs_supcon.io import records
from scs_supcon.io.atomic import remove_abandoned, write_bytes, write_error
from scs_supcon.io.lock import Lock

logger = logging.getLogger(__name__)

FORMAT_VERSION = 1  # shards of version 0.1 do not store it and have format version 1
SUFFIX = ".safetensors"
IMAGES_KEY = "pictures"  # vocabulary: ok - the key in shards of version 0.1
KEYS = (IMAGES_KEY, "views", "features")
DIGEST_BYTES = hashlib.sha256().digest_size

Digests = Sequence[bytes]


def write_shard(
    folder: Path, images: Digests, views: Digests, features: NDArray[np.float32]
) -> None:
    """Write `features` (images, views, width) atomically.

    Raises:
        UserError: The folder cannot be written to, or the disk is full.
    """
    from safetensors.numpy import save

    content = save(
        {IMAGES_KEY: _as_rows(images), "views": _as_rows(views), "features": features},
        metadata={"format_version": str(FORMAT_VERSION)},
    )
    write_bytes(folder / f"{hashlib.sha256(content).hexdigest()}{SUFFIX}", content)


def lock_for_writing(folder: Path) -> Lock:
    """Wait until no other process writes to a folder, and return the lock on it.

    Raises:
        UserError: The folder cannot be written to.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return Lock(folder / ".filling", wait=True)
    except OSError as error:
        raise write_error(error, folder) from error


def read_shards(
    folder: Path,
    images: Mapping[bytes, int],
    views: Mapping[bytes, int],
    table: NDArray[np.float32],
) -> NDArray[np.bool_]:
    """Fill in the rows that are on disk, and return which ones.

    Damaged shards are removed with a warning. Shards of an unknown format are ignored with a
    warning.

    Args:
        folder: The folder of the shards, which may be missing.
        images: Row of the table for each image.
        views: Column of the table for each view.
        table: Features (rows, columns, width), filled in place.

    Returns:
        Boolean array (rows, columns): whether the features were filled in.
    """
    filled = np.zeros(table.shape[:2], dtype=bool)
    if folder.is_dir():
        remove_abandoned(folder)
    for path in sorted(folder.glob(f"*{SUFFIX}")):
        try:
            header = _read_header(path)
            shard_rows, rows = _positions(header.images, images)
            shard_columns, columns = _positions(header.views, views)
            target = np.ix_(rows, columns)
            if filled[target].all():  # the shard has no new rows
                continue
            shape = (len(header.images), len(header.views), table.shape[2])
            features = _read_features(path, shape)
        except _DamagedShard as damage:
            logger.warning(
                "%s is damaged (%s) and removed; its features are computed again", path, damage
            )
            with suppress(OSError):
                path.unlink(missing_ok=True)
        except _UnknownShard as reason:
            logger.warning("%s is ignored: %s", path, reason)
        except records.MissingRecord:
            pass  # removed by another process
        except (records.RecordError, OSError) as error:
            logger.warning("%s cannot be read (%s); its features are computed again", path, error)
        else:
            table[target] = features[np.ix_(shard_rows, shard_columns)]
            filled[target] = True
    return filled


class _DamagedShard(Exception):
    """The content of a shard does not match its name or cannot be parsed."""


class _UnknownShard(Exception):
    """A shard is intact, but has an unknown format."""


class _ShardHeader(NamedTuple):
    """Digests of the images and views in a shard, one per row."""

    images: NDArray[np.uint8]
    views: NDArray[np.uint8]


def _read_header(path: Path) -> _ShardHeader:
    """Return the digests in a shard, without reading its features."""
    from safetensors import SafetensorError, safe_open

    try:
        with records.open_record(path, None), safe_open(path, framework="np") as file:
            version = (file.metadata() or {}).get("format_version", str(FORMAT_VERSION))
            missing = [key for key in KEYS if key not in file.keys()]  # noqa: SIM118 - not a dict
            if version != str(FORMAT_VERSION):
                raise _UnknownShard(f"it has format version {version}, expected {FORMAT_VERSION}")
            if not missing:
                header = _ShardHeader(file.get_tensor(IMAGES_KEY), file.get_tensor("views"))
                if all(_are_digests(rows) for rows in header):
                    return header
    except (SafetensorError, TypeError) as error:  # TypeError: a type that NumPy does not have
        raise _DamagedShard(str(error)) from error
    _read_verified(path)
    if missing:
        raise _UnknownShard(f"it has no {' and no '.join(missing)}")
    raise _UnknownShard("its keys are not SHA-256 digests")


def _are_digests(rows: NDArray[np.uint8]) -> bool:
    return rows.dtype == np.uint8 and rows.ndim == 2 and rows.shape[1] == DIGEST_BYTES


def _read_features(path: Path, shape: tuple[int, int, int]) -> NDArray[np.float32]:
    """Return all features of a shard after verifying every byte."""
    from safetensors import SafetensorError
    from safetensors.numpy import load

    try:
        features: NDArray[np.float32] = load(_read_verified(path))["features"]
    except (SafetensorError, TypeError) as error:
        raise _DamagedShard(str(error)) from error
    if features.shape != shape or features.dtype != np.float32:
        raise _UnknownShard(
            f"its features have shape {features.shape} and type {features.dtype}, expected {shape} "
            "and float32"
        )
    if not np.isfinite(features).all():
        raise _UnknownShard("its features are not finite")
    return features


def _read_verified(path: Path) -> bytes:
    content = records.read_bytes(path, records.memory_bytes())
    if hashlib.sha256(content).hexdigest() != path.stem:
        raise _DamagedShard("its content does not match its name")
    return content


def _positions(
    digests: NDArray[np.uint8], position_of: Mapping[bytes, int]
) -> tuple[list[int], list[int]]:
    """Return the positions in the shard and in the table of the digests that both contain."""
    pairs = [(index, position_of.get(row.tobytes())) for index, row in enumerate(digests)]
    common = [(index, position) for index, position in pairs if position is not None]
    return [index for index, _ in common], [position for _, position in common]


def _as_rows(digests: Digests) -> NDArray[np.uint8]:
    return np.frombuffer(b"".join(digests), dtype=np.uint8).reshape(len(digests), -1)
