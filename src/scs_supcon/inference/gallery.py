"""Collect what is known about the training images of a model, and export it."""

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

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

SIDE = 128  # pixels of the longer side of a JPEG
JPEG_QUALITY = 80


@contextmanager
def replacing_gallery(model: Model, file: Path, data: str | None = None) -> Iterator[Path]:
    """Write the training images of a model, which are at `data`, beside its exported file.

    The block writes that file. Until it has, readers find the gallery of the old one.
    """
    gallery = GalleryFile(
        names=model.info.image_names,
        labels=model.gallery.labels.numpy(),
        common=model.gallery.vectors.numpy(),
        style=model.gallery.style.numpy(),
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
