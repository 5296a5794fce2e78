import colorsys
import math
import multiprocessing
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader
from torchvision.transforms.v2 import functional as tv

from scs_supcon.data.builtin import shapes
from scs_supcon.data.dataset import ImageDataset
from scs_supcon.data.sampler import batch_keys, plan_epoch
from scs_supcon.data.transforms import (
    ViewDataset,
    adjust_colours,
    blur_pixels,
    eval_view,
    jitter_colours,
    probe_view,
    seeded,
    solarize_pixels,
    to_grey,
    train_view,
)
from scs_supcon.recipe import DataRecipe

SMALL = DataRecipe(source="shapes", image_size=16)
NOISE = Image.fromarray(
    np.random.default_rng(0).integers(0, 256, (6, 8, 3), dtype=np.uint8)
).resize((80, 60), Image.Resampling.BICUBIC)


def changed(**fields: object) -> DataRecipe:
    return SMALL.model_copy(update=fields)


@pytest.mark.parametrize("make", [train_view, probe_view, eval_view])
def test_a_view_is_a_normalised_square(make: object) -> None:
    white = Image.new("RGB", (40, 30), "white")
    recipe = changed(jitter=0.0, grayscale=0.0)
    view = make(recipe)(white)
    assert view.shape == (3, 16, 16)
    assert view.dtype == torch.float32
    assert view.is_contiguous()
    for channel in range(3):
        expected = (1 - recipe.mean[channel]) / recipe.std[channel]
        torch.testing.assert_close(view[channel], torch.full((16, 16), expected))


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize(("size", "crop_pct"), [(32, 0.875), (32, 1.0), (30, 0.9), (128, 0.95)])
def test_eval_view_matches_timm(interpolation: str, size: int, crop_pct: float) -> None:
    from timm.data import create_transform

    recipe = changed(image_size=size, crop_pct=crop_pct, interpolation=interpolation)
    theirs = create_transform(
        size, crop_pct=crop_pct, interpolation=interpolation, mean=recipe.mean, std=recipe.std
    )
    for image in (NOISE, NOISE.rotate(90, expand=True)):
        torch.testing.assert_close(eval_view(recipe)(image), theirs(image), atol=1e-5, rtol=1e-5)


def test_eval_view_is_not_random() -> None:
    view = eval_view(SMALL)
    before = torch.get_rng_state()
    assert torch.equal(view(NOISE), view(NOISE))
    assert torch.equal(torch.get_rng_state(), before)


def test_equal_seeds_result_in_equal_views() -> None:
    view = train_view(changed(rotate=20.0))
    views = []
    for numbers in [(0, 1, 2), (0, 1, 2), (0, 1, 3), (1, 1, 2)]:
        with seeded(*numbers):
            views.append(view(NOISE))
    assert torch.equal(views[0], views[1])
    assert not torch.equal(views[0], views[2])
    assert not torch.equal(views[0], views[3])


def test_probe_view_does_not_change_colours() -> None:
    orange = Image.new("RGB", (40, 30), (240, 150, 40))
    plain = eval_view(SMALL)(orange)
    loud = changed(jitter=1.0, grayscale=1.0, rotate=45.0)
    assert torch.equal(probe_view(loud)(orange), plain)
    assert not torch.equal(train_view(loud)(orange), plain)


def test_grey_views_have_the_given_share() -> None:
    recipe = changed(grayscale=0.5, jitter=0.0, mean=(0.5,) * 3, std=(0.5,) * 3)
    view = train_view(recipe)
    torch.manual_seed(0)
    grey = [torch.equal(pixels[0], pixels[1]) for pixels in (view(NOISE) for _ in range(200))]
    assert 70 < sum(grey) < 130


WHOLE = {
    "image_size": 60,
    "jitter": 0.0,
    "grayscale": 0.0,
    "flip": False,
    "crop_scale": (1.0, 1.0),
    "mean": (0.5,) * 3,
    "std": (0.5,) * 3,
}


def test_blur_and_solarisation_depend_on_the_number_of_the_view() -> None:
    square = NOISE.resize((60, 60))
    plain = train_view(changed(**WHOLE))(square)  # values from −1 to 1
    view = train_view(changed(**WHOLE, blur=(1.0, 0.0), solarize=(0.0, 1.0)))
    for number in (0, 2):
        with seeded(1):
            assert view(square, number).std() < 0.999 * plain.std()
    torch.testing.assert_close(view(square, 1), -plain.abs())
    assert torch.equal(view(square, 3), view.of_number(1)(square))
    assert view.of_number(2).blur == (1.0,)


