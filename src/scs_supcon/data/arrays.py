"""Images in memory: arrays as Pillow images, and lists of images as datasets."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from scs_supcon.data.dataset import ImageDataset
from scs_supcon.data.image_io import convert_image, open_image
from scs_supcon.errors import UserError
from scs_supcon.io.hashing import file_sha256

CHANNELS = (1, 3, 4)
SHAPES = (
    "(height, width), (height, width, 3), (images, height, width) or (images, height, width, 3)"
)


def images_from_array(array: NDArray[Any]) -> list[Image.Image]:
    """Return the images of an array: one image or several, grey or in colour.

    Values are bytes from 0 to 255, 16-bit integers, floats from 0 to 1, or booleans. A fourth
    channel is transparency.

    Raises:
        UserError: the array has another shape or type, or channels first.
    """
    in_colour = array.ndim in (3, 4) and array.shape[-1] in CHANNELS
    if array.ndim == 3 and not in_colour and array.shape[0] in CHANNELS:
        raise UserError(
            f"an array of shape {array.shape} may be one image with its channels first, or "
            f"{array.shape[0]} grey images: give array.transpose(1, 2, 0), or list(array)"
        )
    if array.ndim == 2 or (array.ndim == 3 and in_colour):
        array = array[None]
    elif array.ndim != 3 and not in_colour:
        raise UserError(f"images must be arrays of shape {SHAPES}, got shape {array.shape}")
    if not array.size:
        raise UserError(f"the array of shape {array.shape} contains no pixels")
    pixels = _bytes(array)
    if in_colour and pixels.shape[-1] == 1:
        pixels = pixels[..., 0]
    return [Image.fromarray(np.ascontiguousarray(image)) for image in pixels]


def _bytes(array: NDArray[Any]) -> NDArray[np.uint8]:
    if array.dtype == np.uint8:
        return array
    if array.dtype == np.uint16:
        return (array >> 8).astype(np.uint8)  # as for files
    if array.dtype == np.bool_:
        return array.astype(np.uint8) * np.uint8(255)
    if array.dtype.kind == "f":
        low, high = float(array.min()), float(array.max())
        if 0 <= low <= high <= 1:
            return (array * 255).round().astype(np.uint8)
        raise UserError(
            f"floats must lie between 0 and 1, got {low:g} to {high:g}: convert the array to bytes "
            "with array.astype(numpy.uint8), or divide it by its maximum"
        )
    raise UserError(
        f"images must be arrays of type uint8, uint16, bool or float, got {array.dtype}: convert "
        "it with array.astype(numpy.uint8)"
    )


@dataclass(frozen=True, eq=False)
class ImageList:
    """Opens images from a list of files and Pillow images."""

    images: Sequence[Path | Image.Image]

    def open(self, index: int, at_least: int = 0, sha256: str = "") -> Image.Image:
        image = self.images[index]
        if isinstance(image, Path):
            return open_image(image, at_least, sha256=sha256)
        return convert_image(image, f"image {index + 1}")

    def file_hash(self, index: int) -> str:
        image = self.images[index]
        if isinstance(image, Path):
            return file_sha256(image)
        pixels = np.asarray(self.open(index))
        shape = ",".join(map(str, pixels.shape))
        return hashlib.sha256(shape.encode() + pixels.tobytes()).hexdigest()


def dataset_from_images(
    images: Sequence[Path | Image.Image], labels: NDArray[np.int64], classes: tuple[str, ...]
) -> ImageDataset:
    """Return a dataset of image files and Pillow images, named "images/0001" and so on.

    Raises:
        UserError: there are more or fewer labels than images, or a file cannot be read.
    """
    if len(images) != len(labels):
        raise UserError(f"there are {len(images)} images, but {len(labels)} labels")
    reader = ImageList(images)
    sides = [min(reader.open(index).size) for index in range(0, len(images), len(images) // 64 + 1)]
    return ImageDataset(
        names=tuple(f"images/{number:04d}" for number in range(1, len(images) + 1)),
        labels=labels,
        classes=classes,
        splits=None,
        groups=None,
        folds=None,
        open=reader.open,
        file_hash=reader.file_hash,
        native_size=int(np.median(sides)),
    )
