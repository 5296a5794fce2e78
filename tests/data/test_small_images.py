import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from scs_supcon.data.builtin import digits, shapes
from scs_supcon.data.dataset import ImageDataset
from scs_supcon.data.small_images import (
    CROP_TRIES,
    DRAWS,
    SmallImages,
    crop_boxes,
    load_small_images,
    make_views,
    random_numbers,
    resize_weights,
    rotate,
)
from scs_supcon.data.transforms import adjust_colours, eval_view, to_grey, train_view
from scs_supcon.recipe import DataRecipe

RNG = np.random.default_rng(0)
PLAIN = {"jitter": 0.0, "grayscale": 0.0, "flip": False, "in_memory": True}
BYTE = 1 / 255


def settings(**fields: object) -> DataRecipe:
    plain = DataRecipe(source="shapes", image_size=20, mean=(0, 0, 0), std=(1, 1, 1))
    return plain.model_copy(update={**PLAIN, **fields})


def smooth_images(count: int, width: int, height: int) -> list[Image.Image]:
    coarse = RNG.integers(0, 256, (count, 6, 8, 3), dtype=np.uint8)
    return [
        Image.fromarray(one).resize((width, height), Image.Resampling.BICUBIC) for one in coarse
    ]


def as_rows(images: list[Image.Image]) -> torch.Tensor:
    return torch.from_numpy(np.stack([np.asarray(one).transpose(0, 2, 1) for one in images]))


def as_tensor(image: Image.Image) -> torch.Tensor:
    return torch.from_numpy(np.array(image)).permute(2, 0, 1).float() / 255


def numbers(count: int, **columns: float) -> np.ndarray:
    """Random numbers of views, with given values for switches and colours."""
    names = ("flip", "angle", "jitter", "grey", "brightness", "contrast", "saturation", "hue")
    draws = random_numbers(3, 1, np.arange(count), np.zeros(count, int), np.zeros(count, int))
    for name, value in columns.items():
        draws[:, 2 * CROP_TRIES + 2 + names.index(name)] = value
    return draws


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize("size", [12, 31, 64])
def test_crop_resize_and_mirroring_match_pillow(interpolation: str, size: int) -> None:
    images = smooth_images(30, 40, 32)
    data = settings(image_size=size, interpolation=interpolation, flip=True)
    draws = numbers(30)
    views = make_views(as_rows(images), draws, data)
    boxes = np.stack(crop_boxes(draws[:, : 2 * CROP_TRIES + 2], 32, 40, data.crop_scale), 1)
    assert len({tuple(box) for box in boxes.tolist()}) == 30
    flips = draws[:, 2 * CROP_TRIES + 2] < 0.5
    assert 0 < flips.sum() < 30
    for image, view, (top, left, height, width), flip in zip(
        images, views, boxes.tolist(), flips, strict=True
    ):
        crop = image.crop((left, top, left + width, top + height))
        expected = crop.resize((size, size), Image.Resampling[interpolation.upper()])
        if flip:
            expected = expected.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        torch.testing.assert_close(view, as_tensor(expected), rtol=0, atol=2 * BYTE)


def plain_box(
    draws: list[float], height: int, width: int, scale: tuple[float, float]
) -> tuple[int, int, int, int]:
    """torchvision's RandomResizedCrop with given random numbers."""
    top, left = draws[2 * CROP_TRIES :]
    for share, shape in zip(draws[:CROP_TRIES], draws[CROP_TRIES : 2 * CROP_TRIES], strict=True):
        area = height * width * (scale[0] + (scale[1] - scale[0]) * share)
        ratio = math.exp(math.log(3 / 4) + (math.log(4 / 3) - math.log(3 / 4)) * shape)
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            return int(top * (height - h + 1)), int(left * (width - w + 1)), h, w
    w, h = width, height
    if width / height < 3 / 4:
        h = round(width / (3 / 4))
    elif width / height > 4 / 3:
        w = round(height * (4 / 3))
    return (height - h) // 2, (width - w) // 2, h, w


