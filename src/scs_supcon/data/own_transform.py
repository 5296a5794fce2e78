"""Views of the user: `my_lab.views:build` or `./views.py:build`.

`build(image_size)` returns a function from an RGB image (PIL) to a view: an image of this size, or
a float tensor (3, image_size, image_size) with values from 0 to 1. The channels are standardised
afterwards. Random numbers must come from torch, whose generator is seeded for every view; the
transforms of torchvision use it.
"""

from collections.abc import Callable
from dataclasses import dataclass

from PIL import Image
from torch import Tensor

from scs_supcon.errors import UserError
from scs_supcon.plugins import code_digest, import_allowed


@dataclass(frozen=True)
class OwnTransform:
    """Calls the user's function and checks what it returns."""

    name: str
    size: int
    function: Callable[[Image.Image], Image.Image | Tensor]

    def __call__(self, image: Image.Image) -> Image.Image | Tensor:
        view = self.function(image)
        if isinstance(view, Image.Image):
            size = view.size
        elif isinstance(view, Tensor) and view.is_floating_point() and view.ndim == 3:
            size = (view.shape[2], view.shape[1]) if len(view) == 3 else (0, 0)
        else:
            raise UserError(
                f"the transform {self.name} returned {_describe(view)}, expected an image or a "
                "float tensor (3, height, width)"
            )
        if size != (self.size, self.size):
            raise UserError(
                f"the transform {self.name} returned {_describe(view)}, expected {self.size} x "
                f"{self.size} pixels, as data.image_size says"
            )
        return view.convert("RGB") if isinstance(view, Image.Image) else view


def own_transform(name: str, image_size: int) -> OwnTransform:
    """Return the transform of the user's function, which must have been allowed."""
    function = import_allowed("transform", name)(image_size)
    if not callable(function):
        raise UserError(f"the transform {name} returned {_describe(function)}, expected a function")
    return OwnTransform(name, image_size, function)


def own_transform_digest(name: str) -> str:
    """Return the SHA-256 of the file with the user's function."""
    return code_digest(import_allowed("transform", name))


def _describe(value: object) -> str:
    if isinstance(value, Image.Image):
        return f"an image of {value.width} x {value.height} pixels"
    if isinstance(value, Tensor):
        return f"a tensor of {value.dtype} {tuple(value.shape)}"
    return type(value).__name__
