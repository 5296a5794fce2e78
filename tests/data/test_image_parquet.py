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


def _save_arrow(path: Path, labels: list[int], start: int) -> None:
    """Write a split as `datasets.Dataset.save_to_disk` does."""
    images = [{"bytes": _png(start + i), "path": None} for i in range(len(labels))]
    features = {"image": {"_type": "Image"}, "label": {"names": NAMES, "_type": "ClassLabel"}}
    metadata = {"huggingface": json.dumps({"info": {"features": features}})}
    table = pa.table({"image": images, "label": labels}).replace_schema_metadata(metadata)
    path.mkdir(parents=True)
    file = pa.OSFile(str(path / "data-00000-of-00001.arrow"), "wb")
    with file, pa.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table, max_chunksize=2)
    (path / "dataset_info.json").write_text("{}")
    (path / "state.json").write_text(
        json.dumps({"_data_files": [{"filename": "data-00000-of-00001.arrow"}]})
    )


def test_a_dataset_that_was_saved_to_disk(tmp_path: Path) -> None:
    _save_arrow(tmp_path / "train", [0, 1, 2, 0, 1], 0)
    _save_arrow(tmp_path / "test", [1, 0, 2], 7)
    (tmp_path / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    images = load_images(tmp_path)
    assert images.classes == tuple(NAMES)
    assert images.splits is not None
    assert images.splits.tolist() == ["test"] * 3 + ["train"] * 5
    assert images.labels.tolist() == [1, 0, 2, 0, 1, 2, 0, 1]
    assert np.array_equal(np.asarray(images.open(4)), _pixels(1))
    assert np.array_equal(np.asarray(load_images(tmp_path / "test").open(2)), _pixels(9))


def test_a_saved_dataset_of_the_library_itself(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    features = datasets.Features(
        {"image": datasets.Image(), "label": datasets.ClassLabel(names=NAMES)}
    )
    rows = {"image": [Image.fromarray(_pixels(i)) for i in range(6)], "label": [0, 1, 2, 0, 1, 2]}
    whole = datasets.Dataset.from_dict(rows, features=features).shuffle(seed=0)
    parts = whole.train_test_split(test_size=3, seed=0)
    parts.save_to_disk(tmp_path / "saved")
    images = load_images(tmp_path / "saved")
    assert images.classes == tuple(NAMES)
    assert images.splits is not None
    for split in ("train", "test"):
        chosen = np.flatnonzero(images.splits == split)
        assert [images.classes[images.labels[i]] for i in chosen] == [
            NAMES[row["label"]] for row in parts[split]
        ]
        for index, row in zip(chosen, parts[split], strict=True):
            assert np.array_equal(np.asarray(images.open(index)), np.asarray(row["image"]))


def test_damaged_and_unsupported_saved_datasets_are_named(tmp_path: Path) -> None:
    _save_arrow(tmp_path / "part", [0, 1], 0)
    file = tmp_path / "part" / "data-00000-of-00001.arrow"
    content = file.read_bytes()
    file.write_bytes(content[: len(content) // 2])
    with pytest.raises(UserError, match="cannot be read"):
        load_images(tmp_path / "part")
    (tmp_path / "part" / "state.json").write_text('{"_indices_data_files": [{"filename": "i"}]}')
    with pytest.raises(UserError, match="flatten_indices"):
        load_images(tmp_path / "part")


def test_only_the_content_with_the_given_hash_is_decoded(folder: Path) -> None:
    images = load_images(folder)
    assert images.open(0, 0, images.file_hash(0)).size == images.open(0).size
    with pytest.raises(ImageError, match="changed while it was read"):
        images.open(0, 0, images.file_hash(1))
