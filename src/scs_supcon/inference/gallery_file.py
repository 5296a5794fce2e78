"""The training images of a model in one safetensors file, for programs without torch.

The file holds their embeddings and labels and, if the images were available, small JPEGs of them.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scs_supcon.errors import UserError
from scs_supcon.io.atomic import write_bytes
from scs_supcon.io.records import RecordError, memory_bytes, open_record, parse_json

FORMAT_VERSION = "1"
SUFFIX = ".gallery.safetensors"
TENSORS = ("labels", "common", "style", "jpegs", "ends")


@dataclass(frozen=True)
class GalleryFile:
    """The content of a gallery file, one row per training image.

    Attributes:
        names: names of the images.
        labels: (n,) classes.
        common: (n, D) unit vectors.
        style: (n, S) unit vectors; S may be 0.
        jpegs: small JPEGs; empty bytes for an image without one.
    """

    names: tuple[str, ...]
    labels: NDArray[np.int64]
    common: NDArray[np.float32]
    style: NDArray[np.float32]
    jpegs: Sequence[bytes]


def gallery_path(model: Path) -> Path:
    """Return the gallery file that belongs to an exported model: birds.onnx -> birds.gallery.…"""
    return model.with_name(model.stem + SUFFIX)


def new_gallery_path(model: Path) -> Path:
    """Return where a gallery is until its model is written, so that the two change in one step."""
    return model.with_name(f".{model.stem}{SUFFIX}.new")


def gallery_digest(labels: NDArray[np.int64], common: NDArray[np.float32]) -> str:
    """Return a digest of the training images of a model, which is stored in the exported file."""
    parts = (np.ascontiguousarray(labels, np.int64), np.ascontiguousarray(common, np.float32))
    return hashlib.sha256(b"".join(part.tobytes() for part in parts)).hexdigest()


def find_gallery(model: Path, digest: object) -> GalleryFile | None:
    """Return the gallery of an exported model; None if it has none.

    Args:
        model: The exported file.
        digest: Of its training images; exports of version 0.2 do not have it.

    Raises:
        UserError: The gallery is damaged, or belongs to another export.
    """
    candidates = [path for path in (gallery_path(model), new_gallery_path(model)) if path.exists()]
    for path in candidates:
        gallery = read_gallery(path)
        if digest in (None, gallery_digest(gallery.labels, gallery.common)):
            return gallery
    if candidates:
        raise UserError(f"{candidates[0]} does not belong to {model}: export the model again")
    return None


def write_gallery(file: Path, gallery: GalleryFile) -> None:
    """Write a gallery file atomically."""
    from safetensors.numpy import save

    ends = np.cumsum([len(jpeg) for jpeg in gallery.jpegs], dtype=np.int64)
    tensors: dict[str, NDArray[Any]] = {
        "labels": np.ascontiguousarray(gallery.labels, np.int64),
        "common": np.ascontiguousarray(gallery.common, np.float32),
        "style": np.ascontiguousarray(gallery.style, np.float32),
        "jpegs": np.frombuffer(b"".join(gallery.jpegs), np.uint8),
        "ends": ends,
    }
    metadata = {"format_version": FORMAT_VERSION, "names": json.dumps(gallery.names)}
    write_bytes(file, save(tensors, metadata))


def read_gallery(file: Path) -> GalleryFile:
    """Read a gallery file.

    Raises:
        UserError: the file is damaged or too new.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with open_record(file, memory_bytes() // 2), safe_open(file, "np") as content:
            metadata = content.metadata() or {}
            labels, common, style, content_bytes, ends = map(content.get_tensor, TENSORS)
    except (SafetensorError, OSError, LookupError, TypeError) as error:
        raise UserError(f"{file} is not a gallery of training images: {error}") from error
    if metadata.get("format_version") != FORMAT_VERSION:
        raise UserError(f"{file} is not a gallery that this version can read")
    names = parse_json(metadata.get("names", ""), file)
    n, whole = len(names) if isinstance(names, list) else -1, np.dtype(np.int64)
    valid = (
        n >= 0
        and all(isinstance(name, str) for name in names)
        and (labels.shape, labels.dtype, ends.shape, ends.dtype) == ((n,), whole, (n,), whole)
        and (content_bytes.ndim, content_bytes.dtype) == (1, np.dtype(np.uint8))
        and (labels >= 0).all()
        and all((x.ndim, len(x), x.dtype) == (2, n, np.dtype(np.float32)) for x in (common, style))
        and all((np.abs(x) < 1.01).all() for x in (common, style))  # unit vectors, and not NaN
        and (np.diff(ends, prepend=0) >= 0).all()
        and (ends[-1:] <= len(content_bytes)).all()
    )
    if not valid:
        raise RecordError(f"{file} is damaged: its columns have other types, lengths or values")
    jpegs = [content_bytes[a:b].tobytes() for a, b in pairwise([0, *ends.tolist()])]
    return GalleryFile(tuple(names), labels, common, style, jpegs)
