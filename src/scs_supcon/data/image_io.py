"""Decode image files from untrusted sources: few formats, limited size, always upright RGB."""

import hashlib
import io
import logging
import math
import multiprocessing
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import IO

import numpy as np
from PIL import Image, UnidentifiedImageError

from scs_supcon.data.dataloader import announce
from scs_supcon.errors import UserError
from scs_supcon.io.hashing import file_sha256
from scs_supcon.io.records import RecordError, open_record

HEIF_SUFFIXES = (".heic", ".heif")  # photographs of iPhones
INSTALL_HEIF = "pip install pillow-heif"
NEEDS_HEIF = f"is a HEIC image: to read it, {INSTALL_HEIF}"
HEIF_BRANDS = (b"ftypheic", b"ftypheix", b"ftyphevc", b"ftypmif1", b"ftypmsf1")


def _has_heif() -> bool:
    """Return whether the optional package pillow-heif is installed, after registering it."""
    if find_spec("pillow_heif") is None:
        return False
    import_module("pillow_heif").register_heif_opener()
    return True


HAS_HEIF = _has_heif()
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "TIFF", "GIF", *(["HEIF"] if HAS_HEIF else []))
SUFFIXES = frozenset(
    (
        *(".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".bmp", ".tif", ".tiff", ".gif"),
        *(HEIF_SUFFIXES if HAS_HEIF else ()),
    )
)
# More than cameras have, and below the size at which Pillow warns. A file of less than a megabyte
# can have that many pixels, which take half a gigabyte while they are decoded.
MAX_PIXELS = 64_000_000
# Larger images are converted in strips: a conversion needs several copies of what it converts.
STRIP_PIXELS = 4_000_000
# Views are resized by the short side: a thin image would need far more memory than its file.
MAX_ASPECT_RATIO = 100

_ORIENTATION_TAG = 0x0112
_BITS_TAG, _MAXIMUM_TAG = 258, 281  # BitsPerSample, MaxSampleValue
NEARLY_BLACK = (
    "16-bit values below 4096 (nearly black: if they have 12 bits, multiply them by 16, or set the "
    "TIFF tag MaxSampleValue to 4095; scs doctor lists all such images)"
)
_warned: list[str] = []
_UPRIGHT_TRANSPOSE = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


class ImageError(UserError):
    """An image that cannot be used; `kind` is "unreadable", "truncated" or "too_large"."""

    def __init__(self, message: str, kind: str = "unreadable") -> None:
        super().__init__(message)
        self.kind = kind


@dataclass(frozen=True)
class ImageFiles:
    """Opens images from a tuple of files."""

    paths: tuple[Path, ...]

    def open(self, index: int, at_least: int = 0, sha256: str = "") -> Image.Image:
        return open_image(self.paths[index], at_least, sha256=sha256)

    def file_hash(self, index: int) -> str:
        try:
            return file_sha256(self.paths[index])
        except UserError as error:
            raise ImageError(str(error)) from error


def open_image(
    path: Path | str, at_least: int = 0, *, content: bytes | None = None, sha256: str = ""
) -> Image.Image:
    """Return an image file as RGB: upright, transparency over white, 16 bits scaled to 8.

    Args:
        path: The file, or the name of an image whose file was read already.
        at_least: If positive, a JPEG may be decoded at a half, quarter or eighth of its size, as
            long as its short side has at least this many pixels. This is much faster.
        content: The bytes of the file; None reads them from `path`.
        sha256: What the bytes must hash to, if it is known.

    Raises:
        ImageError: The file cannot be used; the message gives its name and the reason.
    """
    with _decode(path, at_least, content, sha256) as image:
        return _upright(_to_rgb(image), _orientation(image))


def check_unchanged(name: Path | str, found: str, sha256: str) -> None:
    """Raise an `ImageError` unless the content of an image has the hash that it had before."""
    if found != sha256:
        raise ImageError(f"{name} changed while it was read: run the command again")


def convert_image(image: Image.Image, name: str) -> Image.Image:
    """Return an open image converted as by `open_image`.

    Raises:
        ImageError: The image is too large; the message refers to it as `name`.
    """
    _check_size(name, image.size)
    return _upright(_to_rgb(image), _orientation(image))


@dataclass(frozen=True)
class DecodedImage:
    """An image and the properties of its file.

    Attributes:
        image: The image as returned by `open_image`.
        format: Format of the content, such as "JPEG", regardless of the extension.
        conversions: Properties that decoding converted, such as "CMYK colours".
    """

    image: Image.Image
    format: str
    conversions: tuple[str, ...]


def inspect_image(path: Path | str, at_least: int = 0) -> DecodedImage:
    """Decode an image as `open_image` does, and return it with the properties of its file."""
    with _decode(path, at_least) as image:
        conversions = tuple(_conversions(image))
        upright = _upright(_to_rgb(image), _orientation(image))
        return DecodedImage(upright, image.format or "", conversions)


def short_side(path: Path | str) -> int:
    """Return the length of the shorter side in pixels, read from the header."""
    try:
        with _open_file(path) as file, warnings.catch_warnings():
            # Reported when the image is decoded.
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            with Image.open(file, formats=FORMATS) as image:
                return min(image.size)
    except Exception as error:
        raise _image_error(path, error) from error


def median_short_side(paths: tuple[Path, ...], sample: int = 64) -> int:
    """Return the median short side in pixels of about `sample` files.

    Raises:
        UserError: All of these files are unreadable.
    """
    sides = []
    last_error: ImageError | None = None
    for path in paths[:: max(1, len(paths) // sample)]:
        try:
            sides.append(short_side(path))
        except ImageError as error:
            last_error = error
    if not sides:
        raise UserError(f"none of the sampled images can be read, for example: {last_error}")
    return int(np.median(sides))


@contextmanager
def _decode(
    path: Path | str, at_least: int, content: bytes | None = None, sha256: str = ""
) -> Iterator[Image.Image]:
    """Yield the image as it is stored, completely decoded."""
    try:
        # Pillow leaves some damaged files open, so the file is opened and closed here.
        with (
            _open_file(path, content) as file,
            Image.open(
                _unchanged(path, file, sha256) if sha256 else file, formats=FORMATS
            ) as image,
        ):
            _check_size(path, image.size)
            if at_least:
                image.draft(None, _draft_size(image.size, at_least))
            deep = any(";16" in str(tile) for tile in getattr(image, "tile", ()))
            image.load()
            if deep and _uses_12_bits(image):
                image.info[NEARLY_BLACK] = True
                if not _warned and multiprocessing.parent_process() is None:  # no worker
                    _warned.append(NEARLY_BLACK)
                    logging.getLogger(__name__).warning("%s has %s", path, NEARLY_BLACK)
            yield image
    except ImageError:
        raise
    except Exception as error:  # Pillow raises almost anything on damaged files
        raise _image_error(path, error, content) from error


def _unchanged(path: Path | str, file: IO[bytes], sha256: str) -> IO[bytes]:
    """Return a file in memory after checking it: it may change until it is decoded."""
    content = file.read()
    check_unchanged(path, hashlib.sha256(content).hexdigest(), sha256)
    return io.BytesIO(content)


def _open_file(path: Path | str, content: bytes | None = None) -> IO[bytes]:
    announce(path)
    return open_record(path, None, links=True) if content is None else io.BytesIO(content)


def _uses_12_bits(image: Image.Image) -> bool:
    """Return whether the upper bits of all 16-bit samples are 0, and no tag says that they are.

    The samples are not scaled by what they contain: a dim image of a 16-bit camera would become
    brighter than the others.
    """
    high = np.max(image.getextrema())  # of an image with transparency, mostly that of its alpha
    limit = 4096 if image.mode.startswith("I;16") else 16  # Pillow keeps the high byte of colours
    return bool(_sample_bits(image) == 16 and 0 < high < limit)


def _sample_bits(image: Image.Image) -> int:
    """Return how many bits of its samples an image with 16 bits uses, as far as the file says."""
    tags = getattr(image, "tag_v2", {})
    bits, maximum = tags.get(_BITS_TAG), tags.get(_MAXIMUM_TAG)
    return 12 if bits == (12,) or maximum in (4095, (4095,)) else 16


def _conversions(image: Image.Image) -> Iterator[str]:
    if image.mode == "CMYK":
        yield "CMYK colours"
    elif image.mode == "P":
        yield "palette"
    elif image.mode.startswith("I") or image.mode == "F":
        yield "more than 8 bits"
    if NEARLY_BLACK in image.info:
        yield NEARLY_BLACK
    if image.has_transparency_data:
        yield "transparency"
    if _orientation(image) in _UPRIGHT_TRANSPOSE:
        yield "EXIF orientation"
    if getattr(image, "is_animated", False):
        yield "animation (first frame)"


def _check_size(path: Path | str, size: tuple[int, int]) -> None:
    width, height = size
    if width * height > MAX_PIXELS:
        raise ImageError(
            f"{path} is {width} × {height} pixels, more than {MAX_PIXELS // 10**6} million: "
            "resize it",
            "too_large",
        )
    if max(size) > MAX_ASPECT_RATIO * min(size):
        raise ImageError(
            f"{path} is {width} × {height} pixels, one side is more than {MAX_ASPECT_RATIO} times "
            "the other: crop it",
            "too_large",
        )


def _image_error(path: Path | str, error: Exception, content: bytes | None = None) -> ImageError:
    if isinstance(error, Image.DecompressionBombError):
        return ImageError(f"{path} has too many pixels ({error}): resize it", "too_large")
    if isinstance(error, RecordError):  # missing, or not a regular file
        return ImageError(str(error))
    if isinstance(error, UnidentifiedImageError):
        # The name of an upload must not reach the file system.
        with _open_file(path, content) as file:
            start = file.read(12)
        if not start:
            return ImageError(f"{path} is empty (0 bytes)")
        expected = f"is not a {', '.join(FORMATS[:-1])} or {FORMATS[-1]} image"
        return ImageError(f"{path} {NEEDS_HEIF if start[4:] in HEIF_BRANDS else expected}")
    if isinstance(error, EOFError) or "truncated" in str(error).lower():
        return ImageError(
            f"{path} is truncated ({error}): replace it with a complete copy", "truncated"
        )
    return ImageError(f"{path} cannot be read ({type(error).__name__}: {error})")


def _draft_size(size: tuple[int, int], at_least: int) -> tuple[int, int]:
    """Return the size with the same aspect ratio and `at_least` as its short side."""
    width, height = size
    scale = at_least / min(size)
    return max(1, round(width * scale)), max(1, round(height * scale))


def _upright(image: Image.Image, orientation: int) -> Image.Image:
    transpose = _UPRIGHT_TRANSPOSE.get(orientation)
    return image if transpose is None else image.transpose(transpose)


def _orientation(image: Image.Image) -> int:
    try:
        return int(image.getexif().get(_ORIENTATION_TAG, 1))
    except Exception:  # a damaged EXIF record does not make an image unusable
        return 1


def _to_rgb(image: Image.Image) -> Image.Image:
    """Return an image as RGB, transparency over white; large images are converted in strips."""
    if image.mode == "RGB" and not image.has_transparency_data:
        return image
    limits = _limits(image) if image.mode in ("I", "F") else (0.0, 0.0)
    shift = _sample_bits(image) - 8
    if image.width * image.height <= STRIP_PIXELS:
        return _convert(image, limits, shift)
    converted = Image.new("RGB", image.size)
    for top, strip in _strips(image):
        converted.paste(_convert(strip, limits, shift), (0, top))
    return converted


def _strips(image: Image.Image) -> Iterator[tuple[int, Image.Image]]:
    """Yield parts of an image with their first row."""
    rows = max(1, STRIP_PIXELS // image.width)
    for top in range(0, image.height, rows):
        yield top, image.crop((0, top, image.width, min(image.height, top + rows)))


def _convert(image: Image.Image, limits: tuple[float, float], shift: int) -> Image.Image:
    if image.mode.startswith("I;16"):
        # The high byte, as Pillow does for 16-bit colour; its greyscale conversion clips to white.
        image = Image.fromarray(np.minimum(np.asarray(image) >> shift, 255).astype(np.uint8))
    elif image.mode in ("I", "F"):
        image = _stretch(image, *limits)
    if image.has_transparency_data:
        rgba = image.convert("RGBA")
        white = Image.new("RGBA", image.size, "white")
        return Image.alpha_composite(white, rgba).convert("RGB")
    return image if image.mode == "RGB" else image.convert("RGB")


def _limits(image: Image.Image) -> tuple[float, float]:
    """Return the smallest and the largest finite value."""
    low, high = math.inf, -math.inf
    for _, strip in _strips(image):
        values = np.nan_to_num(np.asarray(strip, dtype=np.float64))
        low, high = min(low, float(values.min())), max(high, float(values.max()))
    return low, high


def _stretch(image: Image.Image, low: float, high: float) -> Image.Image:
    """Scale values from low..high to 0..255: the modes I and F define no range."""
    values = np.nan_to_num(np.asarray(image, dtype=np.float64))
    scaled = (values - low) * (255 / (high - low)) if high > low else np.zeros_like(values)
    return Image.fromarray(scaled.round().astype(np.uint8))
