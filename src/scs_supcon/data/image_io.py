"""Open image files that may come from anywhere: few formats, no bombs, always upright RGB."""

import hashlib
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image, UnidentifiedImageError

from scs_supcon.errors import UserError

FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "TIFF", "GIF")
SUFFIXES = frozenset(
    (".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".bmp", ".tif", ".tiff", ".gif")
)
# Below Pillow's own warning level: whatever Pillow is worried about is refused here by name.
MAX_PIXELS = 80_000_000
# Views are made by their short side: a thin image would grow by its shape, far beyond its file.
MAX_SHAPE = 100

_ORIENTATION_TAG = 0x0112
_TURN_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


class ImageError(UserError):
    """An image that cannot be used; `kind` is "unreadable", "truncated" or "too large"."""

    def __init__(self, message: str, kind: str = "unreadable") -> None:
        super().__init__(message)
        self.kind = kind


@dataclass(frozen=True)
class Files:
    """Opens images from a list of files."""

    paths: tuple[Path, ...]

    def open(self, index: int, at_least: int = 0) -> Image.Image:
        return open_image(self.paths[index], at_least)

    def file_hash(self, index: int) -> str:
        try:
            with self.paths[index].open("rb") as file:
                return hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise _explained(self.paths[index], error) from error


def open_image(path: Path | str, at_least: int = 0) -> Image.Image:
    """Decode one file to RGB: turned upright, transparency over white, 16 bits scaled to 8.

    Args:
        path: The file.
        at_least: If positive, a JPEG may be decoded at a half, quarter or eighth of its size as
            long as its short side keeps this many pixels. Much faster for photographs.

    Raises:
        ImageError: The file cannot be used; the text names it and says why.
    """
    with _decoded(path, at_least) as image:
        return _to_rgb(_upright(image))


def converted(image: Image.Image, name: str) -> Image.Image:
    """Bring an image that is open already to what `open_image` gives for its file.

    Raises:
        ImageError: It is too large; the text calls it `name`.
    """
    _refuse_huge(name, image.size)
    return _to_rgb(_upright(image))


@dataclass(frozen=True)
class Look:
    """An image, and how its file differs from a plain one.

    Attributes:
        image: As `open_image` gives it.
        format: What the content is, such as "JPEG", whatever the file is called.
        handled: What opening had to deal with, such as "CMYK colours".
    """

    image: Image.Image
    format: str
    handled: tuple[str, ...]


def look_at(path: Path | str, at_least: int = 0) -> Look:
    """Open an image as `open_image` does, and say what was odd about its file."""
    with _decoded(path, at_least) as image:
        handled = tuple(_handled(image))
        return Look(_to_rgb(_upright(image)), image.format or "", handled)


def short_side(path: Path | str) -> int:
    """Pixels of the shorter side, from the header alone."""
    try:
        with Path(path).open("rb") as file, warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # checking names it
            with Image.open(file, formats=FORMATS) as image:
                return min(image.size)
    except Exception as error:
        raise _explained(path, error) from error


@contextmanager
def _decoded(path: Path | str, at_least: int) -> Iterator[Image.Image]:
    """The file's image as it is stored, decoded to its last byte."""
    try:
        # Opened here, closed here: Pillow leaves some damaged files open.
        with Path(path).open("rb") as file, Image.open(file, formats=FORMATS) as image:
            _refuse_huge(path, image.size)
            if at_least:
                image.draft(None, _shrunk(image.size, at_least))
            image.load()
            yield image
    except ImageError:
        raise
    except Exception as error:  # damaged files make Pillow's decoders raise almost anything
        raise _explained(path, error) from error


def _handled(image: Image.Image) -> Iterator[str]:
    if image.mode == "CMYK":
        yield "CMYK colours"
    elif image.mode == "P":
        yield "a palette"
    elif image.mode.startswith("I") or image.mode == "F":
        yield "more than 8 bits"
    if image.has_transparency_data:
        yield "transparency"
    if _orientation(image) in _TURN_UPRIGHT:
        yield "a turn by EXIF"
    if getattr(image, "is_animated", False):
        yield "several frames"


def _refuse_huge(path: Path | str, size: tuple[int, int]) -> None:
    width, height = size
    if width * height > MAX_PIXELS:
        raise ImageError(
            f"{path} is {width} × {height} pixels, more than {MAX_PIXELS // 10**6} million: "
            "resize it",
            "too large",
        )
    if max(size) > MAX_SHAPE * min(size):
        raise ImageError(
            f"{path} is {width} × {height} pixels, one side more than {MAX_SHAPE} times the other: "
            "crop it",
            "too large",
        )


def _explained(path: Path | str, error: Exception) -> ImageError:
    if isinstance(error, Image.DecompressionBombError):
        return ImageError(f"{path} has far too many pixels ({error}): resize it", "too large")
    if isinstance(error, FileNotFoundError):
        return ImageError(f"{path} does not exist")
    if isinstance(error, UnidentifiedImageError):
        if Path(path).stat().st_size == 0:
            return ImageError(f"{path} is empty (0 bytes)")
        return ImageError(f"{path} is not a {', '.join(FORMATS[:-1])} or {FORMATS[-1]} image")
    if isinstance(error, EOFError) or "truncated" in str(error).lower():
        return ImageError(f"{path} is cut short ({error}): fetch it again", "truncated")
    return ImageError(f"{path} cannot be read ({type(error).__name__}: {error})")


def _shrunk(size: tuple[int, int], at_least: int) -> tuple[int, int]:
    """The same shape with `at_least` as its short side: the least that may come back."""
    width, height = size
    scale = at_least / min(size)
    return max(1, round(width * scale)), max(1, round(height * scale))


def _upright(image: Image.Image) -> Image.Image:
    turn = _TURN_UPRIGHT.get(_orientation(image))
    return image if turn is None else image.transpose(turn)


def _orientation(image: Image.Image) -> int:
    try:
        return int(image.getexif().get(_ORIENTATION_TAG, 1))
    except Exception:  # a broken camera record is no reason to refuse a good image
        return 1


def _to_rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I;16"):
        # The high byte, as Pillow does for 16-bit colour; its own conversion would clip to white.
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    elif image.mode in ("I", "F"):
        image = _stretched(image)
    if image.has_transparency_data:
        over = image.convert("RGBA")
        white = Image.new("RGBA", image.size, "white")
        return Image.alpha_composite(white, over).convert("RGB")
    return image if image.mode == "RGB" else image.convert("RGB")


def _stretched(image: Image.Image) -> Image.Image:
    """From its least to its greatest value: these modes do not say what black and white are."""
    values = np.nan_to_num(np.asarray(image, dtype=np.float64))
    low, high = values.min(), values.max()
    scaled = (values - low) * (255 / (high - low)) if high > low else np.zeros_like(values)
    return Image.fromarray(scaled.round().astype(np.uint8))
