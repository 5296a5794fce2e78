"""Tables, thumbnails and problems that a finished run writes for the report."""

import io
import json

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image

from scs_supcon.data.builtin import shapes
from scs_supcon.data.dataset import Problem
from scs_supcon.data.load import load_images
from scs_supcon.data.splits import read_splits_csv
from scs_supcon.evaluation.record import Evaluation
from scs_supcon.inference import load
from scs_supcon.training.artifacts import thumbnail, thumbnail_indices, write_problems


def test_embeddings_are_those_of_the_loaded_model(finished, shapes):
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


def test_predictions_hold_every_image_that_was_not_trained_on(finished, shapes):
    images = load_images(shapes)
    splits = read_splits_csv(finished / "splits.csv", images)
    rows = pq.read_table(finished / "predictions.parquet").to_pylist()
    expected = {n: s for n, s in zip(images.names, splits, strict=True) if s != "train"}
    assert {row["name"]: row["split"] for row in rows} == expected
    assert len(rows) == len(expected)
    for row in rows:
        assert row["label"] == row["name"].split("/")[0]
        assert sum(row["probabilities"]) == pytest.approx(1, abs=1e-6)
        assert images.classes[int(np.argmax(row["probabilities"]))] == row["prediction"]


def test_the_accuracy_of_neighbours_is_the_knn_baseline(finished):
    rows = pq.read_table(finished / "predictions.parquet").to_pylist()
    correct = [row["neighbours"] == row["label"] for row in rows if row["split"] == "test"]
    baselines = json.loads((finished / "finished.json").read_text())["baselines"]
    assert np.mean(correct) == pytest.approx(baselines["knn_on_encoder"])


def test_the_model_stores_its_scores_and_counts(finished):
    info, evaluation = load(finished).info, Evaluation.read(finished / "evaluation.json")
    assert info.metrics.accuracy == evaluation.accuracy
    assert info.metrics.ece == evaluation.calibration.after.ece
    assert info.counts == {"train": 16, "val": 4, "test": 4}
    assert info.rejection.threshold == evaluation.rejection.threshold
    assert info.pairs.boundary == evaluation.pairs.threshold


def test_a_method_without_fields_has_empty_style(shapes, train_small, tmp_path):
    train_small(shapes, tmp_path / "run", method="baseline", epochs=1)
    rows = pq.read_table(tmp_path / "run" / "embeddings.parquet").to_pylist()
    assert {len(row["style"]) for row in rows} == {0}


def test_every_evaluated_image_has_a_thumbnail(finished):
    rows = pq.read_table(finished / "thumbnails.parquet").to_pylist()
    evaluated = pq.read_table(finished / "predictions.parquet").to_pylist()
    assert {row["name"] for row in rows} >= {row["name"] for row in evaluated}
    assert len({row["name"] for row in rows}) == len(rows)
    for row in rows:
        image = Image.open(io.BytesIO(row["jpeg"]))
        assert (image.format, image.size) == ("JPEG", (16, 16)), "never enlarged"


def test_a_thumbnail_is_small_and_keeps_its_aspect_ratio(tmp_path):
    folder = tmp_path / "a"
    folder.mkdir()
    Image.new("RGB", (640, 320), "red").save(folder / "wide.jpg")
    small = Image.open(io.BytesIO(thumbnail(load_images(tmp_path), 0)))
    assert small.size == (96, 48)
    red, green, blue = small.getpixel((40, 20))
    assert red > 240
    assert max(green, blue) < 15


@pytest.mark.parametrize(
    ("limit", "expected"),
    [
        (9, [10, 11, 12, 13, 20, 21]),
        (5, [10, 11, 12, 13, 20]),
        (2, [10, 12]),
    ],
)
def test_thumbnails_show_test_images_first_and_are_evenly_spaced(limit, expected):
    test, val = np.array([10, 11, 12, 13]), np.array([20, 21])
    assert thumbnail_indices(test, val, limit) == expected


def test_problems_are_written_as_json(tmp_path):
    write_problems(tmp_path / "p.json", [Problem("duplicate", "a.png", "a.png is b.png", "b.png")])
    assert json.loads((tmp_path / "p.json").read_text()) == [
        {"kind": "duplicate", "name": "a.png", "detail": "a.png is b.png"}
    ]


def test_a_thumbnail_is_deterministic():
    assert thumbnail(shapes(1), 0) == thumbnail(shapes(1), 0)
