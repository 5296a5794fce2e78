import hashlib
import os
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from scs_supcon.data.shards import alone, read_shards, write_shard
from scs_supcon.errors import UserError

WIDTH = 5


def digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


def rows(images: str, views: str) -> np.ndarray:
    """Features that say whose they are."""
    values = [[[ord(p), ord(v), 0, 0, 0] for v in views] for p in images]
    return np.array(values, dtype=np.float32)


def write(folder: Path, images: str, views: str) -> None:
    write_shard(folder, list(map(digest, images)), list(map(digest, views)), rows(images, views))


def read(folder: Path, images: str, views: str) -> tuple[np.ndarray, np.ndarray]:
    table = np.full((len(images), len(views), WIDTH), -1, dtype=np.float32)
    found = read_shards(
        folder,
        {digest(name): row for row, name in enumerate(images)},
        {digest(name): column for column, name in enumerate(views)},
        table,
    )
    return found, table


def test_rows_are_found_whatever_shard_they_lie_in(tmp_path: Path) -> None:
    write(tmp_path, "abc", "xy")
    write(tmp_path, "cd", "yz")
    found, table = read(tmp_path, "dbca", "zy")
    assert found.tolist() == [[True, True], [False, True], [True, True], [False, True]]
    assert np.array_equal(table[found], rows("dbca", "zy")[found])
    assert (table[~found] == -1).all()


def test_an_absent_folder_holds_nothing(tmp_path: Path) -> None:
    assert not read(tmp_path / "absent", "ab", "x")[0].any()
    assert read(tmp_path, "", "x")[0].shape == (0, 1)


@pytest.mark.parametrize("place", ["header", "images", "features", "end"])
def test_one_changed_byte_is_noticed(tmp_path: Path, place: str) -> None:
    write(tmp_path, "ab", "x")
    (path,) = tmp_path.iterdir()
    content = bytearray(path.read_bytes())
    at = {"header": 3, "features": content.index(rows("a", "x").tobytes()), "end": -1}
    content[at.get(place, content.index(digest("a")))] ^= 1
    path.write_bytes(content)
    found, table = read(tmp_path, "ab", "x")
    assert not found.any()
    assert (table == -1).all()
    write(tmp_path, "ab", "x")
    assert read(tmp_path, "ab", "x")[0].all()


@pytest.mark.parametrize("kept", [0, 4, 100, -1])
def test_a_shard_cut_short_is_noticed(tmp_path: Path, kept: int) -> None:
    write(tmp_path, "ab", "x")
    (path,) = tmp_path.iterdir()
    path.write_bytes(path.read_bytes()[:kept])
    assert not read(tmp_path, "ab", "x")[0].any()
    assert not path.exists()


def test_features_of_another_width_are_not_taken(tmp_path: Path) -> None:
    write_shard(tmp_path, [digest("a")], [digest("x")], np.zeros((1, 1, 3), dtype=np.float32))
    assert not read(tmp_path, "a", "x")[0].any()


def test_abandoned_files_are_swept_and_fresh_ones_are_left(tmp_path: Path) -> None:
    fresh, old = tmp_path / "1.tmp", tmp_path / "2.tmp"
    for path in (fresh, old):
        path.write_bytes(b"half")
    os.utime(old, (time.time() - 7200, time.time() - 7200))
    read(tmp_path, "a", "x")
    assert fresh.exists()
    assert not old.exists()


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(UserError, match=r"cannot write features to .*file/cache"):
        write(tmp_path / "file" / "cache", "a", "x")


def test_one_at_a_time_fills_a_folder(tmp_path: Path) -> None:
    order = []

    def fill() -> None:
        with alone(tmp_path / "kept"):
            order.append("second")

    with alone(tmp_path / "kept"):
        waiting = threading.Thread(target=fill)
        waiting.start()
        time.sleep(0.1)
        order.append("first")
    waiting.join(10)
    assert order == ["first", "second"]
