"""What a model accepts as images: files, folders, patterns, Pillow images and arrays."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from scs_supcon.data.arrays import images_from_array
from scs_supcon.data.image_io import convert_image, open_image
from scs_supcon.data.load import find_images
from scs_supcon.errors import UserError

ImageLike = str | Path | Image.Image | NDArray[Any]
"""A file, folder or pattern, a Pillow image, or an array with one image or several."""


class NamedImage(NamedTuple):
    """An image file or a Pillow image, and its name in results and messages."""

    name: str
    image: Path | Image.Image

    def open(self) -> Image.Image:
        """Return the image upright and in RGB.

        Raises:
            ImageError: it cannot be used.
        """
        if isinstance(self.image, Image.Image):
            return convert_image(self.image, self.name)
        return open_image(self.image)


def list_images(images: ImageLike | Iterable[ImageLike]) -> list[NamedImage]:
    """Return the images in order. Folders and patterns stand for the images in them.

    Images without a file are called "image 1", "image 2", … by their position.

    Raises:
        UserError: a folder or pattern has no images, or an item is no image.
    """
    if isinstance(images, str | Path | Image.Image | np.ndarray):
        images = [images]
    elif not isinstance(images, Iterable) or hasattr(images, "__array__"):
        raise _type_error(images)
    listed: list[NamedImage] = []
    for item in images:
        if isinstance(item, str | Path):
            expanded: list[Path | Image.Image] = [*find_images([str(item)])]
        elif isinstance(item, Image.Image):
            expanded = [item]
        elif isinstance(item, np.ndarray):
            expanded = [*images_from_array(item)]
        else:
            raise _type_error(item)
        for image in expanded:
            named = isinstance(image, Path)
            listed.append(NamedImage(str(image) if named else f"image {len(listed) + 1}", image))
    return listed


def _type_error(item: object) -> UserError:
    kind = f"{type(item).__module__}.{type(item).__qualname__}".removeprefix("builtins.")
    return UserError(
        f"expected a path, a Pillow image, a NumPy array, or a list of these, got {kind}"
        + ("; convert a tensor with .numpy()" if hasattr(item, "numpy") else "")
    )
