"""Shifted copies of images: blurred, noisy, darker, brighter, rotated. Deterministic per image."""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
from PIL import Image, ImageEnhance, ImageFilter

from scs_supcon.data.dataset import ImageDataset
from scs_supcon.data.image_io import check_unchanged

LEVELS = ("mild", "medium", "strong")
Change = Callable[[Image.Image, float, np.random.Generator], Image.Image]


def _blur(image: Image.Image, strength: float, rng: np.random.Generator) -> Image.Image:
    return image.filter(ImageFilter.GaussianBlur(strength * min(image.size)))


def _add_noise(image: Image.Image, strength: float, rng: np.random.Generator) -> Image.Image:
    pixels = np.asarray(image, dtype=np.float64)
    noisy = pixels + 255 * strength * rng.standard_normal(pixels.shape)
    return Image.fromarray(noisy.round().clip(0, 255).astype(np.uint8))


def _scale_brightness(image: Image.Image, factor: float, rng: np.random.Generator) -> Image.Image:
    return ImageEnhance.Brightness(image).enhance(factor)


def _rotate(image: Image.Image, degrees: float, rng: np.random.Generator) -> Image.Image:
    pixels = np.asarray(image)
    border = np.concatenate([pixels[0], pixels[-1], pixels[:, 0], pixels[:, -1]])
    red, green, blue = (int(value) for value in np.median(border, axis=0))
    angle = degrees if rng.integers(2) else -degrees
    return image.rotate(angle, Image.Resampling.BILINEAR, fillcolor=(red, green, blue))


@dataclass(frozen=True)
class ImageShift:
    """A change of images in three strengths.

    Attributes:
        change: changes one image.
        strengths: mild, medium and strong: see `unit`.
        unit: what the strength is.
    """

    change: Change
    strengths: tuple[float, float, float]
    unit: str


SHIFTS: Mapping[str, ImageShift] = {
    "blur": ImageShift(_blur, (0.005, 0.01, 0.02), "σ as a share of the short side"),
    "noise": ImageShift(_add_noise, (0.04, 0.08, 0.16), "σ as a share of white"),
    "darker": ImageShift(_scale_brightness, (0.7, 0.5, 0.3), "factor of the brightness"),
    "brighter": ImageShift(_scale_brightness, (1.3, 1.6, 2.0), "factor of the brightness"),
    "rotated": ImageShift(_rotate, (10.0, 20.0, 40.0), "degrees to either side"),
}


@dataclass(frozen=True)
class ShiftedImages:
    """Opens the images of a dataset and changes each of them."""

    images: ImageDataset
    name: str
    level: int

    def open(self, index: int, at_least: int = 0, sha256: str = "") -> Image.Image:
        original = self.images.file_hash(index) if sha256 else ""
        if sha256:
            check_unchanged(self.images.names[index], self._hash(original), sha256)
        # Always the full image: the size at which a JPEG is decoded would change the blur.
        image = self.images.open(index, 0, original)
        shift = SHIFTS[self.name]
        return shift.change(image, shift.strengths[self.level], self._random(index))

    def file_hash(self, index: int) -> str:
        return self._hash(self.images.file_hash(index))

    def _hash(self, original: str) -> str:
        return hashlib.sha256(f"{original} {self.name} {self.level}".encode()).hexdigest()

    def _random(self, index: int) -> np.random.Generator:
        digest = hashlib.sha256(f"{self.images.names[index]} {self.name}".encode()).digest()
        return np.random.default_rng(int.from_bytes(digest[:8], "little"))


def shifted(images: ImageDataset, name: str, level: int) -> ImageDataset:
    """Return the dataset with shifted images.

    Args:
        images: the dataset.
        name: key of `SHIFTS`.
        level: 0 (mild), 1 (medium) or 2 (strong).
    """
    reader = ShiftedImages(images, name, level)
    return replace(images, open=reader.open, file_hash=reader.file_hash, paths=None)
