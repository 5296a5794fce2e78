"""Views of images: random crops and colours for training, a centre crop for evaluation.

The random numbers of a view depend only on (seed, epoch, image, view), so neither the number of
workers nor a restart changes a view.
"""

import hashlib
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset

from scs_supcon.data.crop import CentreCrop
from scs_supcon.data.dataset import ImageDataset
from scs_supcon.data.own_transform import own_transform
from scs_supcon.recipe import DataRecipe
from scs_supcon.recipe.schema import Augment

JITTER_CHANCE = 0.8
BLUR_SIGMAS, BLUR_SIDE = (0.1, 2.0), 224  # smallest and largest blur of a view of this side
LUMA = torch.tensor([0.299, 0.587, 0.114])  # luminance of red, green and blue (ITU-R 601)
MIN_ASPECT_RATIO = 3 / 4  # random crops have aspect ratios between 3:4 and 4:3


@dataclass(frozen=True, eq=False)
class View:
    """Converts an image to a view, a normalised float32 tensor (3, size, size).

    Attributes:
        crop: Crops, mirrors and resizes an image.
        mean: Mean that is subtracted from each channel.
        std: Standard deviation that each channel is divided by.
        jitter: Strength of the colour jitter.
        grayscale: Share of grey views.
        blur: Shares of blurred views: of the first view of an image, the second, … in turn.
        solarize: Shares of solarised views, likewise.
        at_least: Short side in pixels that suffices for the view; 0 for the full image.
    """

    crop: Callable[[Image.Image], Image.Image | Tensor]
    mean: Tensor
    std: Tensor
    jitter: float = 0.0
    grayscale: float = 0.0
    blur: tuple[float, ...] = (0.0,)
    solarize: tuple[float, ...] = (0.0,)
    at_least: int = 0

    def __call__(self, image: Image.Image, number: int = 0) -> Tensor:
        """Return the view; `number` says which view of the image it is, counted from 0."""
        view = self.crop(image)
        pixels = view.float() if isinstance(view, Tensor) else _to_tensor(view)
        if self.jitter and torch.rand(()) < JITTER_CHANCE:
            pixels = jitter_colours(pixels, self.jitter)
        if _happens(self.grayscale):
            pixels = to_grey(pixels)
        if _happens(self.blur[number % len(self.blur)]):
            pixels = blur_pixels(pixels)
        if _happens(self.solarize[number % len(self.solarize)]):
            pixels = solarize_pixels(pixels)
        return (pixels - self.mean).div_(self.std)

    def of_number(self, number: int) -> "View":
        """Return the view of an image with this number, counted from 0."""
        shares = (shares[number % len(shares)] for shares in (self.blur, self.solarize))
        blur, solarize = ((share,) for share in shares)
        return replace(self, blur=blur, solarize=solarize)


@dataclass(frozen=True)
class Rotate:
    """Rotates by at most ± `degrees`; corners get the median colour of the border."""

    degrees: float
    resample: Image.Resampling

    def __call__(self, image: Image.Image) -> Image.Image:
        angle = self.degrees * (2 * float(torch.rand(())) - 1)
        pixels = np.asarray(image)
        border = np.concatenate([pixels[0], pixels[-1], pixels[:, 0], pixels[:, -1]])
        red, green, blue = (int(value) for value in np.median(border, axis=0))
        return image.rotate(angle, self.resample, fillcolor=(red, green, blue))


def train_view(data: DataRecipe) -> View:
    """Return the view of stage 1: random crop, mirroring, rotation, and `data.augment`.

    TrivialAugment (one random change of random strength) and RandAugment (two changes of medium
    strength) replace colour jitter, grey, blur and solarisation; a transform of the user replaces
    everything.
    """
    if data.transform is not None:
        return View(own_transform(data.transform, data.image_size), *_channels(data))
    colours = data.augment == "jitter"
    return View(
        _random_crop(data, rotate=data.rotate, augment=data.augment),
        *_channels(data),
        jitter=data.jitter if colours else 0.0,
        grayscale=data.grayscale if colours else 0.0,
        blur=data.blur if colours else (0.0,),
        solarize=data.solarize if colours else (0.0,),
        at_least=_size_for_crops(data),
    )


