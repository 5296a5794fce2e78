"""The crop equals torchvision's, and needs Pillow alone."""

import subprocess
import sys

import numpy as np
import pytest
from PIL import Image
from torchvision.transforms import InterpolationMode, v2

from scs_supcon.data.crop import CentreCrop


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize(
    ("size", "short_side", "crop"),
    [((31, 17), 24, 21), ((17, 31), 24, 21), ((24, 90), 24, 24), ((203, 301), 37, 32)],
)
def test_the_crop_is_that_of_torchvision(size, short_side, crop, interpolation):
    pixels = np.random.default_rng(0).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    image = Image.fromarray(pixels)
    steps = [v2.Resize(short_side, InterpolationMode(interpolation)), v2.CenterCrop(crop)]
    expected = np.asarray(v2.Compose(steps)(image))
    actual = np.asarray(CentreCrop(short_side, crop, interpolation)(image))
    assert np.array_equal(actual, expected)


def test_opening_and_cropping_need_no_torch():
    code = (
        "import sys; sys.modules.update(torch=None, torchvision=None, sklearn=None);"
        "import scs_supcon.data.crop, scs_supcon.data.image_io"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
