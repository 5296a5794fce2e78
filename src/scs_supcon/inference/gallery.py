"""Collect what is known about the training images of a model, and export it."""

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from scs_supcon.data.image_io import ImageError
from scs_supcon.data.load import load_images
from scs_supcon.data.remote import recorded_source
from scs_supcon.errors import UserError
from scs_supcon.inference.gallery_file import (
    GalleryFile,
    gallery_path,
    new_gallery_path,
    write_gallery,
)
from scs_supcon.inference.model import Model
from scs_supcon.io.records import read_parquet

SIDE = 128  # pixels of the longer side of a JPEG
JPEG_QUALITY = 80


def style_vectors(run: Path | None, model: Model) -> NDArray[np.float32]:
    """Return the style field of the training images; no columns if it is not stored.

    Models of older versions do not contain it, but their runs do.
    """
    if model.gallery.style.shape[1]:
        return model.gallery.style.numpy()
    file = None if run is None else run / "embeddings.parquet"
    empty = np.zeros((len(model.info.image_names), 0), np.float32)
    if file is None or not file.is_file():
        return empty
    table = read_parquet(file, {"name": str, "style": list})
    rows = dict(zip(table["name"].to_pylist(), table["style"].to_numpy(), strict=True))
    if any(name not in rows for name in model.info.image_names):  # such as added classes
        return empty
    vectors = [rows[name] for name in model.info.image_names]
    return np.stack(vectors).astype(np.float32) if vectors else empty


@contextmanager
def replacing_gallery(
    run: Path, model: Model, file: Path, data: str | None = None
) -> Iterator[Path]:
    """Write the training images of a model, which are at `data`, beside its exported file.

    The block writes that file. Until it has, readers find the gallery of the old one.
    """
    gallery = GalleryFile(
        names=model.info.image_names,
        labels=model.gallery.labels.numpy(),
        common=model.gallery.vectors.numpy(),
        style=style_vectors(run, model),
        jpegs=_jpegs(model, data),
    )
    new, path = new_gallery_path(file), gallery_path(file)
    write_gallery(new, gallery)
    try:
        yield path
        new.replace(path)
    finally:
        new.unlink(missing_ok=True)


def _jpegs(model: Model, data: str | None) -> list[bytes]:
    """Return small JPEGs of the training images; empty ones if the data is not available."""
    try:
        images = load_images(recorded_source(model.info.recipe.data.source, data))
    except UserError:
        return [b""] * len(model.info.image_names)
    index = {name: number for number, name in enumerate(images.names)}
    jpegs = []
    for name in model.info.image_names:
        file = io.BytesIO()
        if name in index:
            try:
                image = images.open(index[name], SIDE)
                image.thumbnail((SIDE, SIDE))
                image.save(file, "JPEG", quality=JPEG_QUALITY)
            except ImageError:
                file = io.BytesIO()
        jpegs.append(file.getvalue())
    return jpegs
