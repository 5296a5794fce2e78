"""Parquet files with an image column, as Hugging Face's `datasets` writes them."""

import io
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from scs_supcon.data.image_io import ImageError
from scs_supcon.data.load import load_images
from scs_supcon.data.packed import pack
from scs_supcon.errors import UserError

NAMES = ["daisy", "rose", "tulip"]


def _pixels(number: int) -> np.ndarray:
    return np.random.default_rng(number).integers(0, 255, (9, 11, 3), dtype=np.uint8)


def _png(number: int) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(_pixels(number)).save(buffer, format="PNG")
    return buffer.getvalue()


def _write(path: Path, labels: list[object], start: int, named: bool = True) -> None:
    images = [{"bytes": _png(start + i), "path": None} for i in range(len(labels))]
    table = pa.table({"image": images, "label": labels})
    if named:
        features = {"image": {"_type": "Image"}, "label": {"names": NAMES, "_type": "ClassLabel"}}
        metadata = {"huggingface": json.dumps({"info": {"features": features}})}
        table = table.replace_schema_metadata(metadata)
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path, row_group_size=2)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    _write(tmp_path / "flowers/data/train-00000-of-00002.parquet", [0, 1, 2, 0, 1], 0)
    _write(tmp_path / "flowers/data/train-00001-of-00002.parquet", [2, 2], 5)
    _write(tmp_path / "flowers/data/test-00000-of-00001.parquet", [1, 0, 2], 7)
    return tmp_path / "flowers"


def test_images_labels_and_splits_are_those_of_the_files(folder: Path) -> None:
    images = load_images(folder)
    assert images.classes == tuple(NAMES)
    assert images.splits is not None
    assert images.splits.tolist() == ["test"] * 3 + ["train"] * 7
    assert images.labels.tolist() == [1, 0, 2, 0, 1, 2, 0, 1, 2, 2]
    assert images.native_size == 9
    numbers = [7, 8, 9, 0, 1, 2, 3, 4, 5, 6]
    for index in (9, 0, 4, 3, 8):  # in random order, across row groups
        np.testing.assert_array_equal(np.asarray(images.open(index)), _pixels(numbers[index]))


def test_they_can_be_packed(folder: Path, tmp_path: Path) -> None:
    images = load_images(folder)
    pack(images, tmp_path / "packed")
    packed = load_images(tmp_path / "packed")
    assert packed.names == images.names
    np.testing.assert_array_equal(np.asarray(packed.open(4)), np.asarray(images.open(4)))


def test_labels_may_be_text(tmp_path: Path) -> None:
    _write(tmp_path / "all.parquet", ["b", "a"], 0, named=False)
    images = load_images(tmp_path)
    assert images.classes == ("a", "b")
    assert images.splits is None


@pytest.mark.parametrize(
    ("labels", "message"),
    [([0, 3], "names 3 classes"), ([0, None], "row 2: the label is empty")],
)
def test_unusable_labels_are_named(tmp_path: Path, labels: list[object], message: str) -> None:
    _write(tmp_path / "train.parquet", labels, 0)
    with pytest.raises(UserError, match=message):
        load_images(tmp_path)


def test_a_file_without_split_beside_others_is_an_error(folder: Path) -> None:
    _write(folder / "data" / "extra.parquet", [0], 0)
    with pytest.raises(UserError, match=r"extra\.parquet does not say its split"):
        load_images(folder)


def test_a_row_without_bytes_is_named(tmp_path: Path) -> None:
    table = pa.table(
        {
            "image": [{"bytes": _png(0), "path": ""}, {"bytes": None, "path": "x.png"}],
            "label": ["a", "b"],
        }
    )
    pq.write_table(table, tmp_path / "train.parquet")
    images = load_images(tmp_path)
    with pytest.raises(ImageError, match=r"train\.parquet/0000001 has no image bytes"):
        images.open(1)