def test_blurred_views_have_the_given_share() -> None:
    square = NOISE.resize((60, 60))
    plain, view = train_view(changed(**WHOLE))(square), train_view(changed(**WHOLE, blur=(0.3,)))
    torch.manual_seed(0)
    blurred = sum(not torch.equal(view(square), plain) for _ in range(200))
    assert 40 < blurred < 80


def test_blur_matches_the_formula() -> None:
    pixels = torch.zeros(3, 60, 60)
    pixels[:, 30, 30] = 1.0
    with seeded(4):
        sigma = (0.1 + 1.9 * float(torch.rand(()))) * 60 / 224
    with seeded(4):
        blurred = blur_pixels(pixels)
    offsets = torch.arange(-3.0, 4.0)
    kernel = torch.exp(-(offsets**2) / (2 * sigma**2))
    kernel /= kernel.sum()
    expected = torch.zeros(60, 60)
    expected[27:34, 27:34] = kernel[:, None] * kernel
    torch.testing.assert_close(blurred, expected.expand(3, 60, 60))


def test_solarisation_inverts_bright_values() -> None:
    values = torch.tensor([0.0, 0.25, 0.5, 0.75, 1.0])
    expected = torch.tensor([0.0, 0.25, 0.5, 0.25, 0.0])
    assert torch.equal(solarize_pixels(values), expected)


@pytest.mark.parametrize("augment", ["trivial", "rand"])
def test_augmentations_are_random_and_depend_on_the_seed_only(augment: str) -> None:
    view = train_view(changed(augment=augment, crop_scale=(1, 1), flip=False))
    square = NOISE.resize((60, 60))
    views = []
    for seed in (1, 1, *range(2, 40)):
        with seeded(seed):
            views.append(view(square))
    assert torch.equal(views[0], views[1])
    assert all(v.shape == (3, 16, 16) and v.dtype == torch.float32 for v in views)
    assert len({tuple(v.flatten().tolist()) for v in views}) > 15


@pytest.mark.parametrize("augment", ["trivial", "rand"])
def test_augmentations_replace_jitter_and_grey(augment: str) -> None:
    without = changed(augment=augment, jitter=0.0, grayscale=0.0)
    for seed in range(10):
        with seeded(seed):
            expected = train_view(without)(NOISE)
        with seeded(seed):
            assert torch.equal(train_view(changed(augment=augment))(NOISE), expected)


def test_augmentations_concern_stage_1_only() -> None:
    for make in (probe_view, eval_view):
        with seeded(3):
            expected = make(SMALL)(NOISE)
        with seeded(3):
            assert torch.equal(make(changed(augment="rand"))(NOISE), expected)


def test_flip_and_crop_can_be_switched_off() -> None:
    arrow = Image.fromarray(np.tile(np.arange(16, dtype=np.uint8)[:, None] * 16, (16, 1, 3)))
    still = {"jitter": 0.0, "grayscale": 0.0, "crop_scale": (1.0, 1.0)}
    torch.manual_seed(0)
    fixed = train_view(changed(flip=False, **still))
    assert all(torch.equal(fixed(arrow), fixed(arrow)) for _ in range(10))
    free = train_view(changed(flip=True, **still))
    views = [free(arrow) for _ in range(20)]
    mirrored = fixed(arrow).flip(-1)
    assert any(torch.equal(view, mirrored) for view in views)
    assert any(torch.equal(view, fixed(arrow)) for view in views)


def test_rotation_fills_the_corners_with_the_border() -> None:
    recipe = changed(rotate=45.0, jitter=0.0, grayscale=0.0, flip=False, crop_scale=(1.0, 1.0))
    digit = Image.new("RGB", (16, 16), "black")
    digit.paste("white", (7, 4, 9, 12))
    upright = eval_view(changed(crop_pct=1.0))(digit)
    torch.manual_seed(0)
    turned = train_view(recipe)(digit)
    assert torch.equal(turned[:, [0, 0, -1, -1], [0, -1, 0, -1]], upright[:, [0] * 4, [0] * 4])
    assert not torch.equal(turned, upright)


