"""Shifted copies of images."""

import numpy as np
import pytest

from scs_supcon.data.builtin import shapes
from scs_supcon.data.shift import LEVELS, SHIFTS, shifted


@pytest.fixture(scope="module")
def images():
    return shapes(per_class=2)


@pytest.mark.parametrize("name", SHIFTS)
def test_a_shift_is_deterministic_and_grows_with_its_level(name, images):
    original = np.asarray(images.open(0), dtype=float)
    distances = []
    for level in range(len(LEVELS)):
        first, again = (shifted(images, name, level).open(0) for _ in range(2))
        assert first.size == images.open(0).size and first.mode == "RGB"
        assert first.tobytes() == again.tobytes()
        distances.append(np.abs(np.asarray(first, dtype=float) - original).mean())
    assert 0 < distances[0] < distances[1] < distances[2]


def test_the_noise_has_the_stated_strength(images):
    from dataclasses import replace

    from PIL import Image

    grey = replace(
        images, open=lambda index, at_least=0, sha256="": Image.new("RGB", (200, 200), (128,) * 3)
    )
    noise = np.asarray(shifted(grey, "noise", 1).open(0), dtype=float) - 128
    assert noise.std() == pytest.approx(0.08 * 255, rel=0.02)
    assert abs(noise.mean()) < 0.5


def test_brightness_is_multiplied(images):
    original = np.asarray(images.open(3), dtype=float)
    darker = np.asarray(shifted(images, "darker", 1).open(3), dtype=float)
    brighter = np.asarray(shifted(images, "brighter", 2).open(3), dtype=float)
    assert np.abs(darker - 0.5 * original).max() <= 1
    assert np.abs(brighter - np.minimum(2 * original, 255)).max() <= 1


def test_hashes_differ_so_that_cached_features_are_not_mixed(images):
    copies = [shifted(images, name, level) for name in SHIFTS for level in range(3)]
    assert len({copy.file_hash(0) for copy in (images, *copies)}) == 1 + len(copies)
    assert all(copy.paths is None for copy in copies)
