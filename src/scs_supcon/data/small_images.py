"""Random views of small images that are held in memory, computed for a whole batch at once.

For images of 32 pixels, the calls of Pillow and torch for each view take longer than a small
encoder. Here they are a few operations for the whole batch: crop, resize and mirror are two matrix
products, colours a third. The views are distributed as those of `transforms.train_view`, and the
random numbers of a view depend only on (seed, epoch, image, view), too. Pixels are not rounded to
bytes in between.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from scs_supcon.data.dataset import ImageDataset
from scs_supcon.data.transforms import JITTER_CHANCE, LUMA, MIN_ASPECT_RATIO, centre_crop
from scs_supcon.recipe import DataRecipe

MAX_SIDE = 64  # of images and views; larger ones cost more in the encoder than here
MAX_BYTES = 2**30
CROP_TRIES = 10  # as torchvision's RandomResizedCrop
DRAWS = 2 * CROP_TRIES + 10  # random numbers of one view

Numbers = NDArray[np.float64]
Integers = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class SmallImages:
    """Images of equal size in memory.

    Attributes:
        pixels: Bytes (n, height, 3, width); with this order, both products need no copies.
        indices: (n,) index of each image in its dataset, from which its random numbers follow.
        data: Settings of the views.
    """

    pixels: Tensor
    indices: Integers
    data: DataRecipe

    def random_views(
        self, positions: Integers, copies: Integers, views: int, seed: int, epoch: int
    ) -> Tensor:
        """Return views (views × n, 3, size, size) of the images at n positions.

        Args:
            positions: Rows of `pixels`.
            copies: Which visit in this epoch it is, for positions that are visited repeatedly.
            views: Number of views of each image; all first views come first.
            seed: Seed of the run.
            epoch: Number of the epoch.
        """
        rows = np.tile(positions, views)
        numbers = np.repeat(np.arange(views), len(positions))
        draws = random_numbers(seed, epoch, self.indices[rows], numbers, np.tile(copies, views))
        return make_views(self.pixels[torch.from_numpy(rows)], draws, self.data)

    def eval_crops(self) -> Tensor:
        """Return the centre crops (n, 3, size, size) of the evaluation view, as bytes."""
        crop = centre_crop(self.data)
        images = (Image.fromarray(image) for image in self.pixels.transpose(2, 3).numpy())
        crops = np.stack([np.asarray(crop(image)) for image in images])
        return torch.from_numpy(crops).permute(0, 3, 1, 2)

    def normalise(self, crops: Tensor) -> Tensor:
        """Return bytes (n, 3, size, size) as the views that `transforms.View` makes of them."""
        pixels = crops.to(torch.float32, memory_format=torch.contiguous_format).div_(255)
        return _normalise(pixels, self.data)


def load_small_images(
    images: ImageDataset, indices: Integers, data: DataRecipe
) -> SmallImages | None:
    """Return the images in memory; None if they are too large or differ in size.

    None also if the recipe does not ask for it, or asks for views that are made one by one.
    """
    supported = data.augment == "jitter" and data.transform is None
    supported = supported and not any(data.blur) and not any(data.solarize)
    if not (data.in_memory and supported) or not len(indices):
        return None
    if max(images.native_size, data.image_size) > MAX_SIDE:
        return None
    first = images.open(int(indices[0]))
    if max(first.size) > MAX_SIDE or first.width * first.height * 3 * len(indices) > MAX_BYTES:
        return None
    pixels = np.empty((len(indices), first.height, 3, first.width), dtype=np.uint8)
    for row, index in enumerate(indices):
        image = images.open(int(index))
        if image.size != first.size:
            return None
        pixels[row] = np.asarray(image).transpose(0, 2, 1)
    return SmallImages(torch.from_numpy(pixels), np.asarray(indices, dtype=np.int64), data)


def random_numbers(
    seed: int, epoch: int, images: Integers, views: Integers, copies: Integers
) -> Numbers:
    """Return numbers (n, DRAWS) in [0, 1) that depend on each (seed, epoch, image, view, copy).

    SplitMix64 (Steele, Lea, Flood 2014): a hash of the key is the state that a stream starts from.
    """
    state = np.zeros(len(images), dtype=np.uint64)
    for part in (seed, epoch, images, views, copies):
        state = _mix((state + _GOLDEN) ^ np.asarray(part).astype(np.uint64))
    steps = np.arange(1, DRAWS + 1, dtype=np.uint64) * _GOLDEN
    bits = _mix(state[:, None] + steps) >> np.uint64(11)
    return bits.astype(np.float64) * 2.0**-53


_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def _mix(state: NDArray[np.uint64]) -> NDArray[np.uint64]:
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))


def make_views(pixels: Tensor, draws: Numbers, data: DataRecipe) -> Tensor:
    """Return the views (n, 3, size, size) of bytes (n, height, 3, width) for given numbers."""
    height, width, size = pixels.shape[1], pixels.shape[3], data.image_size
    crop, switches, colours = np.split(draws, (2 * CROP_TRIES + 2, DRAWS - 4), axis=1)
    flip, angle, jitter, grey = switches.T
    top, left, rows, columns = crop_boxes(crop, height, width, data.crop_scale)
    down = resize_weights(top, rows, height, size, data.interpolation)
    across = resize_weights(left, columns, width, size, data.interpolation)
    if data.flip:
        across = np.where((flip < 0.5)[:, None, None], across[:, ::-1], across)
    n = len(pixels)
    floats = pixels.to(torch.float32).reshape(n, height, 3 * width)
    resized = torch.bmm(torch.from_numpy(down).div_(255), floats).view(n, size * 3, width)
    resized = torch.bmm(resized, torch.from_numpy(across).transpose(1, 2))
    views = resized.view(n, size, 3, size).transpose(1, 2).contiguous()
    if data.interpolation == "bicubic":  # overshoots at edges
        views.clamp_(0, 1)
    if data.rotate:
        views = rotate(views, data.rotate * (2 * angle - 1), data.interpolation)
    if data.jitter:
        views = _jitter(views, jitter < JITTER_CHANCE, colours, data.jitter)
    if data.grayscale:
        chosen = torch.from_numpy(grey < data.grayscale)
        luminance = torch.einsum("c,nchw->nhw", LUMA, views[chosen])
        views[chosen] = luminance[:, None].expand(-1, 3, -1, -1)
    return _normalise(views, data)


def crop_boxes(
    draws: Numbers, height: int, width: int, scale: tuple[float, float]
) -> tuple[Integers, Integers, Integers, Integers]:
    """Return top, left, height and width of random crops, as torchvision's RandomResizedCrop."""
    share, shape, position = np.split(draws, (CROP_TRIES, 2 * CROP_TRIES), axis=1)
    area = height * width * (scale[0] + (scale[1] - scale[0]) * share)
    ratio = MIN_ASPECT_RATIO ** (1 - 2 * shape)  # uniform in the logarithm
    columns = np.round(np.sqrt(area * ratio)).astype(np.int64)
    rows = np.round(np.sqrt(area / ratio)).astype(np.int64)
    fits = (columns > 0) & (columns <= width) & (rows > 0) & (rows <= height)
    first = (np.arange(len(draws)), fits.argmax(1))
    # If no try fits: the largest crop in the centre whose aspect ratio is allowed.
    widest = min(width, round(height / MIN_ASPECT_RATIO))
    highest = min(height, round(width / MIN_ASPECT_RATIO))
    some = fits.any(1)
    rows, columns = np.where(some, rows[first], highest), np.where(some, columns[first], widest)
    top, left = (
        np.where(some, np.floor(u * (side - length + 1)), (side - length) // 2).astype(np.int64)
        for u, side, length in zip(position.T, (height, width), (rows, columns), strict=True)
    )
    return top, left, rows, columns


def resize_weights(
    start: Integers, length: Integers, side: int, size: int, interpolation: str
) -> NDArray[np.float32]:
    """Return matrices (n, size, side) that crop and resize one axis, as Pillow does.

    Each result is a weighted mean of the pixels of the crop around its centre. If the crop is
    reduced, the filter is widened by the same factor.
    """
    step = (length / size).astype(np.float32)[:, None, None]
    centres = start[:, None, None] + (np.arange(size, dtype=np.float32) + 0.5)[:, None] * step
    pixels = np.arange(side, dtype=np.float32) + np.float32(0.5)
    distance = np.abs(pixels - centres.astype(np.float32)) / np.maximum(step, 1)
    weights: NDArray[np.float32] = (
        _cubic(distance) if interpolation == "bicubic" else np.maximum(0, 1 - distance)
    )
    first, last = start[:, None, None], (start + length)[:, None, None]
    weights *= (pixels > first) & (pixels < last)
    weights /= weights.sum(2, keepdims=True)
    return weights


def _cubic(x: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return Keys' cubic kernel with a = −1/2."""
    near = (1.5 * x - 2.5) * x * x + 1
    far = ((-0.5 * x + 2.5) * x - 4) * x + 2
    return np.where(x < 1, near, np.where(x < 2, far, 0)).astype(np.float32)


def rotate(views: Tensor, degrees: Numbers, interpolation: str) -> Tensor:
    """Rotate counter-clockwise; corners get the median colour of the border."""
    edges = (views[:, :, 0], views[:, :, -1], views[:, :, :, 0], views[:, :, :, -1])
    border = torch.cat(edges, 2).sort(2).values
    middle = border.shape[2] // 2
    fill = border[:, :, middle - 1 : middle + 1].mean(2)[:, :, None, None]
    angle = torch.from_numpy(np.radians(degrees)).float()
    cosine, sine, zero = angle.cos(), angle.sin(), torch.zeros_like(angle)
    maps = torch.stack([cosine, -sine, zero, sine, cosine, zero], 1).view(-1, 2, 3)
    grid = F.affine_grid(maps, list(views.shape), align_corners=False)
    rotated = F.grid_sample(
        views, grid, mode=interpolation, padding_mode="border", align_corners=False
    )
    inside = (grid.abs() <= 1).all(3)[:, None]
    return torch.where(inside, rotated.clamp_(0, 1), fill)


def _jitter(views: Tensor, changed: NDArray[np.bool_], draws: Numbers, strength: float) -> Tensor:
    """Vary the colours of some views, as `transforms.jitter_colours`."""
    low = max(0.0, 1 - strength)
    factors = np.where(changed[:, None], low + (1 + strength - low) * draws[:, :3], 1.0)
    brightness, contrast, saturation = torch.from_numpy(factors).float().T
    turn = torch.from_numpy(np.where(changed, strength / 4 * (2 * draws[:, 3] - 1), 0.0)).float()
    matrix = (brightness * contrast)[:, None, None] * (_saturate(saturation) @ _turn(turn))
    grey = views.mean((2, 3)) @ LUMA
    offset = (brightness * (1 - contrast) * grey)[:, None, None]
    result = torch.baddbmm(offset, matrix, views.flatten(2))
    return result.clamp_(0, 1).view_as(views)


def _saturate(factor: Tensor) -> Tensor:
    factor = factor[:, None, None]
    return factor * torch.eye(3) + (1 - factor) * LUMA.expand(3, 3)


def _turn(turn: Tensor) -> Tensor:
    """Return rotations about the grey axis, as for one view in `transforms`."""
    cosine, sine = (2 * math.pi * turn).cos(), (2 * math.pi * turn).sin()
    same = (1 + 2 * cosine) / 3
    up, down = ((1 - cosine) / 3 + sign * sine / math.sqrt(3) for sign in (1, -1))
    rows = [same, down, up, up, same, down, down, up, same]
    return torch.stack(rows, 1).view(-1, 3, 3)


def _normalise(pixels: Tensor, data: DataRecipe) -> Tensor:
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (data.mean, data.std))
    return pixels.sub_(mean).div_(std)
