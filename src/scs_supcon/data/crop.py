"""The crop that models see: resize the short side, cut out the centre. Needs Pillow alone."""

from dataclasses import dataclass

from PIL import Image


@dataclass(frozen=True)
class CentreCrop:
    """Resizes the short side of an image and cuts out a square from its centre.

    Training, prediction, the check of exported files and programs that use them share this code, so
    that all of them see the same pixels.

    Attributes:
        short_side: Length in pixels to which the short side is resized.
        size: Side of the square, at most `short_side`.
        interpolation: Name of a filter of Pillow, such as "bicubic".
    """

    short_side: int
    size: int
    interpolation: str

    def __call__(self, image: Image.Image) -> Image.Image:
        """Return the square."""
        width, height = (self.short_side * side // min(image.size) for side in image.size)
        if (width, height) != image.size:
            image = image.resize((width, height), Image.Resampling[self.interpolation.upper()])
        left, top = round((width - self.size) / 2), round((height - self.size) / 2)
        return image.crop((left, top, left + self.size, top + self.size))
