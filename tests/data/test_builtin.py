import numpy as np
import pytest
from sklearn.datasets import load_digits

from scs_supcon.data.builtin import (
    COLOURS,
    SHAPES,
    dataset_from_arrays,
    digits,
    shape_factors,
    shapes,
)
from scs_supcon.data.load import load_images
from scs_supcon.errors import UserError
from scs_supcon.recipe import DataRecipe


def test_digits_match_scikit_learn() -> None:
    images = digits()
    assert len(images) == 1797
    assert images.classes == tuple("0123456789")
    assert images.names[0] == "digits/0001"
    assert images.names == tuple(sorted(images.names))
    assert images.native_size == 8
    assert len({images.file_hash(index) for index in range(1797)}) == 1797
    scans = load_digits()
    np.testing.assert_array_equal(images.labels, scans.target)
    for index in (0, 1796):
        image = images.open(index)
        assert (image.mode, image.size) == ("RGB", (8, 8))
        np.testing.assert_allclose(
            np.asarray(image)[..., 0], scans.images[index] * 255 / 16, atol=0.5
        )


def test_view_defaults_are_valid_recipe_values() -> None:
    recipe = DataRecipe(source="digits", **digits().view_defaults)
    assert recipe.flip is False


def test_hashes_depend_on_content_and_size() -> None:
    def hashes(pixels: np.ndarray) -> list[str]:
        labels = np.zeros(len(pixels), dtype=np.int64)
        images = dataset_from_arrays("x", pixels.astype(np.uint8), labels, ("a",), {})
        return [images.file_hash(index) for index in range(len(pixels))]

    first, second, copy = hashes(
        np.stack([np.zeros((2, 3, 3)), np.ones((2, 3, 3)), np.zeros((2, 3, 3))])
    )
    assert first == copy != second
    assert hashes(np.zeros((1, 3, 2, 3))) != [first]


def pixels(per_class: int = 40, seed: int = 0) -> np.ndarray:
    images = shapes(per_class, seed)
    return np.stack([np.asarray(images.open(index)) for index in range(len(images))])


def test_shapes_has_six_classes_of_forty_images() -> None:
    images = shapes()
    assert len(images) == 240
    assert images.classes == SHAPES == tuple(sorted(SHAPES))
    assert np.bincount(images.labels).tolist() == [40] * 6
    assert images.open(0).size == (32, 32)
    assert len({images.file_hash(index) for index in range(240)}) == 240
    assert DataRecipe(source="shapes", **images.view_defaults).image_size == 32


def test_shapes_depend_only_on_the_seed() -> None:
    np.testing.assert_array_equal(pixels(), pixels())
    assert np.any(pixels() != pixels(seed=1))


def test_the_images_show_their_factors() -> None:
    factors = shape_factors(per_class=20, seed=3)
    images = pixels(per_class=20, seed=3).astype(float)
    assert set(factors["colour"]) == set(range(len(COLOURS)))
    np.testing.assert_allclose(images[:, 0, 0].mean(axis=-1), factors["paper"], atol=1.01)
    ink = np.abs(images - factors["paper"][:, None, None, None]).sum(axis=-1) > 60
    rows, columns = np.mgrid[:32, :32]
    for image, x, y in zip(ink, factors["x"], factors["y"], strict=True):
        assert abs(columns[image].mean() - 15.5 - x) < 1.5
        assert abs(rows[image].mean() - 15.5 - y) < 1.5
    colour = factors["colour"] == COLOURS.index("red")
    red = images[colour][ink[colour]].mean(axis=0)
    assert red[0] > 1.5 * max(red[1], red[2])


def test_style_factors_are_independent_of_the_shape() -> None:
    factors = shape_factors(per_class=400)
    for name in ("x", "y", "angle", "size", "paper", "colour"):
        means = [factors[name][factors["shape"] == shape].mean() for shape in range(len(SHAPES))]
        assert np.std(means) < 4 * factors[name].std() / np.sqrt(400)


def test_the_outlines_have_the_expected_areas() -> None:
    """Compare the area per squared radius with the formula for each shape."""
    factors = shape_factors(per_class=40)
    images = pixels().astype(float)
    ink = np.abs(images - images[:, :1, :1]).sum(axis=-1) > 100
    area = ink.sum(axis=(1, 2)) / factors["size"] ** 2
    mean = {name: area[factors["shape"] == i].mean() for i, name in enumerate(SHAPES)}
    expected = {
        "bar": 1.9 * 0.6,
        "circle": np.pi,
        "cross": 0.36 + 4 * 0.6 * 0.65,
        "square": 2.0,
        "star": 5 * 0.4 * np.sin(np.pi / 5),
        "triangle": 3 * np.sqrt(3) / 4,
    }
    for name in SHAPES:
        assert abs(mean[name] / expected[name] - 1) < 0.15


def test_an_unknown_name_lists_the_datasets() -> None:
    with pytest.raises(UserError, match=r"name of a dataset \(digits, shapes, "):
        load_images("nothing-like-it")
