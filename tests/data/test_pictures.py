import pickle

import numpy as np
import pytest

from scs_supcon.data.drawn import drawn
from scs_supcon.data.pictures import without
from scs_supcon.errors import UserError


def test_without_renumbers_everything() -> None:
    pictures = drawn(per_class=3)
    left = without(pictures, [0, 5])
    assert len(left) == 16
    assert left.names == tuple(n for i, n in enumerate(pictures.names) if i not in (0, 5))
    np.testing.assert_array_equal(left.labels, np.delete(pictures.labels, [0, 5]))
    for index, name in enumerate(left.names):
        before = pictures.names.index(name)
        assert left.file_hash(index) == pictures.file_hash(before)
        assert left.open(index).tobytes() == pictures.open(before).tobytes()
    again = without(left, [0])
    assert again.open(0).tobytes() == pictures.open(2).tobytes()
    assert without(pictures, []).names == pictures.names


def test_without_keeps_every_class() -> None:
    with pytest.raises(UserError, match="'bar' has no usable picture left"):
        without(drawn(per_class=2), [0, 1])


def test_worker_processes_can_receive_it() -> None:
    pictures = without(drawn(per_class=2), [0])
    copy = pickle.loads(pickle.dumps(pictures))  # what a spawned worker is given
    assert copy.names == pictures.names
    assert copy.open(3).tobytes() == pictures.open(3).tobytes()