def probe_view(data: DataRecipe) -> View:
    """Return the view of stage 2: random crop and mirroring."""
    return View(_random_crop(data), *_channels(data), at_least=_size_for_crops(data))


def eval_view(data: DataRecipe) -> View:
    """Return the view for evaluation, without randomness: resize the short side, centre crop."""
    return View(centre_crop(data), *_channels(data))


def centre_crop(data: DataRecipe) -> CentreCrop:
    """Return the crop of the view for evaluation."""
    resized = math.floor(data.image_size / data.crop_pct)
    return CentreCrop(resized, data.image_size, data.interpolation)


@contextmanager
def seeded(seed: int, *numbers: int) -> Iterator[None]:
    """Seed torch's random numbers inside the context, and restore their state afterwards.

    Only the CPU generator is changed: `torch.manual_seed` would also reset the accelerators.
    """
    text = ",".join(str(int(number)) for number in (seed, *numbers))
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    generator = torch.default_generator
    before = generator.get_state()
    generator.manual_seed(int.from_bytes(digest, "little"))
    try:
        yield
    finally:
        generator.set_state(before)


class ViewDataset(Dataset[tuple[Tensor, int, int]]):
    """Random views of images, each of which is decoded once per item.

    Keys are (epoch, position) or (epoch, position, copy), as returned by `batch_keys`. An item is
    the views (V, 3, size, size), the label, and the index of the image in the dataset.
    """

    def __init__(
        self,
        images: ImageDataset,
        indices: Sequence[int] | np.ndarray[tuple[int], np.dtype[np.int64]],
        transform: View,
        n_views: int,
        seed: int,
    ) -> None:
        self.images = images
        self.indices = np.asarray(indices, dtype=np.int64)
        self.transform = transform
        self.n_views = n_views
        self.seed = seed

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, key: tuple[int, ...]) -> tuple[Tensor, int, int]:
        epoch, position, *copy = key
        index = int(self.indices[position])
        image = self.images.open(index, self.transform.at_least)
        views = []
        for view in range(self.n_views):
            with seeded(self.seed, epoch, index, view, *copy):
                views.append(self.transform(image, view))
        return torch.stack(views), int(self.images.labels[index]), index


def _happens(share: float) -> bool:
    """Return True with probability `share`; 0 draws no random number."""
    return share > 0 and bool(torch.rand(()) < share)


def _to_tensor(image: Image.Image) -> Tensor:
    """Return an image as floats (3, height, width) from 0 to 1."""
    pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1)
    return pixels.to(torch.float32, memory_format=torch.contiguous_format).div_(255)


def _random_crop(
    data: DataRecipe, rotate: float = 0.0, augment: Augment = "jitter"
) -> Callable[[Image.Image], Image.Image]:
    from torchvision.transforms import InterpolationMode, v2

    interpolation = _torch_interpolation(data)
    steps: list[Callable[..., Image.Image]] = [
        v2.RandomResizedCrop(
            data.image_size,
            data.crop_scale,
            (MIN_ASPECT_RATIO, 1 / MIN_ASPECT_RATIO),
            interpolation,
        )
    ]
    if data.flip:
        steps.append(v2.RandomHorizontalFlip())
    if rotate:
        steps.append(Rotate(rotate, Image.Resampling[data.interpolation.upper()]))
    if augment != "jitter":
        make = {"trivial": v2.TrivialAugmentWide, "rand": v2.RandAugment}[augment]
        # What is moved into the image has the mean colour, which is 0 after normalisation.
        fill = [round(255 * mean) for mean in data.mean]
        steps.append(make(interpolation=InterpolationMode.BILINEAR, fill=fill))
    crop: Callable[[Image.Image], Image.Image] = v2.Compose(steps)
    return crop


def _torch_interpolation(data: DataRecipe) -> object:
    from torchvision.transforms import InterpolationMode

    return InterpolationMode(data.interpolation)


