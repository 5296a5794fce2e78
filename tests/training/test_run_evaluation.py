"""The evaluation of a run agrees with its predictions, its embeddings and its summary."""

import json

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from torch import nn

from scs_supcon.evaluation import metrics
from scs_supcon.evaluation.compute import EmbeddedImages
from scs_supcon.evaluation.record import Evaluation
from scs_supcon.inference.classifier import LinearClassifier
from scs_supcon.inference.decision import Decision
from scs_supcon.methods import (
    Network,
    TaskInfo,
    build_method,
    probe_input_for,
)
from scs_supcon.nn.head import Projection
from scs_supcon.training.features import SplitFeatures, probe_inputs
from scs_supcon.training.probe import Probe, ProbeHead, choose_classifier
from scs_supcon.training.run_evaluation import SplitPredictions, run_baselines


@pytest.fixture(scope="module")
def evaluation(finished):
    return Evaluation.read(finished / "evaluation.json")


@pytest.fixture(scope="module")
def predictions(finished):
    return pq.read_table(finished / "predictions.parquet").to_pylist()


def test_the_summary_holds_the_headline_of_the_evaluation(evaluation, finished):
    summary = json.loads((finished / "finished.json").read_text())
    headline = evaluation.headline().model_dump(mode="json")
    assert summary == summary | headline
    assert summary["threshold"] == evaluation.rejection.threshold
    assert (summary["split"], summary["images"]) == ("test", 4)


def test_the_confusion_matrix_counts_the_predictions(evaluation, predictions):
    number = {name: index for index, name in enumerate(evaluation.classes)}
    table = np.zeros((4, 4), dtype=int)
    for row in predictions:
        if row["split"] == "test":
            table[number[row["label"]], number[row["prediction"]]] += 1
    assert np.array_equal(evaluation.confusion_matrix(), table)


def test_accuracy_and_rejection_are_those_of_the_predictions(evaluation, predictions):
    test = [row for row in predictions if row["split"] == "test"]
    assert evaluation.accuracy == np.mean([row["label"] == row["prediction"] for row in test])
    assert evaluation.rejection.known_rejected == np.mean([row["unknown"] for row in test])


def test_label_errors_are_searched_in_all_splits(train_small, shapes, tmp_path):
    data = tmp_path / "data"
    for folder in shapes.iterdir():
        (data / folder.name).mkdir(parents=True)
        for file in folder.iterdir():
            (data / folder.name / file.name).symlink_to(file)
    result = train_small(data, tmp_path / "run", epochs=1, settings=["data.test_share=0.5"])
    scores = pq.read_table(tmp_path / "run" / "label_scores.parquet").to_pylist()
    suspected = {row["name"] for row in scores if row["suspicion"] > 0}
    assert {error.image for error in result.evaluation.label_errors} == suspected
    assert len(scores) == 24, "of training, validation and test images"
    for error in result.evaluation.label_errors:
        assert error.label == error.image.split("/")[0] != error.suggested
        assert error.label_probability < error.suggested_probability


def test_leakage_is_measured_from_train_to_test(evaluation):
    leakage = evaluation.leakage
    assert (leakage.style_dim, leakage.chance) == (64, 0.25)
    assert 0 <= leakage.class_from_style <= 1
    agreement = leakage.view_agreement
    assert -1 <= agreement.style_same_class < agreement.style_same_image <= 1


def test_without_test_images_the_validation_images_are_evaluated(shapes, train_small, tmp_path):
    result = train_small(shapes, tmp_path / "run", settings=["data.test_share=0"], epochs=1)
    assert result.evaluation.split == result.summary.split == "val"


def test_a_method_without_style_has_no_leakage(shapes, train_small, tmp_path):
    evaluation = train_small(shapes, tmp_path / "run", method="supcon", epochs=1).evaluation
    assert evaluation.leakage is None
    rows = pq.read_table(tmp_path / "run" / "embeddings.parquet").to_pylist()
    splits = {
        split: (
            torch.tensor([row["common"] for row in rows if row["split"] == split]),
            torch.tensor(
                [evaluation.classes.index(row["label"]) for row in rows if row["split"] == split]
            ),
        )
        for split in ("train", "test")
    }
    expected = metrics.knn_accuracy(*splits["train"], *splits["test"])
    assert evaluation.baselines.knn_on_probe_input == pytest.approx(expected)


def test_the_default_has_the_baselines_of_its_encoder_and_of_its_classifiers(evaluation):
    assert set(evaluation.baselines.measured()) == {
        *("knn_on_probe_input", "nearest_class_mean", "linear_probe_of_encoder", "knn_on_encoder"),
        *("own_classifier", "probe"),
    }


@pytest.mark.parametrize(
    ("name", "frozen", "has_own", "uses_own"),
    [
        ("baseline", False, True, True),
        ("baseline", True, True, True),
        ("timescl", False, True, True),
        ("paco", True, True, True),
        ("timescl", True, True, True),
        ("circle", True, True, True),
        ("circle", False, True, False),
        ("fncl", False, False, False),
        ("supcon", False, False, False),
        ("scs_supcon", True, False, False),
    ],
)
def test_a_method_with_its_own_classifier_is_compared_with_the_probe(
    name, frozen, has_own, uses_own
):
    """Its classifier is used if it is linear in the inputs of the probe or in the features."""
    network = Network(nn.Identity(), Projection(5, 256)).eval()
    method = build_method(name).setup(TaskInfo(network, torch.arange(12) % 3, 3, 5, 256, epochs=1))
    probe_input = probe_input_for(method, frozen=frozen)
    features, labels = torch.randn(12, 1, 5), torch.arange(12) % 3
    inputs = probe_inputs(features, network.projection, probe_input, 192)
    split = SplitFeatures(np.arange(12), labels, features, inputs)
    zeros = torch.zeros(3, inputs.shape[-1]).double()
    # Heads with a validation accuracy of 0.
    heads = (ProbeHead(3.0, 0.0, True, chosen=True), ProbeHead(1.0, 0.0, False))
    probe = Probe(LinearClassifier(zeros, zeros[:, 0], 1.0), heads)

    val = features[:, 0], inputs[:, 0], labels
    chosen, chosen_input = choose_classifier(probe, method, probe_input, val)
    own_inputs = (features if chosen_input == "features" else inputs)[:, 0]
    assert (chosen is not probe) == chosen.own == uses_own
    assert sum(head.chosen for head in chosen.heads) == 1

    embedded = EmbeddedImages(labels, features[:, 0].double(), features[:, 0, :0].double())
    predicted = SplitPredictions(embedded, Decision(*([torch.empty(0)] * 4)))
    linear = Probe(LinearClassifier(torch.zeros(3, 5).double(), zeros[:, 0], 1.0), heads)
    baselines = run_baselines(
        dict.fromkeys(("train", "val", "test"), split),
        dict.fromkeys(("train", "val", "test"), predicted),
        (probe, linear),
        method,
        network.projection,
    )
    assert (baselines.own_classifier is not None) == has_own
    assert (baselines.probe is not None) == has_own
    if uses_own:
        logits = method.class_logits(features[:, 0], network(features[:, 0]).embeddings).detach()
        classifier = chosen.classifier
        expected = classifier.logits(own_inputs) * classifier.temperature
        assert torch.allclose(expected, logits.double(), rtol=1e-4, atol=1e-4)
        assert chosen.heads[0].own and chosen.heads[0].chosen
        accuracy = (logits.argmax(1) == labels).double().mean()
        assert chosen.heads[0].val_accuracy == baselines.own_classifier == pytest.approx(accuracy)
