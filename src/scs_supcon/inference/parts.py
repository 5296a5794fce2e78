"""Embeddings of many images, computed in parts that are stored as soon as they are finished."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from scs_supcon.data.image_io import ImageError, open_image
from scs_supcon.inference.loading import load
from scs_supcon.inference.types import Embeddings, Failure
from scs_supcon.inference.writing import write_embeddings
from scs_supcon.io.lock import Lock
from scs_supcon.io.records import read_parquet, read_text
from scs_supcon.runs.layout import find_model

PART_IMAGES = 4096


@dataclass(frozen=True)
class EmbeddingPart:
    """Some of the images, and the file of their embeddings."""

    images: tuple[Path, ...]
    file: Path

    @property
    def lock(self) -> Path:
        """The lock of the process that computes the part."""
        return self.file.with_suffix(".lock")


def embedding_parts(run: Path, files: Sequence[Path], folder: Path) -> list[EmbeddingPart]:
    """Divide images into parts; a part of another model or of changed images has another name.

    Args:
        run: a run directory, or its model directory.
        files: the images.
        folder: for the files of the parts.
    """
    model = read_text(find_model(run) / "SHA256SUMS")
    parts = []
    for start in range(0, len(files), PART_IMAGES):
        images = tuple(files[start : start + PART_IMAGES])
        key = json.dumps([model, [_state(file) for file in images]])
        name = hashlib.sha256(key.encode()).hexdigest()[:16]
        parts.append(EmbeddingPart(images, folder / f"{name}.parquet"))
    return parts


def embed_part(run: str, images: str, file: str) -> str:
    """Compute a part and return its size in words.

    Args:
        run: a run directory, or its model directory.
        images: a JSON list of files.
        file: the result, which holds the positions of the readable images and their vectors.
    """
    files = [Path(name) for name in json.loads(images)]
    with Lock(Path(file).with_suffix(".lock")):
        if not Path(file).exists():  # finished by another process in the meantime
            vectors = load(run).embed(files)
            failed = {failure.name for failure in vectors.failures}
            positions = [str(k) for k, name in enumerate(files) if str(name) not in failed]
            write_embeddings(vectors._replace(names=tuple(positions)), Path(file))
    return f"{len(files)} images"


def join_parts(parts: Sequence[EmbeddingPart]) -> Embeddings:
    """Return the embeddings of all parts, which must be finished, in the order of the images."""
    names: list[str] = []
    failures: list[Failure] = []
    fields: dict[str, list[np.ndarray]] = {"common": [], "style": []}
    for part in parts:
        table = read_parquet(part.file, {"image": str, "common": list, "style": list})
        positions = [int(text) for text in table["image"].to_pylist()]
        names += [str(part.images[k]) for k in positions]
        missing = sorted(set(range(len(part.images))) - set(positions))
        failures += [_failure(part.images[k]) for k in missing]
        for field, arrays in fields.items():
            rows = table[field].combine_chunks()
            if len(rows):
                values = rows.flatten().to_numpy(zero_copy_only=False)
                arrays.append(values.reshape(len(rows), -1))
    common, style = (
        np.concatenate(arrays) if arrays else np.empty((0, 0), np.float32)
        for arrays in fields.values()
    )
    return Embeddings(tuple(names), common, style, tuple(failures))


def _state(file: Path) -> tuple[str, int, int]:
    """Return the path, size and time of change of a file."""
    try:
        state = file.stat()
    except OSError:  # it is listed as a failure later
        return str(file), -1, -1
    return str(file), state.st_size, state.st_mtime_ns


def _failure(file: Path) -> Failure:
    try:
        open_image(file)
    except ImageError as error:
        return Failure(str(file), str(error))
    return Failure(str(file), f"{file} could not be read when its embedding was computed")
