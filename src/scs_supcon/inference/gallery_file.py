"""The training images of a model in one safetensors file, for programs without torch.

The file holds their embeddings and labels and, if the images were available, small JPEGs of them.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scs_supcon.errors import UserError
from scs_supcon.io.atomic import write_bytes

FORMAT_VERSION = "1"
SUFFIX = ".gallery.safetensors"


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
        with safe_open(file, "np") as content:
            metadata = content.metadata() or {}
            tensors = {name: content.get_tensor(name) for name in content.keys()}  # noqa: SIM118
        if metadata.get("format_version") != FORMAT_VERSION:
            raise UserError(f"{file} is not a gallery that this version can read")
        names = tuple(map(str, json.loads(metadata["names"])))
        ends, content_bytes = tensors["ends"].tolist(), tensors["jpegs"].tobytes()
        jpegs = [content_bytes[a:b] for a, b in zip([0, *ends], ends, strict=False)]
        gallery = GalleryFile(names, tensors["labels"], tensors["common"], tensors["style"], jpegs)
    except (SafetensorError, OSError, ValueError, KeyError) as error:
        if isinstance(error, UserError):
            raise
        raise UserError(f"{file} is not a gallery of training images: {error}") from error
    if len({len(names), *(len(x) for x in (gallery.labels, gallery.common, jpegs))}) != 1:
        raise UserError(f"{file} is damaged: its columns have different lengths")
    return gallery
