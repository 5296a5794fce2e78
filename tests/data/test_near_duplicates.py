import io
from collections.abc import Callable

import numpy as np
import pytest
from PIL import Image, ImageEnhance

from scs_supcon.data.builtin import digits, shapes
from scs_supcon.data.near_duplicates import NearDuplicate, near_duplicates, thumbnail

Scene = Callable[..., Image.Image]
Change = Callable[[Image.Image], Image.Image]


def small(images: list[Image.Image]) -> np.ndarray:
    return np.stack([thumbnail(image) for image in images])


def re_encoded(image: Image.Image) -> Image.Image:
    file = io.BytesIO()
    image.save(file, "JPEG", quality=30)
    return Image.open(file)


CHANGES: dict[str, Change] = {
    "re-encoded": re_encoded,
    "resized": lambda image: image.resize((60, 45)),
    "squared": lambda image: image.resize((64, 64)),
    "cropped": lambda image: image.crop((4, 3, 116, 87)),
    "cropped at a corner": lambda image: image.crop((6, 5, 120, 90)),
    "brighter": lambda image: ImageEnhance.Brightness(image).enhance(1.2),
    "darker": lambda image: ImageEnhance.Brightness(image).enhance(0.7),
    "more contrast": lambda image: ImageEnhance.Contrast(image).enhance(1.3),
    "grey": lambda image: image.convert("L"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_changed_copies_are_found_without_false_pairs(change: str, scene: Scene) -> None:
    originals = [scene(seed) for seed in range(40)]
    pairs = near_duplicates(small([*originals, *(CHANGES[change](p) for p in originals[:20])]), 2)
    assert {(pair.first, pair.second) for pair in pairs} == {
        (index, 40 + index) for index in range(20)
    }
    assert all(0.9 <= pair.similarity <= 1 + 1e-5 for pair in pairs)


def test_small_datasets_can_be_searched(scene: Scene) -> None:
    assert near_duplicates(np.empty((0, 32, 32), dtype=np.uint8)) == []
    assert near_duplicates(small([scene(0)])) == []
    (pair,) = near_duplicates(small([scene(0), scene(1), scene(0)]))
    assert isinstance(pair, NearDuplicate)
    assert (pair.first, pair.second) == (0, 2)
    assert pair.similarity == pytest.approx(1)


def test_blank_images_are_not_near_duplicates(scene: Scene) -> None:
    blanks = [Image.new("RGB", (50, 50), (level, level, level)) for level in (0, 100, 255)]
    assert near_duplicates(small([*blanks, scene(0)])) == []


@pytest.mark.parametrize("images", [digits(), shapes()], ids=["digits", "shapes"])
def test_datasets_of_similar_images_have_no_near_duplicates(images) -> None:
    thumbnails = small([images.open(index) for index in range(len(images))])
    assert near_duplicates(thumbnails) == []
    again = np.concatenate([thumbnails, thumbnails[:3]])
    pairs = {(pair.first, pair.second) for pair in near_duplicates(again)}
    assert pairs == {(index, len(thumbnails) + index) for index in range(3)}


def test_the_search_in_many_blocks_reports_progress(
    monkeypatch: pytest.MonkeyPatch, scene: Scene
) -> None:
    monkeypatch.setattr("scs_supcon.data.near_duplicates.ROWS_AT_ONCE", 7)
    monkeypatch.setattr("scs_supcon.data.near_duplicates.PAIRS_AT_ONCE", 2)
    progress: list[tuple[int, int]] = []
    images = [scene(seed) for seed in range(18)] + [scene(0), scene(17)]
    pairs = near_duplicates(small(images), 2, lambda done, total: progress.append((done, total)))
    assert {(pair.first, pair.second) for pair in pairs} == {(0, 18), (17, 19)}
    assert progress == [(7, 20), (14, 20), (20, 20)]
