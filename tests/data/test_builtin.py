import numpy as np
from sklearn.datasets import load_digits

from scs_supcon.data.builtin import digits, in_memory
from scs_supcon.recipe import DataRecipe


def test_digits_are_the_scans() -> None:
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


def test_the_preferred_views_are_a_recipe() -> None:
    recipe = DataRecipe(source="digits", **digits().view_defaults)
    assert recipe.flip is False


def test_hashes_tell_contents_and_shapes_apart() -> None:
    def hashes(pixels: np.ndarray) -> list[str]:
        labels = np.zeros(len(pixels), dtype=np.int64)
        images = in_memory("x", pixels.astype(np.uint8), labels, ("a",), {})
        return [images.file_hash(index) for index in range(len(pixels))]

    one, two, again = hashes(
        np.stack([np.zeros((2, 3, 3)), np.ones((2, 3, 3)), np.zeros((2, 3, 3))])
    )
    assert one == again != two
    assert hashes(np.zeros((1, 3, 2, 3))) != [one]
