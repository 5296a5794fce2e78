"""Style axes of synthetic galleries whose style is a known image property."""

import io

import numpy as np
import pytest
from PIL import Image

from scs_supcon.report import text
from scs_supcon.report.gallery import ImageGallery
from scs_supcon.report.style_axes import StyleAxis, image_properties, style_axes


def jpeg(pixels: np.ndarray) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels.astype(np.uint8)).save(file, "JPEG", quality=95)
    return file.getvalue()


def plain(red: int, green: int, blue: int, shape: tuple[int, int] = (32, 32)) -> np.ndarray:
    return np.broadcast_to(np.array([red, green, blue]), (*shape, 3))


def gallery(jpegs: list[bytes], style: np.ndarray) -> ImageGallery:
    n = len(jpegs)
    return ImageGallery(
        names=[f"{i}.png" for i in range(n)],
        splits=["test"] * n,
        labels=np.zeros(n, np.int64),
        predictions=np.zeros(n, np.int64),
        confidences=np.ones(n, np.float32),
        rejected=[False] * n,
        jpegs=jpegs,
        common=np.ones((n, 1), np.float32),
        style=style.astype(np.float32),
    )


def test_an_axis_is_the_direction_along_which_a_property_rises() -> None:
    rng = np.random.default_rng(0)
    levels = rng.uniform(40, 220, 60).astype(int)
    style = np.stack([-levels / 255, *rng.standard_normal((2, 60))], 1)
    (axis,) = style_axes(gallery([jpeg(plain(v, v, v)) for v in levels], style))
    assert axis.name == "brightness"
    assert axis.correlation > 0.95
    assert levels[axis.low].max() < 70
    assert levels[axis.high].min() > 190


def test_two_properties_along_one_direction_are_one_axis() -> None:
    """Red images are brighter, so brightness, saturation and warmth rise together."""
    rng = np.random.default_rng(0)
    levels = rng.uniform(40, 220, 60).astype(int)
    style = np.stack([levels / 255, rng.standard_normal(60)], 1)
    assert len(style_axes(gallery([jpeg(plain(v, 20, 20)) for v in levels], style))) == 1


def test_a_style_that_is_unrelated_to_the_images_has_no_axes() -> None:
    rng = np.random.default_rng(0)
    jpegs = [jpeg(rng.integers(0, 255, (16, 16, 3))) for _ in range(200)]
    assert style_axes(gallery(jpegs, rng.standard_normal((200, 4)))) == []


def test_few_images_constant_styles_and_methods_without_style_have_no_axes() -> None:
    grey = jpeg(plain(9, 9, 9))
    assert style_axes(gallery([grey] * 10, np.eye(10))) == []
    assert style_axes(gallery([grey] * 30, np.ones((30, 3)))) == []
    assert style_axes(gallery([grey] * 30, np.ones((30, 0)))) == []
    assert style_axes(gallery([grey] * 30, np.eye(30))) == []
    assert style_axes(gallery([b""] * 30, np.eye(30))) == []


@pytest.mark.parametrize(
    ("name", "less", "more"),
    [
        ("brightness", plain(50, 50, 50), plain(200, 200, 200)),
        ("saturation", plain(120, 120, 120), plain(200, 60, 60)),
        ("warm against cold colours", plain(60, 60, 200), plain(200, 60, 60)),
        ("green against purple", plain(160, 60, 160), plain(60, 180, 60)),
        ("width of the image", plain(9, 9, 9, (40, 20)), plain(9, 9, 9, (20, 40))),
    ],
)
def test_properties_follow_the_pixels(name: str, less: np.ndarray, more: np.ndarray) -> None:
    assert image_properties(jpeg(less))[name] < image_properties(jpeg(more))[name]


def test_contrast_sharpness_and_position_follow_the_pixels() -> None:
    smooth = np.repeat(np.linspace(0, 255, 32)[None, :, None], 3, 2).repeat(32, 0)
    stripes = np.tile([0, 255], 16)[None, :, None].repeat(3, 2).repeat(32, 0)
    assert (
        image_properties(jpeg(stripes))["sharpness"] > image_properties(jpeg(smooth))["sharpness"]
    )
    assert image_properties(jpeg(stripes))["contrast"] > image_properties(jpeg(smooth))["contrast"]
    assert image_properties(jpeg(smooth))["bright left side"] < -0.2
    assert image_properties(jpeg(smooth.transpose(1, 0, 2)))["bright top"] < -0.2
    spot = np.zeros((32, 32, 3))
    spot[8:24, 8:24] = 255
    assert image_properties(jpeg(spot))["bright centre"] > 0.5


def test_images_of_one_pixel_have_properties() -> None:
    values = image_properties(jpeg(plain(9, 9, 9, (1, 1))))
    assert all(np.isfinite(value) for value in values.values())


def test_titles_state_name_and_correlation() -> None:
    axis = StyleAxis("brightness", 0.612, np.arange(2), np.arange(2))
    assert text.axis_title(axis) == "Brightness (r = 0.61)"
