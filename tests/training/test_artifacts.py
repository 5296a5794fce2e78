"""What a finished run keeps for the report and for later questions."""

import io
import json

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from scs_supcon.data.builtin import shapes
from scs_supcon.data.dataset import Problem
from scs_supcon.data.load import load_images
from scs_supcon.data.splits import read_splits_csv
from scs_supcon.inference import load
from scs_supcon.training.artifacts import imaged, thumbnail, write_problems
from scs_supcon.training.stage2 import Seen


def test_embeddings_are_those_of_the_model(finished, shapes):
    rows = pq.read_table(finished / "embeddings.parquet").to_pylist()
    images = load_images(shapes)
    splits = read_splits_csv(finished / "splits.csv", images)
    expected = dict(zip(images.names, splits.tolist(), strict=True))
    assert {row["name"]: row["split"] for row in rows} == expected
    assert len(rows) == len(images)
    again = load(finished).embed([shapes / row["name"] for row in rows])
    for row, common, style in zip(rows, again.common, again.style, strict=True):
        assert row["label"] == row["name"].split("/")[0]
        assert np.array_equal(np.array(row["common"], dtype=np.float32), common)
        assert np.array_equal(np.array(row["style"], dtype=np.float32), style)


def test_neighbours_are_right_as_often_as_the_summary_says(finished):
    rows = pq.read_table(finished / "predictions.parquet").to_pylist()
    right = [row["neighbours"] == row["label"] for row in rows if row["split"] == "test"]
    baselines = json.loads((finished / "finished.json").read_text())["baselines"]
    assert np.mean(right) == pytest.approx(baselines["kNN on the encoder"])


def test_a_method_without_fields_has_no_style(shapes, train_small, tmp_path):
    train_small(shapes, tmp_path / "run", method="baseline", epochs=1)
    rows = pq.read_table(tmp_path / "run" / "embeddings.parquet").to_pylist()
    assert {len(row["style"]) for row in rows} == {0}


def test_thumbnails_show_what_was_not_trained_on(finished):
    rows = pq.read_table(finished / "thumbnails.parquet").to_pylist()
    unseen = pq.read_table(finished / "predictions.parquet").to_pylist()
    assert {row["name"] for row in rows} >= {row["name"] for row in unseen}
    assert len({row["name"] for row in rows}) == len(rows)
    for row in rows:
        image = Image.open(io.BytesIO(row["jpeg"]))
        assert (image.format, image.size) == ("JPEG", (16, 16)), "never enlarged"


def test_a_thumbnail_is_small_and_keeps_its_shape(tmp_path):
    folder = tmp_path / "a"
    folder.mkdir()
    Image.new("RGB", (640, 320), "red").save(folder / "wide.jpg")
    small = Image.open(io.BytesIO(thumbnail(load_images(tmp_path), 0)))
    assert small.size == (96, 48)
    red, green, blue = small.getpixel((40, 20))
    assert red > 240
    assert max(green, blue) < 15


def seen(indices):
    empty = torch.empty(0)
    return Seen(np.array(indices, dtype=np.int64), empty, empty, empty)


@pytest.mark.parametrize(
    ("most", "expected"),
    [
        (9, [10, 11, 12, 13, 20, 21]),
        (5, [10, 11, 12, 13, 20]),
        (2, [10, 12]),
    ],
)
def test_test_images_come_first_and_evenly(most, expected):
    parts = {"train": seen([0, 1]), "val": seen([20, 21]), "test": seen([10, 11, 12, 13])}
    assert imaged(parts, most) == expected


def test_problems_are_kept_in_words(tmp_path):
    write_problems(tmp_path / "p.json", [Problem("duplicate", "a.png", "a.png is b.png", "b.png")])
    assert json.loads((tmp_path / "p.json").read_text()) == [
        {"kind": "duplicate", "name": "a.png", "detail": "a.png is b.png"}
    ]


def test_the_same_image_gives_the_same_bytes():
    assert thumbnail(shapes(1), 0) == thumbnail(shapes(1), 0)
