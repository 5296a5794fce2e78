"""Packed datasets: the same images as in the folder they were made from, and damage is noticed."""

import hashlib
import tarfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from scs_supcon.data.dataset import ImageDataset
from scs_supcon.data.image_io import ImageError
from scs_supcon.data.load import load_dataset, load_images
from scs_supcon.data.packed import INDEX, pack, read_packed, shard_name, trim_cache
from scs_supcon.errors import UserError
from web_site import Site, serving


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    for split in ("train", "test"):
        for label in ("blackbird", "starling"):
            (tmp_path / "birds" / split / label).mkdir(parents=True)
            for number in range(4):
                pixels = rng.integers(0, 255, (12, 10, 3), dtype=np.uint8)
                suffix = ".jpg" if number % 2 else ".png"
                Image.fromarray(pixels).save(
                    tmp_path / "birds" / split / label / f"{number}{suffix}"
                )
    return tmp_path / "birds"


@pytest.fixture
def packed(folder: Path, tmp_path: Path) -> Path:
    pack(load_images(folder), tmp_path / "packed", shard_bytes=6_000)
    return tmp_path / "packed"


def _assert_same(one: ImageDataset, other: ImageDataset) -> None:
    assert one.names == other.names
    assert one.classes == other.classes
    assert one.labels.tolist() == other.labels.tolist()
    assert one.splits is not None
    assert other.splits is not None
    assert one.splits.tolist() == other.splits.tolist()
    assert one.native_size == other.native_size
    for index in range(len(one)):
        assert one.file_hash(index) == other.file_hash(index)
        np.testing.assert_array_equal(np.asarray(one.open(index)), np.asarray(other.open(index)))


def test_a_packed_dataset_equals_its_folder(folder: Path, packed: Path) -> None:
    assert len(list(packed.glob("shard-*.tar"))) > 1
    _assert_same(load_images(folder), load_images(packed))


def test_shards_are_ordinary_tar_files_in_the_layout_of_webdataset(
    folder: Path, packed: Path
) -> None:
    images = load_images(folder)
    with tarfile.open(packed / shard_name(0)) as tar:
        first, label = tar.getmembers()[:2]
        assert (first.name, label.name) == ("000000000.png", "000000000.cls")
        file = tar.extractfile(first)
        assert file is not None
        assert hashlib.sha256(file.read()).hexdigest() == images.file_hash(0)
        cls = tar.extractfile(label)
        assert cls is not None
        assert int(cls.read()) == images.labels[0]


def test_images_that_are_not_files_are_stored_as_png(tmp_path: Path) -> None:
    images = load_images("digits")
    few = load_images("digits")
    pack(few, tmp_path / "digits")
    restored = read_packed(tmp_path / "digits")
    assert restored.names == images.names
    np.testing.assert_array_equal(np.asarray(images.open(7)), np.asarray(restored.open(7)))


def test_groups_and_folds_are_kept(folder: Path, tmp_path: Path) -> None:
    rows = ["image_path,label,fold,group"]
    paths = sorted(path for path in folder.rglob("*.*") if path.is_file())
    rows += [f"{path},{path.parent.name},{n % 3},g{n // 2}" for n, path in enumerate(paths)]
    (tmp_path / "table.csv").write_text("\n".join(rows))
    images = load_images(tmp_path / "table.csv")
    pack(images, tmp_path / "packed")
    restored = read_packed(tmp_path / "packed")
    assert restored.folds is not None
    assert restored.groups is not None
    assert images.folds is not None
    assert images.groups is not None
    assert restored.folds.tolist() == images.folds.tolist()
    assert restored.groups.tolist() == images.groups.tolist()


def test_packed_images_are_not_decoded_again_before_training(packed: Path) -> None:
    for shard in packed.glob("shard-*.tar"):
        shard.write_bytes(b"")
    images, problems = load_dataset(str(packed), 0, lambda done, total: None)
    assert len(images) == 16
    assert problems == []


def test_a_damaged_shard_is_noticed(packed: Path) -> None:
    shard = packed / shard_name(0)
    content = bytearray(shard.read_bytes())
    content[600] ^= 1
    shard.write_bytes(content)
    with pytest.raises(ImageError, match=r"does not match index\.parquet"):
        read_packed(packed).open(0)


def test_a_missing_shard_is_named(packed: Path) -> None:
    (packed / shard_name(0)).unlink()
    with pytest.raises(ImageError, match=r"shard-00000\.tar cannot be read"):
        read_packed(packed).open(0)


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("offset", -1, "not possible"),
        ("size", 2**40, "not possible"),
        ("name", "same", "not possible"),
        ("split", "training", "expected train, val or test"),
    ],
)
def test_an_invalid_index_is_rejected(
    packed: Path, column: str, value: object, message: str
) -> None:
    table = pq.read_table(packed / INDEX)
    position = table.column_names.index(column)
    field = table.schema.field(column)
    values = pa.array([value] * len(table), field.type)
    pq.write_table(table.set_column(position, field, values), packed / INDEX)
    with pytest.raises(UserError, match=message):
        read_packed(packed)


def test_an_index_of_another_format_is_rejected(packed: Path) -> None:
    table = pq.read_table(packed / INDEX).replace_schema_metadata({"format": "packed 2"})
    pq.write_table(table, packed / INDEX)
    with pytest.raises(UserError, match="has the format 'packed 2', expected"):
        read_packed(packed)


def test_a_folder_with_other_files_is_left_alone(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds other files, such as t"):
        pack(load_images(folder), folder)
    pack(load_images(folder), tmp_path / "packed")
    assert pack(load_images(folder), tmp_path / "packed") == 1  # the same images: nothing to do
    next(folder.rglob("*.png")).unlink()
    with pytest.raises(UserError, match="already holds another packed dataset"):
        pack(load_images(folder), tmp_path / "packed")


def test_an_interrupted_call_can_be_repeated(folder: Path, tmp_path: Path) -> None:
    def stop(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pack(load_images(folder), tmp_path / "packed", shard_bytes=6_000, progress=stop)
    with pytest.raises(UserError, match="write it with `scs pack`"):
        read_packed(tmp_path / "packed")
    pack(load_images(folder), tmp_path / "packed", shard_bytes=6_000)
    _assert_same(load_images(folder), read_packed(tmp_path / "packed"))


def test_remote_images_are_read_by_range_and_cached(
    packed: Path, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SCS_CACHE", str(tmp_path / "cache" / "features"))
    with serving(Site(packed)) as site:
        remote = load_images(site.address)
        _assert_same(load_images(folder), remote)
        index, *images = site.ranges
        assert index > 6_000 > max(images), "images are read, not whole shards"
    # From now on only the cache has them.
    np.testing.assert_array_equal(
        np.asarray(remote.open(3)), np.asarray(load_images(folder).open(3))
    )
    damaged = tmp_path / "cache" / "images" / remote.file_hash(3)[:2] / remote.file_hash(3)
    damaged.write_bytes(b"damaged")
    with pytest.raises(ImageError, match="cannot be read"):
        remote.open(3)


def test_the_cache_removes_what_was_not_used_for_the_longest_time(tmp_path: Path) -> None:
    import os

    for age, name in enumerate(("aa", "bb", "cc")):
        (tmp_path / name).mkdir()
        file = tmp_path / name / f"{name}0"
        file.write_bytes(bytes(100))
        os.utime(file, (1_000_000 - age, 1_000_000 - age))
    trim_cache(tmp_path, 250)
    assert sorted(path.name for path in tmp_path.glob("??/*")) == ["aa0", "bb0"]
