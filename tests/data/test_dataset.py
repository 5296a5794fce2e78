import pickle

import numpy as np
import pytest

from scs_supcon.data.dataset import without
from scs_supcon.data.shapes import drawn
from scs_supcon.errors import UserError


def test_without_renumbers_everything() -> None:
    images = drawn(per_class=3)
    left = without(images, [0, 5])
    assert len(left) == 16
    assert left.names == tuple(n for i, n in enumerate(images.names) if i not in (0, 5))
    np.testing.assert_array_equal(left.labels, np.delete(images.labels, [0, 5]))
    for index, name in enumerate(left.names):
        before = images.names.index(name)
        assert left.file_hash(index) == images.file_hash(before)
        assert left.open(index).tobytes() == images.open(before).tobytes()
    again = without(left, [0])
    assert again.open(0).tobytes() == images.open(2).tobytes()
    assert without(images, []).names == images.names


def test_without_keeps_every_class() -> None:
    with pytest.raises(UserError, match="'bar' has no usable image left"):
        without(drawn(per_class=2), [0, 1])


def test_worker_processes_can_receive_it() -> None:
    images = without(drawn(per_class=2), [0])
    copy = pickle.loads(pickle.dumps(images))  # what a spawned worker is given
    assert copy.names == images.names
    assert copy.open(3).tobytes() == images.open(3).tobytes()
