"""Rows of features on disk, in small files that are whole or absent.

A row is found by two SHA-256 digests: of the image's content and of the view's key. A shard holds
the rows of a few images under a few views; its name is the digest of its bytes, so damage shows,
and processes that write at the same time cannot harm each other.
"""

import fcntl
import hashlib
import logging
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from scs_supcon.errors import UserError

logger = logging.getLogger(__name__)

SUFFIX = ".safetensors"
ABANDONED_AFTER = 3600.0  # seconds; a shard is written in far less

Digests = Sequence[bytes]


def write_shard(
    folder: Path, images: Digests, views: Digests, features: NDArray[np.float32]
) -> None:
    """Keep `features` (images, views, width): on the disk before it has its name.

    Raises:
        UserError: The folder cannot be written to, or the disk is full.
    """
    from safetensors.numpy import save

    content = save({"images": _as_rows(images), "views": _as_rows(views), "features": features})
    name = hashlib.sha256(content).hexdigest()
    temporary = folder / f"{name}.{os.getpid()}.tmp"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as file:
            file.write(content)
            os.fsync(file.fileno())
        temporary.replace(folder / f"{name}{SUFFIX}")
        _sync_names(folder)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise _explained(error, folder) from error


def _explained(error: OSError, folder: Path) -> UserError:
    return UserError(
        f"cannot write features to {folder} ({error.strerror or error}): "
        "make room, or choose another cache folder. What was kept before is intact."
    )


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Let one process at a time fill a folder; the others wait and then find its rows.

    The system holds the lock, so a process that dies holds nothing.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder / ".filling", os.O_RDWR | os.O_CREAT, 0o644)
        fcntl.flock(handle, fcntl.LOCK_EX)
    except OSError as error:
        raise _explained(error, folder) from error
    try:
        yield
    finally:
        fcntl.flock(handle, fcntl.LOCK_UN)  # closing alone would leave it to forked workers
        os.close(handle)


def read_shards(
    folder: Path,
    images: Mapping[bytes, int],
    views: Mapping[bytes, int],
    table: NDArray[np.float32],
) -> NDArray[np.bool_]:
    """Fill in the rows that are on disk.

    Args:
        folder: Where the shards are; it need not exist.
        images: Row of the table for each image wanted.
        views: Column of the table for each view wanted.
        table: Features (rows, columns, width), filled in place.

    Returns:
        Which (row, column) were found. Damaged shards are removed and count as not found.
    """
    found = np.zeros(table.shape[:2], dtype=bool)
    _sweep(folder)
    for path in sorted(folder.glob(f"*{SUFFIX}")):
        held = _held(path)
        if held is None:
            _remove_damaged(path)
            continue
        here, rows = _positions(held[0], images)
        there, columns = _positions(held[1], views)
        target = np.ix_(rows, columns)
        if found[target].all():  # nothing new, or nothing at all
            continue
        features = _features(path, (len(held[0]), len(held[1]), table.shape[2]))
        if features is None:
            _remove_damaged(path)
            continue
        table[target] = features[np.ix_(here, there)]
        found[target] = True
    return found


def _held(path: Path) -> tuple[NDArray[np.uint8], NDArray[np.uint8]] | None:
    """Digests of the images and views in a shard, without reading its features."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="np") as file:
            return file.get_tensor("images"), file.get_tensor("views")
    except (SafetensorError, OSError):
        return None


def _features(path: Path, shape: tuple[int, int, int]) -> NDArray[np.float32] | None:
    """All features of a shard, None unless every byte is as it was written."""
    from safetensors.numpy import load

    try:
        content = path.read_bytes()
    except OSError:
        return None
    if hashlib.sha256(content).hexdigest() != path.stem:
        return None
    features: NDArray[np.float32] = load(content)["features"]
    return features if features.shape == shape else None


def _positions(held: NDArray[np.uint8], wanted: Mapping[bytes, int]) -> tuple[list[int], list[int]]:
    """Positions in the shard, and in the table, of what both have."""
    pairs = [(at, wanted.get(digest.tobytes())) for at, digest in enumerate(held)]
    shared = [(at, row) for at, row in pairs if row is not None]
    return [at for at, _ in shared], [row for _, row in shared]


def _as_rows(digests: Digests) -> NDArray[np.uint8]:
    return np.frombuffer(b"".join(digests), dtype=np.uint8).reshape(len(digests), -1)


def _remove_damaged(path: Path) -> None:
    logger.warning("%s is damaged: its features are computed again", path)
    with suppress(OSError):
        path.unlink(missing_ok=True)


def _sweep(folder: Path) -> None:
    """Remove what killed processes left half-written, but nothing that is being written now."""
    for path in folder.glob("*.tmp"):
        with suppress(OSError):
            if time.time() - path.stat().st_mtime > ABANDONED_AFTER:
                path.unlink()


def _sync_names(folder: Path) -> None:
    """Wait until the folder's list of names is on the disk, where the system can do that."""
    if os.name != "posix":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