def test_seeded_restores_the_generator_and_depends_on_every_number() -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    numbers_inside = []
    for numbers in [(1, 23), (12, 3), (1, 2, 3), (123,), (-1, 23)]:
        with seeded(*numbers):
            numbers_inside.append(float(torch.rand(())))
    with pytest.raises(KeyError), seeded(1):
        raise KeyError
    assert len(set(numbers_inside)) == 5
    assert torch.equal(torch.rand(3), expected)


def rows(
    workers: int, keys: list[list[tuple[int, int, int]]], context: str | None = None
) -> list[tuple[torch.Tensor, ...]]:
    images = shapes(per_class=3)
    dataset = ViewDataset(images, np.arange(1, 17), train_view(SMALL), n_views=2, seed=3)
    loader = DataLoader(
        dataset,
        batch_sampler=keys,
        num_workers=workers,
        multiprocessing_context=multiprocessing.get_context(context) if workers else None,
    )
    return [tuple(batch) for batch in loader]


def same(a: list[tuple[torch.Tensor, ...]], b: list[tuple[torch.Tensor, ...]]) -> bool:
    return all(
        torch.equal(left, right)
        for one, other in zip(a, b, strict=True)
        for left, right in zip(one, other, strict=True)
    )


def epoch_keys(epoch: int, skip: int = 0) -> list[list[tuple[int, int, int]]]:
    labels = shapes(per_class=3).labels[1:17]
    plan = plan_epoch(labels, 6, kind="balanced", per_class=2, seed=3, epoch=epoch)
    return batch_keys(plan, epoch, skip=skip)


def test_items_are_views_label_and_index() -> None:
    views, labels, indices = rows(0, epoch_keys(0))[0]
    assert views.shape == (len(labels), 2, 3, 16, 16)
    assert not torch.equal(views[:, 0], views[:, 1])
    np.testing.assert_array_equal(labels.numpy(), shapes(per_class=3).labels[indices.numpy()])
    assert 0 not in indices


@pytest.mark.parametrize(
    ("workers", "context"), [(2, "fork"), pytest.param(1, "spawn", marks=pytest.mark.slow)]
)
def test_workers_return_the_same_batches(workers: int, context: str) -> None:
    torch.manual_seed(1)
    expected = rows(0, epoch_keys(0))
    torch.manual_seed(2)
    assert same(expected, rows(workers, epoch_keys(0), context))
    assert not same(expected, rows(0, epoch_keys(1)))


def test_a_resumed_epoch_has_the_same_batches() -> None:
    assert same(rows(0, epoch_keys(4))[1:], rows(0, epoch_keys(4, skip=1)))


def test_copies_of_an_image_have_different_views() -> None:
    dataset = ViewDataset(shapes(per_class=2), range(12), train_view(SMALL), n_views=1, seed=0)
    first, again = dataset[0, 5, 0], dataset[0, 5, 1]
    assert first[1:] == again[1:]
    assert not torch.equal(first[0], again[0])
    assert len(dataset) == 12


def test_an_image_is_decoded_once_and_no_larger_than_needed() -> None:
    requests: list[tuple[int, int]] = []
    images: ImageDataset = shapes(per_class=1)

    def watch(index: int, at_least: int = 0) -> Image.Image:
        requests.append((index, at_least))
        return images.open(index)

    recipe = changed(crop_scale=(0.2, 1.0), image_size=224)
    view = train_view(recipe)
    ViewDataset(replace(images, open=watch), [3], view, n_views=4, seed=0)[0, 0]
    assert requests == [(3, 579)]
    assert 579 * np.sqrt(0.2 * 3 / 4) >= 224  # the smallest, narrowest crop
    assert eval_view(recipe).at_least == 0


STILL = {"brightness": 1.0, "contrast": 1.0, "saturation": 1.0, "turn": 0.0}


@pytest.fixture
def pixels() -> Tensor:
    """Colours far enough from black and white that small changes are not clipped."""
    return 0.35 + 0.3 * torch.rand(3, 12, 10, generator=torch.Generator().manual_seed(0))


def test_factors_of_one_change_nothing(pixels: Tensor) -> None:
    torch.testing.assert_close(adjust_colours(pixels, **STILL), pixels)