@pytest.mark.parametrize(("height", "width"), [(32, 32), (32, 40), (60, 9), (10, 64)])
@pytest.mark.parametrize("scale", [(0.2, 1.0), (0.9, 1.0)])
def test_crops_are_those_of_torchvision(
    height: int, width: int, scale: tuple[float, float]
) -> None:
    draws = RNG.random((200, 2 * CROP_TRIES + 2))
    boxes = np.stack(crop_boxes(draws, height, width, scale), 1).tolist()
    expected = [plain_box(row, height, width, scale) for row in draws.tolist()]
    assert [tuple(box) for box in boxes] == expected


def test_weights_are_zero_outside_of_the_crop() -> None:
    weights = resize_weights(np.array([5]), np.array([8]), 20, 16, "bicubic")[0]
    assert not weights[:, :5].any()
    assert not weights[:, 13:].any()
    np.testing.assert_allclose(weights.sum(1), 1, rtol=1e-6)


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize("degrees", [-30.0, 7.0])
def test_rotation_matches_pillow_inside_and_fills_corners(
    interpolation: str, degrees: float
) -> None:
    (image,) = smooth_images(1, 33, 33)
    view = rotate(as_tensor(image)[None], np.array([degrees]), interpolation)[0]
    expected = as_tensor(image.rotate(degrees, Image.Resampling[interpolation.upper()]))
    inside = slice(8, 25)
    # The cubic kernels differ: a = −1/2 in Pillow, −3/4 in torch.
    tolerance = (1.1 if interpolation == "bilinear" else 6) * BYTE
    torch.testing.assert_close(
        view[:, inside, inside], expected[:, inside, inside], rtol=0, atol=tolerance
    )
    pixels = np.asarray(image) / 255
    border = np.concatenate([pixels[0], pixels[-1], pixels[:, 0], pixels[:, -1]])
    if degrees < -20:
        np.testing.assert_allclose(view[:, 0, 0], np.median(border, axis=0), atol=1e-5)


def test_colours_are_those_of_single_views() -> None:
    images = smooth_images(6, 32, 32)
    rows = as_rows(images)
    draws = numbers(6, jitter=0.5)
    changed = make_views(rows, draws, settings(jitter=0.4))
    plain = make_views(rows, draws, settings())
    for one, before, draw in zip(changed, plain, draws[:, -4:].tolist(), strict=True):
        brightness, contrast, saturation = (0.6 + 0.8 * value for value in draw[:3])
        expected = adjust_colours(
            before,
            brightness=brightness,
            contrast=contrast,
            saturation=saturation,
            turn=0.1 * (2 * draw[3] - 1),
        )
        torch.testing.assert_close(one, expected)
    unchanged = make_views(rows, numbers(6, jitter=0.9), settings(jitter=0.4))
    torch.testing.assert_close(unchanged, plain)


def test_grey_views_are_those_of_single_views() -> None:
    rows, draws = as_rows(smooth_images(4, 32, 32)), numbers(4)
    draws[:2, 2 * CROP_TRIES + 5], draws[2:, 2 * CROP_TRIES + 5] = 0.1, 0.5
    plain = make_views(rows, draws, settings())
    grey = make_views(rows, draws, settings(grayscale=0.2))
    torch.testing.assert_close(grey[2:], plain[2:])
    torch.testing.assert_close(grey[:2], torch.stack([to_grey(one) for one in plain[:2]]))


def test_random_numbers_are_uniform_and_depend_on_every_part_of_the_key() -> None:
    images, zero = np.arange(4000), np.zeros(4000, int)
    draws = random_numbers(0, 0, images, zero, zero)
    assert draws.shape == (4000, DRAWS)
    assert draws.min() >= 0
    assert draws.max() < 1
    counts = np.histogram(draws, 20, (0, 1))[0]
    assert abs(counts / draws.size * 20 - 1).max() < 0.05
    assert abs(np.corrcoef(draws.T) - np.eye(DRAWS)).max() < 0.08
    assert abs(np.corrcoef(draws[:60])[np.triu_indices(60, 1)]).max() < 0.8
    others = [
        random_numbers(1, 0, images, zero, zero),
        random_numbers(0, 1, images, zero, zero),
        random_numbers(0, 0, images + 1, zero, zero),
        random_numbers(0, 0, images, zero + 1, zero),
        random_numbers(0, 0, images, zero, zero + 1),
    ]
    assert all((draws != other).all() for other in others)
    np.testing.assert_array_equal(random_numbers(0, 0, images[7:9], zero[:2], zero[:2]), draws[7:9])


