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


def test_an_axis_is_named_by_the_property_that_rises_along_it() -> None:
    rng = np.random.default_rng(0)
    levels = rng.uniform(40, 220, 40).astype(int)
    noise = 0.01 * rng.standard_normal((40, 3))
    style = np.stack([-levels / 255, np.zeros(40), np.zeros(40)], 1) + noise
    axes = style_axes(gallery([jpeg(plain(v, v, v)) for v in levels], style))
    first = axes[0]
    assert first.name == "brightness"
    assert first.correlation > 0.95
    assert first.share > 0.9
    assert levels[first.low].max() < levels[first.high].min()
    assert levels[first.low[0]] < 50
    assert levels[first.high[0]] > 205


def test_an_axis_without_a_correlated_property_has_no_name() -> None:
    rng = np.random.default_rng(0)
    jpegs = [jpeg(rng.integers(0, 255, (16, 16, 3))) for _ in range(200)]
    axes = style_axes(gallery(jpegs, rng.standard_normal((200, 4))))
    assert len(axes) == 4
    assert all(axis.name == "" for axis in axes)


def test_few_images_constant_styles_and_methods_without_style_have_no_axes() -> None:
    grey = jpeg(plain(9, 9, 9))
    assert style_axes(gallery([grey] * 10, np.eye(10))) == []
    assert style_axes(gallery([grey] * 30, np.ones((30, 3)))) == []
    assert style_axes(gallery([grey] * 30, np.ones((30, 0)))) == []
    assert style_axes(gallery([b""] * 30, np.eye(30))) == []


def test_equal_images_have_axes_without_a_name() -> None:
    axes = style_axes(gallery([jpeg(plain(9, 9, 9))] * 30, np.eye(30)))
    assert axes[0].name == "" and axes[0].correlation == 0


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


def test_titles_state_name_correlation_and_share() -> None:
    ends = np.arange(2), np.arange(2)
    named = StyleAxis(1, 0.124, "brightness", 0.612, *ends)
    assert text.axis_title(named) == "Axis 1: brightness (r = 0.61), 12% of the variance"
    unnamed = StyleAxis(2, 0.1, "", 0.1, *ends)
    assert text.axis_title(unnamed) == "Axis 2: no measured property, 10% of the variance"