@pytest.mark.parametrize("factor", [0.7, 1.2])
@pytest.mark.parametrize("name", ["brightness", "contrast", "saturation"])
def test_each_factor_matches_torchvision(pixels: Tensor, name: str, factor: float) -> None:
    theirs = getattr(tv, f"adjust_{name}")(pixels, factor)
    torch.testing.assert_close(
        adjust_colours(pixels, **STILL | {name: factor}), theirs, atol=2e-4, rtol=0
    )


@pytest.mark.parametrize("turn", [-0.1, 0.05, 0.1])
def test_hue_rotates_and_the_sum_of_the_channels_is_kept(pixels: Tensor, turn: float) -> None:
    turned = adjust_colours(pixels, **STILL | {"turn": turn})
    torch.testing.assert_close(turned.sum(dim=0), pixels.sum(dim=0))
    for before, after in zip(
        pixels.flatten(1).T.tolist(), turned.flatten(1).T.tolist(), strict=True
    ):
        moved = colorsys.rgb_to_hsv(*after)[0] - colorsys.rgb_to_hsv(*before)[0] - turn
        # The hue of HSV follows a hexagon, this one a circle.
        assert abs((moved + 0.5) % 1 - 0.5) < 0.01


def test_a_third_of_a_turn_turns_red_into_green(pixels: Tensor) -> None:
    turned = adjust_colours(pixels, **STILL | {"turn": 1 / 3})
    torch.testing.assert_close(turned, pixels[[2, 0, 1]])


def test_combined_changes_match_the_formula() -> None:
    """Compute every pixel in a plain loop, one change after the other."""
    pixels = torch.tensor([[0.2, 0.6], [0.5, 0.4], [0.3, 0.7]]).view(3, 1, 2)
    b, c, s, turn = 1.1, 0.8, 1.3, 0.02
    adjusted = adjust_colours(pixels, brightness=b, contrast=c, saturation=s, turn=turn)
    luma = (0.299, 0.587, 0.114)
    columns = [[float(pixels[channel, 0, x]) for channel in range(3)] for x in range(2)]
    mean_grey = sum(w * sum(p[i] for p in columns) / 2 for i, w in enumerate(luma))
    cosine, sine = math.cos(2 * math.pi * turn), math.sin(2 * math.pi * turn)
    for x, (red, green, blue) in enumerate(columns):
        middle = (red + green + blue) / 3
        cross = [(blue - green), (red - blue), (green - red)]  # (1, 1, 1) × colour
        turned = [
            value * cosine + cross[i] / math.sqrt(3) * sine + middle * (1 - cosine)
            for i, value in enumerate((red, green, blue))
        ]
        grey = sum(w * value for w, value in zip(luma, turned, strict=True))
        for i, value in enumerate(turned):
            expected = c * b * (s * value + (1 - s) * grey) + (1 - c) * b * mean_grey
            assert float(adjusted[i, 0, x]) == pytest.approx(expected, abs=1e-6)


def test_values_outside_the_range_are_clipped(pixels: Tensor) -> None:
    bright = adjust_colours(pixels, **STILL | {"brightness": 10.0})
    assert bright.max() == 1
    assert adjust_colours(pixels, **STILL | {"contrast": 50.0}).min() == 0


def test_grey_keeps_the_luminance(pixels: Tensor) -> None:
    grey = to_grey(pixels)
    assert grey.shape == pixels.shape
    torch.testing.assert_close(grey[0], 0.299 * pixels[0] + 0.587 * pixels[1] + 0.114 * pixels[2])
    assert torch.equal(grey[0], grey[1])
    assert torch.equal(grey[0], grey[2])
    assert grey.is_contiguous()


def test_jitter_covers_its_range() -> None:
    torch.manual_seed(0)
    flat = torch.full((3, 2, 2), 0.5)  # contrast, saturation and hue do not change a flat grey
    light = torch.stack([jitter_colours(flat, 0.4)[0, 0, 0] for _ in range(400)]) / 0.5
    assert 0.6 - 1e-6 <= light.min() < 0.62
    assert 1.38 < light.max() <= 1.4 + 1e-6
    torch.testing.assert_close(light.mean(), torch.tensor(1.0), atol=0.04, rtol=0)
    assert torch.equal(jitter_colours(flat, 0.0), flat)
