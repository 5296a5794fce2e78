import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from scs_supcon.data.builtin import shapes
from scs_supcon.data.dataset import (
    PROBLEM_KINDS,
    content_digest,
    problem_title,
    without,
)
from scs_supcon.data.image_io import ImageError
from scs_supcon.data.load import check_dataset, load_images
from scs_supcon.errors import UserError


def test_without_renumbers_the_remaining_images() -> None:
    images = shapes(per_class=3)
    remaining = without(images, [0, 5])
    assert len(remaining) == 16
    assert remaining.names == tuple(n for i, n in enumerate(images.names) if i not in (0, 5))
    np.testing.assert_array_equal(remaining.labels, np.delete(images.labels, [0, 5]))
    for index, name in enumerate(remaining.names):
        before = images.names.index(name)
        assert remaining.file_hash(index) == images.file_hash(before)
        assert remaining.open(index).tobytes() == images.open(before).tobytes()
    again = without(remaining, [0])
    assert again.open(0).tobytes() == images.open(2).tobytes()
    assert without(images, []).names == images.names


def test_without_must_leave_an_image_in_every_class() -> None:
    with pytest.raises(UserError, match="'bar' has no usable image left"):
        without(shapes(per_class=2), [0, 1])


def test_a_dataset_can_be_pickled_for_spawned_workers() -> None:
    images = without(shapes(per_class=2), [0])
    copy = pickle.loads(pickle.dumps(images))  # as for a spawned worker
    assert copy.names == images.names
    assert copy.open(3).tobytes() == images.open(3).tobytes()


def test_problem_kinds_are_identifiers_with_unique_titles() -> None:
    assert all(kind.isidentifier() for kind in PROBLEM_KINDS)
    assert len({kind.title for kind in PROBLEM_KINDS.values()}) == len(PROBLEM_KINDS)


def test_an_unknown_problem_kind_is_shown_as_it_is() -> None:
    assert problem_title("from the future") == "from the future"


def test_a_checked_dataset_keeps_the_hashes_it_was_checked_with(
    class_folders: Callable[[dict[str, int]], Path],
) -> None:
    root = class_folders({"a": 2, "b": 2})
    images, _ = check_dataset(load_images(root), 1, lambda done, total: None)
    digest, known = content_digest(images), images.file_hash(0)
    Image.new("RGB", (16, 16), "red").save(root / images.names[0])
    assert (content_digest(images), images.file_hash(0)) == (digest, known)
    assert load_images(root).file_hash(0) != known
    assert pickle.loads(pickle.dumps(images.file_hash))(0) == known
    with pytest.raises(ImageError, match="changed while it was read"):
        images.open(0, 0, known)
