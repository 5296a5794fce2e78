"""`scs pack`: output and use of the result."""

import numpy as np
import pytest
from PIL import Image


@pytest.fixture
def birds(tmp_path, monkeypatch):
    """Two classes of five images and a damaged one, in this folder."""
    rng = np.random.default_rng(0)
    for index in range(10):
        folder = tmp_path / "birds" / ("auk", "jay")[index % 2]
        folder.mkdir(parents=True, exist_ok=True)
        pixels = rng.integers(0, 256, (16, 16, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{index}.png")
    (tmp_path / "birds" / "auk" / "bad.png").write_text("not an image")
    monkeypatch.chdir(tmp_path)


def test_unusable_images_are_left_out_and_the_result_is_a_dataset(birds, scs):
    result = scs("pack", "birds", "packed")
    assert result.code == 0
    assert "left out: birds/auk/bad.png is not a JPEG" in result.out
    assert "packed 10 images of 2 classes: 1 shard in packed" in result.out
    checked = scs("doctor", "packed")
    assert "10 images in 2 classes" in checked.out


def test_it_does_not_write_into_a_folder_with_other_files(birds, scs):
    result = scs("pack", "birds", "birds")
    assert result.code != 0
    assert "birds holds other files" in result.err