def _channels(data: DataRecipe) -> tuple[Tensor, Tensor]:
    mean, std = torch.tensor(data.mean), torch.tensor(data.std)
    return mean.view(3, 1, 1), std.view(3, 1, 1)


def _size_for_crops(data: DataRecipe) -> int:
    """Return the smallest short side of an image for which no random crop is enlarged."""
    return math.ceil(data.image_size / math.sqrt(data.crop_scale[0] * MIN_ASPECT_RATIO))


def jitter_colours(pixels: Tensor, strength: float) -> Tensor:
    """Vary brightness, contrast and saturation by ± strength, hue by ± strength / 4 of a turn.

    torchvision's `ColorJitter` applies the four changes one after the other, and rounds and clips
    after each, which takes most of the time of a view. Here they are one affine map of the three
    channels, clipped once. Brightness, contrast and saturation are the same maps (without clipping
    they commute, so their order need not be random). Hue rotates by the same angle, but about the
    grey axis, which preserves the sum of the channels; HSV preserves their maximum and minimum.

    Args:
        pixels: Image (3, height, width) with values from 0 to 1.
        strength: Factors are sampled from [max(0, 1 − strength), 1 + strength].
    """
    brightness, contrast, saturation, hue = torch.rand(4).tolist()
    low, span = max(0.0, 1 - strength), 1 + strength - max(0.0, 1 - strength)
    return adjust_colours(
        pixels,
        brightness=low + span * brightness,
        contrast=low + span * contrast,
        saturation=low + span * saturation,
        turn=strength / 4 * (2 * hue - 1),
    )


def adjust_colours(
    pixels: Tensor, *, brightness: float, contrast: float, saturation: float, turn: float
) -> Tensor:
    """Return pixels with changed brightness, contrast and saturation, and rotated hue."""
    matrix = (brightness * contrast) * (_saturate(saturation) @ _turn(turn))
    grey = LUMA @ pixels.mean(dim=(1, 2))
    offset = (brightness * (1 - contrast) * grey).expand(3, 1)
    changed = torch.addmm(offset, matrix, pixels.flatten(1))
    return changed.clamp_(0, 1).view_as(pixels)


def to_grey(pixels: Tensor) -> Tensor:
    """Return the luminance as three equal channels."""
    return (LUMA @ pixels.flatten(1)).view(1, *pixels.shape[1:]).repeat(3, 1, 1)


def blur_pixels(pixels: Tensor) -> Tensor:
    """Blur by a Gaussian whose standard deviation is 0.1 to 2 pixels, for views of 224 pixels.

    As in SimCLR and BYOL, the kernel covers a tenth of the view, and the range is uniform. It is
    scaled with the size of the view.
    """
    from torchvision.transforms.v2 import functional

    side = pixels.shape[-1]
    kernel = side // 20 * 2 + 1  # odd
    low, high = (sigma * side / BLUR_SIDE for sigma in BLUR_SIGMAS)
    sigma = low + (high - low) * float(torch.rand(()))
    blurred: Tensor = functional.gaussian_blur(pixels, [kernel, kernel], [sigma, sigma])
    return blurred


def solarize_pixels(pixels: Tensor) -> Tensor:
    """Invert the values from one half on: bright parts become dark."""
    return torch.where(pixels >= 0.5, 1 - pixels, pixels)


def _saturate(factor: float) -> Tensor:
    return factor * torch.eye(3) + (1 - factor) * LUMA.expand(3, 3)


def _turn(turn: float) -> Tensor:
    """Return the rotation about (1, 1, 1) that moves the hue by `turn` of the full circle."""
    cosine, sine = math.cos(2 * math.pi * turn), math.sin(2 * math.pi * turn)
    same, up, down = (
        (1 + 2 * cosine) / 3,
        (1 - cosine) / 3 + sine / math.sqrt(3),
        (1 - cosine) / 3 - sine / math.sqrt(3),
    )
    return torch.tensor([[same, down, up], [up, same, down], [down, up, same]])
