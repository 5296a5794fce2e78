"""Arrays as images: shapes, types, and what cannot be decided."""

import hashlib

import numpy as np
import pytest
from PIL import Image

from scs_supcon.data.arrays import dataset_from_images, images_from_array
from scs_supcon.data.builtin import ImageArrays
from scs_supcon.errors import UserError

BYTES = np.arange(6 * 5 * 3, dtype=np.uint8).reshape(6, 5, 3)


@pytest.mark.parametrize(
    ("array", "count", "mode"),
    [
        (BYTES, 1, "RGB"),
        (BYTES[:, :, 0], 1, "L"),
        (BYTES[:, :, :1], 1, "L"),
        (np.dstack([BYTES, BYTES[:, :, 0]]), 1, "RGBA"),
        (np.stack([BYTES] * 2), 2, "RGB"),
        (np.stack([BYTES[:, :, 0]] * 7), 7, "L"),
    ],
)
def test_shapes(array, count, mode):
    images = images_from_array(array)
    assert [(image.mode, image.size) for image in images] == [(mode, (5, 6))] * count


def test_types_are_scaled_to_bytes():
    (image,) = images_from_array(BYTES.astype(np.uint16) << 8)
    assert np.array_equal(np.asarray(image), BYTES)
    (image,) = images_from_array(BYTES / 255)
    assert np.array_equal(np.asarray(image), BYTES)
    (image,) = images_from_array(BYTES[:, :, 0] > 40)
    assert np.array_equal(np.asarray(image), np.where(BYTES[:, :, 0] > 40, 255, 0))


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (BYTES.transpose(2, 0, 1), r"channels first, or 3 grey images: give array.transpose"),
        (np.zeros(9, np.uint8), r"must be arrays of shape .*got shape \(9,\)"),
        (np.zeros((2, 6, 5, 2), np.uint8), r"got shape \(2, 6, 5, 2\)"),
        (np.zeros((0, 6, 5, 3), np.uint8), "no pixels"),
        (BYTES * 2.0, "between 0 and 1, got 0 to 178"),
        (BYTES.astype(np.int64), "got int64"),
    ],
)
def test_what_cannot_be_an_image_is_named_by_shape_or_type(array, message):
    with pytest.raises(UserError, match=message) as error:
        images_from_array(array)
    assert len(str(error.value)) < 250, "never the content of the array"


def test_a_list_of_files_and_images_is_a_dataset(tmp_path):
    Image.fromarray(BYTES).save(tmp_path / "a.png")
    images = [tmp_path / "a.png", Image.fromarray(BYTES)]
    dataset = dataset_from_images(images, np.array([0, 1]), ("0", "1"))
    assert dataset.native_size == 5
    assert [np.array_equal(np.asarray(dataset.open(k)), BYTES) for k in range(2)] == [True, True]
    content = (tmp_path / "a.png").read_bytes()
    assert dataset.file_hash(0) == hashlib.sha256(content).hexdigest()
    assert dataset.file_hash(1) == ImageArrays(BYTES[None]).file_hash(0)
    with pytest.raises(UserError, match="2 images, but 1 labels"):
        dataset_from_images(images, np.array([0]), ("0", "1"))
