"""What a run's own evaluation says."""

import json

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from scs_supcon.evaluation import metrics
from scs_supcon.evaluation.evaluate import measure_view_agreement
from scs_supcon.evaluation.record import Baselines, Evaluation
from scs_supcon.inference import load


@pytest.fixture(scope="module")
def record(finished):
    return Evaluation.read(finished / "evaluation.json")


@pytest.fixture(scope="module")
def summary(finished):
    return json.loads((finished / "finished.json").read_text())


def test_it_agrees_with_the_summary_of_the_run(record, summary):
    score = record.scores.accuracy
    assert score.value == summary["accuracy"]
    assert [score.low, score.high] == summary["interval"]
    assert record.calibration.after.ece == summary["metrics"]["ece"]
    assert record.baselines == Baselines.model_validate(summary["baselines"])
    assert record.rejection.known_rejected == summary["refused"]
    assert (record.split, record.images) == ("test", summary["images"])
    assert record.pairs.threshold == summary["boundary"]["threshold"]


def test_it_agrees_with_the_predictions(record, finished):
    rows = [
        row
        for row in pq.read_table(finished / "predictions.parquet").to_pylist()
        if row["split"] == "test"
    ]
    number = {name: index for index, name in enumerate(record.classes)}
    table = np.zeros((4, 4), dtype=int)
    for row in rows:
        table[number[row["label"]], number[row["prediction"]]] += 1
    assert np.array_equal(record.confusion, table)


def test_labels_are_doubted_among_what_was_learned_from(record, finished):
    lines = (finished / "splits.csv").read_text()
    test = {
        row["name"]
        for row in pq.read_table(finished / "predictions.parquet").to_pylist()
        if row["split"] == "test"
    }
    for one in record.label_errors:
        assert one.image in lines
        assert one.image not in test
        assert one.label == one.image.split("/")[0] != one.suggested
        assert one.label_probability < one.suggested_probability


def test_leakage_is_measured_from_train_to_test(record, finished):
    found = record.leakage
    assert found.style_dim == 64
    assert found.chance == 0.25
    assert 0 <= found.class_from_style <= 1
    agreement = found.view_agreement
    assert -1 <= agreement.style_same_class < agreement.style_same_image <= 1


def test_without_test_images_validation_is_judged(shapes, train_small, tmp_path):
    train_small(shapes, tmp_path / "run", settings=["data.test_share=0"], epochs=1)
    record = Evaluation.read(tmp_path / "run" / "evaluation.json")
    assert record.split == "val"


def test_agreement_compares_the_last_two_views(finished):
    made = load(finished)
    features = torch.randn(6, 3, made.encoder.num_features)
    labels = torch.tensor([0, 0, 1, 1, 2, 2])
    found = measure_view_agreement(made, features, labels)
    first, second = (made.fields(features[:, view])[1] for view in (1, 2))
    assert found.style_same_image == pytest.approx(float((first * second).sum(1).mean()))
    assert measure_view_agreement(made, features[:, :1], labels) is None
    assert measure_view_agreement(made, features[:0], labels[:0]) is None


def test_a_method_without_style_has_no_leakage(shapes, train_small, tmp_path):
    train_small(shapes, tmp_path / "run", method="supcon", epochs=1)
    record = Evaluation.read(tmp_path / "run" / "evaluation.json")
    assert record.leakage is None
    known = pq.read_table(tmp_path / "run" / "embeddings.parquet").to_pylist()
    parts = {
        split: (
            torch.tensor([row["common"] for row in known if row["split"] == split]),
            torch.tensor(
                [record.classes.index(row["label"]) for row in known if row["split"] == split]
            ),
        )
        for split in ("train", "test")
    }
    expected = metrics.knn_accuracy(*parts["train"], *parts["test"])
    assert record.baselines.knn_on_probe_input == pytest.approx(expected)
