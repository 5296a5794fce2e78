import numpy as np

from scs_supcon.data.shapes import COLOURS, SHAPES, drawn, factors
from scs_supcon.recipe import DataRecipe


def pixels(per_class: int = 40, seed: int = 0) -> np.ndarray:
    images = drawn(per_class, seed)
    return np.stack([np.asarray(images.open(index)) for index in range(len(images))])


def test_six_shapes_of_forty() -> None:
    images = drawn()
    assert len(images) == 240
    assert images.classes == SHAPES == tuple(sorted(SHAPES))
    assert np.bincount(images.labels).tolist() == [40] * 6
    assert images.open(0).size == (32, 32)
    assert len({images.file_hash(index) for index in range(240)}) == 240
    assert DataRecipe(source="drawn", **images.view_defaults).image_size == 32


def test_the_same_every_time_and_another_for_another_seed() -> None:
    np.testing.assert_array_equal(pixels(), pixels())
    assert np.any(pixels() != pixels(seed=1))


def test_the_factors_are_what_is_seen() -> None:
    known = factors(per_class=20, seed=3)
    seen = pixels(per_class=20, seed=3).astype(float)
    assert set(known["colour"]) == set(range(len(COLOURS)))
    np.testing.assert_allclose(seen[:, 0, 0].mean(axis=-1), known["paper"], atol=1.01)
    ink = np.abs(seen - known["paper"][:, None, None, None]).sum(axis=-1) > 60
    rows, columns = np.mgrid[:32, :32]
    for image, x, y in zip(ink, known["x"], known["y"], strict=True):
        assert abs(columns[image].mean() - 15.5 - x) < 1.5
        assert abs(rows[image].mean() - 15.5 - y) < 1.5
    colour = known["colour"] == COLOURS.index("red")
    red = seen[colour][ink[colour]].mean(axis=0)
    assert red[0] > 1.5 * max(red[1], red[2])


def test_style_says_nothing_about_the_shape() -> None:
    known = factors(per_class=400)
    for name in ("x", "y", "angle", "size", "paper", "colour"):
        means = [known[name][known["shape"] == shape].mean() for shape in range(len(SHAPES))]
        assert np.std(means) < 4 * known[name].std() / np.sqrt(400)


def test_a_shape_is_told_by_its_area() -> None:
    """Ink per squared radius: a plain check that the six outlines are what they are called."""
    known = factors(per_class=40)
    seen = pixels().astype(float)
    ink = np.abs(seen - seen[:, :1, :1]).sum(axis=-1) > 100
    area = ink.sum(axis=(1, 2)) / known["size"] ** 2
    mean = {name: area[known["shape"] == i].mean() for i, name in enumerate(SHAPES)}
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
