"""The validation accuracy of an epoch, and early stopping in real runs."""

import csv
import math
import os
import signal
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from scs_supcon.methods import Network, Output, TaskInfo, build_method
from scs_supcon.training.checkpointing import CheckpointManager, SavePolicy, Stopped
from scs_supcon.training.validation import (
    ValidationSet,
    first_of_each_class,
    validation_accuracy,
)


def test_the_first_images_of_each_class_are_chosen():
    labels = np.array([2, 0, 2, 2, 0, 1])
    assert first_of_each_class(labels, 2).tolist() == [0, 1, 2, 4, 5]
    assert first_of_each_class(labels, 1).tolist() == [0, 1, 5]
    assert first_of_each_class(labels[:0]).tolist() == []


def validation_set(features, embeddings, labels, references):
    output = Output(features, embeddings)
    return ValidationSet(torch.tensor(labels), references, lambda network: output)


def reference(rows, labels, references):
    """Classify each row after the references by the cosine with the mean unit row of a class."""

    def unit(row):
        return [x / math.sqrt(sum(y * y for y in row)) for x in row]

    rows = [unit(row) for row in rows]
    means = {}
    for label in set(labels[:references]):
        of_class = [row for row, y in zip(rows, labels[:references]) if y == label]  # noqa: B905
        means[label] = unit([sum(column) for column in zip(*of_class, strict=True)])
    correct = 0
    for row, label in zip(rows[references:], labels[references:], strict=True):
        cosines = {
            k: sum(a * b for a, b in zip(row, mean, strict=True)) for k, mean in means.items()
        }
        correct += max(cosines, key=cosines.get) == label
    return correct / len(labels[references:])


@pytest.mark.parametrize("probe_input", ["features", "embeddings", "common"])
def test_images_belong_to_the_nearest_class_mean(probe_input):
    labels = [0, 1, 2] * 8
    features, embeddings = (torch.randn(24, width) for width in (5, 6))
    features[:, :3] += torch.eye(3)[labels]
    embeddings[:, :3] += torch.eye(3)[labels]
    network = Network(nn.Identity(), nn.Identity())
    validation = validation_set(features, embeddings, labels, references=12)
    accuracy = validation_accuracy(network, build_method("supcon"), validation, probe_input, 4)
    rows = {"features": features, "embeddings": embeddings, "common": embeddings[:, :4]}
    assert accuracy == reference(rows[probe_input].tolist(), labels, 12)


def test_a_class_without_training_images_is_never_predicted():
    rows = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0], [0.0, 1.0]])
    validation = validation_set(rows, rows, [0, 1, 0, 3], references=2)
    method = build_method("supcon")
    network = Network(nn.Identity(), nn.Identity())
    assert validation_accuracy(network, method, validation, "features", 2) == 0.5


def test_a_method_with_a_classifier_uses_it():
    method = build_method("baseline")
    network = Network(nn.Identity(), nn.Linear(2, 2))
    method.setup(TaskInfo(network, torch.tensor([0, 1]), 2, 2, 2, 1))
    with torch.no_grad():
        method.classifier.weight.copy_(torch.tensor([[0.0, 1.0], [1.0, 0.0]]))
        method.classifier.bias.zero_()
    rows = torch.eye(2).repeat(2, 1)
    validation = validation_set(rows, rows, [0, 1, 1, 0], references=2)
    assert validation_accuracy(network, method, validation, "features", 2) == 1.0


def pretrain_metrics(run):
    with (run / "metrics.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["stage"] == "pretrain"]
    accuracies = [float(row["value"]) for row in rows if row["metric"] == "val_accuracy"]
    others = [row for row in rows if row["metric"] != "val_accuracy"]
    return accuracies, others


FROZEN = ["frozen", "trained"]


@pytest.fixture
def options(request, weights):
    """Options of a run with a frozen or a trained encoder."""
    return {"encoder": "tiny", "weights": weights, "frozen": request.param == "frozen"}


@pytest.mark.parametrize("options", FROZEN, indirect=True)
def test_measuring_epochs_does_not_change_training(options, shapes, train_small, tmp_path):
    plain = train_small(shapes, tmp_path / "plain", **options)
    measured = train_small(shapes, tmp_path / "measured", ["pretrain.patience=5"], **options)
    accuracies, others = pretrain_metrics(measured.path)
    assert len(accuracies) == 2
    assert all(0 <= accuracy <= 1 for accuracy in accuracies)
    assert others == pretrain_metrics(plain.path)[1]


@pytest.mark.parametrize("options", FROZEN, indirect=True)
def test_a_run_stops_early_and_says_so(options, shapes, train_small, tmp_path, capsys):
    settings = ["pretrain.patience=1", "pretrain.lr=1e-9"]  # nothing is learned
    run = train_small(shapes, tmp_path / "run", settings, epochs=9, quiet=False, **options)
    assert len(pretrain_metrics(run.path)[0]) == 2
    assert "stopped after epoch 2 of 9: best validation accuracy" in capsys.readouterr().err


def test_a_run_resumed_after_its_early_stop_does_not_continue(
    shapes, train_small, tmp_path, monkeypatch, deterministic_files
):
    often = partial(SavePolicy, every=0.0, at_most=0.0)
    monkeypatch.setattr("scs_supcon.training.checkpointing.SavePolicy", often)
    options = {"settings": ["pretrain.patience=1", "pretrain.lr=1e-9"], "epochs": 9}
    whole = train_small(shapes, tmp_path / "whole", **options)

    def interrupt(self, position):
        if self.memo.stopped:
            os.kill(os.getpid(), signal.SIGTERM)
        self._save_or_stop(epoch_end=True)

    with monkeypatch.context() as patch, pytest.raises(Stopped):
        patch.setattr(CheckpointManager, "after_epoch", interrupt)
        train_small(shapes, tmp_path / "run", **options)
    train_small(shapes, tmp_path / "run", **options)
    assert deterministic_files(tmp_path / "run") == deterministic_files(whole.path)


def test_vectors_can_be_trained_with_early_stopping():
    from scs_supcon.sklearn import ContrastiveClassifier

    generator = np.random.default_rng(0)
    labels = np.arange(60) % 3
    vectors = generator.normal(size=(60, 8)) + 3 * np.eye(8)[labels]
    model = ContrastiveClassifier(epochs=6, settings=("pretrain.patience=2", "pretrain.ema=0.9"))
    assert model.fit(vectors, labels).score(vectors, labels) > 0.9
