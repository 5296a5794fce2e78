"""What stage 2 sees, how a run is judged, and what it says of itself."""

import json

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from torch import nn

from scs_supcon.data.load import load_images
from scs_supcon.data.splits import read_splits_csv
from scs_supcon.inference import load
from scs_supcon.inference.classifier import LinearClassifier
from scs_supcon.methods import Network, TaskInfo, build_method, probe_input_for
from scs_supcon.nn.head import Projection, unit
from scs_supcon.training.probe import Probe, ProbeHead
from scs_supcon.training.stage2 import Seen, describe, headline, see, settle_on


@pytest.fixture(scope="module")
def summary(finished):
    return json.loads((finished / "finished.json").read_text())


@pytest.fixture(scope="module")
def predictions(finished):
    return pq.read_table(finished / "predictions.parquet").to_pylist()


@pytest.mark.parametrize(("name", "width"), [("scs_supcon", 192), ("supcon", 5)])
def test_every_view_is_read_out_as_the_method_says(name, width):
    method = build_method(name)
    projection = Projection(5, 256, centre=name == "scs_supcon").eval()
    features = torch.randn(7, 3, 5)
    indices, labels = np.array([1, 3, 5, 7, 9, 11, 13]), np.arange(20)
    reads = probe_input_for(method, frozen=False)
    assert reads == ("common" if name == "scs_supcon" else "features")
    seen = see(features, indices, labels, projection, reads, 192)
    assert seen.labels.tolist() == indices.tolist()
    assert seen.readout.shape == (7, 3, width)
    for image in range(7):
        for view in range(3):
            one = features[image, view : view + 1]
            with torch.no_grad():
                expected = unit(projection(one)[:, :192]) if name == "scs_supcon" else one
            assert torch.allclose(seen.readout[image, view], expected[0], atol=1e-6)
    assert not seen.readout.requires_grad


@pytest.mark.parametrize(
    ("name", "reads"),
    [("scs_supcon", "common"), ("supcon", "embeddings"), ("baseline", "features")],
)
def test_a_frozen_run_reads_what_the_head_has_learnt(name, reads):
    assert probe_input_for(build_method(name), frozen=True) == reads


def test_a_split_without_images_is_empty_and_no_error():
    seen = see(
        torch.empty(0, 1, 5),
        np.empty(0, dtype=np.int64),
        np.arange(3),
        nn.Linear(5, 256),
        "common",
        192,
    )
    assert seen.readout.shape == (0, 1, 192)
    assert len(seen.labels) == 0


@pytest.mark.parametrize(
    ("name", "frozen", "own", "uses_own"),
    [
        ("baseline", False, True, True),
        ("baseline", True, True, True),
        ("timescl", False, True, True),
        ("paco", True, True, False),
        ("circle", True, True, True),
        ("circle", False, True, False),
        ("fncl", False, False, False),
        ("supcon", False, False, False),
        ("scs_supcon", True, False, False),
    ],
)
def test_a_single_stage_method_classifies_by_itself(name, frozen, own, uses_own):
    """Where its classifier reads what stage 2 reads; both are judged beside each other."""
    network = Network(nn.Identity(), Projection(5, 256)).eval()
    method = build_method(name).setup(TaskInfo(network, torch.arange(12) % 3, 3, 5, 256, epochs=1))
    reads = probe_input_for(method, frozen=frozen)
    features, labels = torch.randn(12, 1, 5), np.arange(12) % 3
    part: Seen = see(features, np.arange(12), labels, network.projection, reads, 192)
    seen = {"train": part, "val": part, "test": part}
    width = part.readout.shape[-1]
    heads = (ProbeHead(3.0, 0.0, True, chosen=True), ProbeHead(1.0, 0.0, False))  # never correct
    zeros = torch.zeros(3, width).double()
    probe = Probe(LinearClassifier(zeros, zeros[:, 0], 1.0), heads)
    found, other = settle_on(method, reads, probe, network.projection, seen)
    both = {"the method's own classifier", "stage 2 on the readout"}
    assert set(other) == (both if own else set())
    assert (found is not probe) == uses_own
    assert sum(member.chosen for member in found.heads) == 1
    if uses_own:
        own = method.class_logits(features[:, 0], network(features[:, 0]).embeddings)
        logits = found.classifier.logits(part.readout[:, 0]) * found.classifier.temperature
        assert torch.allclose(logits, own.detach().double(), rtol=1e-4, atol=1e-4)
        assert found.heads[0].own and found.heads[0].chosen
        right = (own.argmax(1).numpy() == labels).mean()
        assert found.heads[0].val_accuracy == pytest.approx(right)


