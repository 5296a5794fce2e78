import io
from collections.abc import Callable

import numpy as np
import pytest
from PIL import Image, ImageEnhance

from scs_supcon.data.builtin import digits, shapes
from scs_supcon.data.near_duplicates import Pair, near_duplicates, thumbnail

Scene = Callable[..., Image.Image]
Change = Callable[[Image.Image], Image.Image]


def small(images: list[Image.Image]) -> np.ndarray:
    return np.stack([thumbnail(image) for image in images])


def encoded_again(image: Image.Image) -> Image.Image:
    file = io.BytesIO()
    image.save(file, "JPEG", quality=30)
    return Image.open(file)


CHANGES: dict[str, Change] = {
    "encoded again": encoded_again,
    "resized": lambda image: image.resize((60, 45)),
    "squared": lambda image: image.resize((64, 64)),
    "cropped": lambda image: image.crop((4, 3, 116, 87)),
    "cropped at a corner": lambda image: image.crop((6, 5, 120, 90)),
    "brighter": lambda image: ImageEnhance.Brightness(image).enhance(1.2),
    "darker": lambda image: ImageEnhance.Brightness(image).enhance(0.7),
    "more contrast": lambda image: ImageEnhance.Contrast(image).enhance(1.3),
    "grey": lambda image: image.convert("L"),
}


@pytest.mark.parametrize("how", CHANGES)
def test_a_changed_copy_is_found_and_nothing_else(how: str, scene: Scene) -> None:
    originals = [scene(seed) for seed in range(40)]
    pairs = near_duplicates(small([*originals, *(CHANGES[how](p) for p in originals[:20])]), 2)
    assert {(pair.first, pair.second) for pair in pairs} == {(at, 40 + at) for at in range(20)}
    assert all(0.9 <= pair.similarity <= 1 + 1e-5 for pair in pairs)


def test_no_images_and_few_images(scene: Scene) -> None:
    assert near_duplicates(np.empty((0, 32, 32), dtype=np.uint8)) == []
    assert near_duplicates(small([scene(0)])) == []
    (pair,) = near_duplicates(small([scene(0), scene(1), scene(0)]))
    assert isinstance(pair, Pair)
    assert (pair.first, pair.second) == (0, 2)
    assert pair.similarity == pytest.approx(1)


def test_blank_images_are_like_nothing(scene: Scene) -> None:
    blanks = [Image.new("RGB", (50, 50), (level, level, level)) for level in (0, 100, 255)]
    assert near_duplicates(small([*blanks, scene(0)])) == []


@pytest.mark.parametrize("images", [digits(), shapes()], ids=["digits", "drawn"])
def test_sets_in_which_all_look_alike_give_no_alarm(images) -> None:
    thumbnails = small([images.open(index) for index in range(len(images))])
    assert near_duplicates(thumbnails) == []
    again = np.concatenate([thumbnails, thumbnails[:3]])
    found = {(pair.first, pair.second) for pair in near_duplicates(again)}
    assert found == {(at, len(thumbnails) + at) for at in range(3)}


def test_progress_and_many_blocks(monkeypatch: pytest.MonkeyPatch, scene: Scene) -> None:
    monkeypatch.setattr("scs_supcon.data.near_duplicates.ROWS", 7)
    monkeypatch.setattr("scs_supcon.data.near_duplicates.PAIRS", 2)
    told: list[tuple[int, int]] = []
    images = [scene(seed) for seed in range(18)] + [scene(0), scene(17)]
    pairs = near_duplicates(small(images), 2, lambda done, total: told.append((done, total)))
    assert {(pair.first, pair.second) for pair in pairs} == {(0, 18), (17, 19)}
    assert told == [(7, 20), (14, 20), (20, 20)]