def test_random_numbers_never_change() -> None:
    draws = random_numbers(5, 2, np.array([7]), np.array([1]), np.array([0]))
    np.testing.assert_allclose(draws[0, :3], RECORDED, rtol=0, atol=1e-15)


RECORDED = [0.31313789086627475, 0.3658384878825196, 0.17654147917127616]


def loaded(images: ImageDataset, **fields: object) -> SmallImages | None:
    return load_small_images(images, np.arange(3, 23), settings(**fields))


def test_a_view_depends_on_its_key_alone() -> None:
    small = loaded(shapes(per_class=5), jitter=0.4, grayscale=0.5, flip=True, rotate=5.0)
    assert small is not None
    positions, copies = np.array([4, 0, 9, 4]), np.array([0, 0, 0, 1])
    views = small.random_views(positions, copies, 2, seed=1, epoch=3)
    assert views.shape == (8, 3, 20, 20)
    single = small.random_views(positions[2:3], copies[2:3], 2, seed=1, epoch=3)
    assert torch.equal(single, views[[2, 6]])
    assert not torch.equal(views[0], views[3]), "copies differ"
    assert not torch.equal(views[0], views[4]), "views differ"


def test_evaluation_views_are_the_same_bytes() -> None:
    images = shapes(per_class=5)
    data = settings(image_size=24, crop_pct=0.8, mean=(0.1, 0.2, 0.3), std=(0.5, 0.6, 0.7))
    small = load_small_images(images, np.arange(3, 23), data)
    assert small is not None
    expected = torch.stack([eval_view(data)(images.open(index)) for index in range(3, 23)])
    assert torch.equal(small.normalise(small.eval_crops()), expected)


def test_views_have_the_distribution_of_single_views() -> None:
    """The means of many views agree, pixel by pixel."""
    images = digits()
    data = settings(image_size=16, rotate=20.0, crop_scale=(0.4, 1.0), jitter=0.3, grayscale=0.3)
    small = load_small_images(images, np.arange(30), data)
    assert small is not None
    everything, none = np.arange(30), np.zeros(30, int)
    batched = torch.cat([small.random_views(everything, none, 1, 0, epoch) for epoch in range(60)])
    torch.manual_seed(0)
    view = train_view(data)
    single = torch.stack([view(images.open(index)) for _ in range(60) for index in range(30)])
    torch.testing.assert_close(batched.mean(0), single.mean(0), rtol=0, atol=0.05)
    torch.testing.assert_close(batched.std(0), single.std(0), rtol=0, atol=0.05)


@pytest.mark.parametrize(
    "fields",
    [
        {"in_memory": False},
        {"augment": "trivial"},
        {"image_size": 65},
        {"blur": (0.0, 0.5)},
        {"solarize": (0.2,)},
        {"transform": "views.py:build"},
    ],
)
def test_other_views_are_made_one_by_one(fields: dict[str, object]) -> None:
    images = shapes(per_class=5)
    assert loaded(images) is not None
    assert loaded(images, **fields) is None


def test_images_of_different_or_large_size_are_not_held_in_memory() -> None:
    images = shapes(per_class=5)

    def resized(index: int, at_least: int = 0) -> Image.Image:
        return images.open(index).resize((32, 31)) if index == 9 else images.open(index)

    def long(index: int, at_least: int = 0) -> Image.Image:
        return images.open(index).resize((65, 32))

    assert loaded(replace(images, open=resized)) is None
    assert loaded(replace(images, open=long)) is None
    assert loaded(replace(images, native_size=65)) is None