def test_predictions_hold_every_image_that_was_not_trained_on(finished, shapes, predictions):
    images = load_images(shapes)
    splits = read_splits_csv(finished / "splits.csv", images)
    rows = {row["name"]: row for row in predictions}
    assert len(rows) == len(predictions)
    expected = {n: s for n, s in zip(images.names, splits, strict=True) if s != "train"}
    assert {name: row["split"] for name, row in rows.items()} == expected
    for row in predictions:
        assert row["label"] == row["name"].split("/")[0]
        assert sum(row["probabilities"]) == pytest.approx(1, abs=1e-6)
        assert images.classes[int(np.argmax(row["probabilities"]))] == row["prediction"]


def test_the_accuracy_is_that_of_the_predictions(summary, predictions):
    test = [row for row in predictions if row["split"] == "test"]
    right = [row["label"] == row["prediction"] for row in test]
    assert summary["judged_on"] == "test"
    assert summary["images"] == len(test)
    assert summary["accuracy"] == summary["metrics"]["acc1"] == np.mean(right)
    assert summary["refused"] == np.mean([row["none_of_these"] for row in test])
    low, high = summary["interval"]
    assert 0 <= low <= summary["accuracy"] <= high <= 1


def test_the_baselines_and_the_bank_stand_beside_it(summary):
    assert set(summary["baselines"]) == {
        "kNN on the readout",
        "nearest class mean",
        "linear probe of the encoder",
        "kNN on the encoder",
    }
    assert sum(head["chosen"] for head in summary["bank"]) == 1
    assert sum(head["plain"] for head in summary["bank"]) == 1, "the paper's own head"
    chosen = next(head for head in summary["bank"] if head["chosen"])
    assert chosen["val_accuracy"] == max(head["val_accuracy"] for head in summary["bank"])


def test_the_model_knows_how_well_it_did(finished, summary):
    info = load(finished).info
    assert info.metrics.accuracy == summary["metrics"]["acc1"]
    assert info.metrics.ece == summary["metrics"]["ece"]
    assert info.counts == {"train": 16, "val": 4, "test": 4}
    assert info.rejection.model_dump() == summary["boundary"]


SUMMARY = {
    "accuracy": 0.875,
    "interval": [0.8, 0.93],
    "images": 48,
    "judged_on": "test",
    "baselines": {"kNN on the readout": 0.5},
    "bank": [{"val_accuracy": 0.7}, {"val_accuracy": 0.9}],
    "boundary": {"threshold": 0.25},
    "refused": 0.021,
    "model": "runs/x/model",
    "run": "runs/x",
}


def test_the_result_for_a_person():
    assert headline(SUMMARY) == ("87.50% of 48 test images right (95 % interval 80.0% to 93.0%)")
    text = describe(SUMMARY)
    assert text.startswith(headline(SUMMARY))
    for part in (
        "kNN on the readout             50.00%",
        "70.00% to 90.00% (validation)",
        "2.1% of these images would be called none of these classes (similarity below 0.250)",
        "scs predict runs/x image.jpg",
        "scs evaluate runs/x",
    ):
        assert part in text
    assert "caution" not in text


def test_a_path_with_a_space_can_be_copied():
    text = describe(SUMMARY | {"run": "my runs/x"})
    assert "scs predict 'my runs/x' image.jpg" in text
    assert "scs evaluate 'my runs/x'" in text


def test_a_result_of_validation_is_called_so():
    text = describe(SUMMARY | {"judged_on": "val"})
    assert text.startswith("87.50% of 48 validation images right")
    assert "caution: There is no test split" in text
