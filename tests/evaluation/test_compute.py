"""Every number of an evaluation against scikit-learn, torchmetrics or a loop."""

from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import (
    accuracy_score,
    balanced_accuracy_score,
    confusion_matrix,
    f1_score,
    log_loss,
    precision_recall_fscore_support,
    top_k_accuracy_score,
)
from torchmetrics.functional.classification import multiclass_calibration_error

from scs_supcon.evaluation import metrics
from scs_supcon.evaluation.compute import (
    EmbeddedImages,
    compute_evaluation,
    confused_pairs,
    embedding_baselines,
    model_metrics,
)
from scs_supcon.evaluation.record import Baselines, Evaluation, Retrieval
from scs_supcon.nn.head import unit

CLASSES = ("ant", "bee", "cat", "dog", "elk", "fox", "gnu")


def embedded(n: int, seed: int) -> EmbeddedImages:
    """Make images of all classes except the last."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 6, (n,), generator=generator)
    noise = torch.randn(n, 12, generator=generator, dtype=torch.float64)
    common = unit(2 * torch.eye(7, 8).double()[labels] + noise[:, :8])
    return EmbeddedImages(labels, common, unit(noise[:, 8:]))


TRAIN, EVALUATED = embedded(200, 0), embedded(150, 1)
NO_IMAGES = EmbeddedImages(TRAIN.labels[:0], TRAIN.common[:0], TRAIN.style[:0])
GENERATOR = torch.Generator().manual_seed(2)
NOISE = torch.randn(150, 7, generator=GENERATOR, dtype=torch.float64)
PROBABILITIES = (3 * EVALUATED.common[:, :7] + NOISE / 2).softmax(1)
REJECTED = torch.rand(150, generator=GENERATOR) < 0.2


def compute(**changes: Any) -> Evaluation:
    arguments = {
        "data": "zoo",
        "split": "test",
        "classes": CLASSES,
        "temperature": 2.5,
        "rule": "boundary",
        "boundary": 0.4,
        "threshold": 0.3,
        "train": TRAIN,
        "evaluated": EVALUATED,
        "probabilities": PROBABILITIES,
        "rejected": REJECTED,
        "baselines": Baselines(),
    }
    return compute_evaluation(**arguments | changes)


@pytest.fixture(scope="module")
def evaluation() -> Evaluation:
    return compute(
        unknown_classes=["yak", "zho"], unknown_rejected=torch.tensor([True, True, False, True])
    )


@pytest.mark.filterwarnings("ignore:y_pred contains classes")
def test_scores_agree_with_scikit_learn(evaluation: Evaluation) -> None:
    y, p = EVALUATED.labels.numpy(), PROBABILITIES.numpy()
    best = p.argmax(1)
    expected = {
        "accuracy": accuracy_score(y, best),
        "top5_accuracy": top_k_accuracy_score(y, p, k=5, labels=range(7)),
        "macro_f1": f1_score(y, best, average="macro", labels=np.unique(y), zero_division=0),
        "balanced_accuracy": balanced_accuracy_score(y, best),
    }
    scores = dict(evaluation.scores)
    assert scores.keys() == expected.keys()
    for name, value in expected.items():
        score = scores[name]
        assert score.value == pytest.approx(value, abs=1e-12)
        assert score.low < score.value < score.high
        assert 0.01 < score.high - score.low < 0.3
    assert evaluation.images == 150
    assert evaluation.calibration.nll == pytest.approx(log_loss(y, p, labels=range(7)), abs=1e-9)


def test_calibration_before_scaling_is_that_of_temperature_1(evaluation: Evaluation) -> None:
    calibration = evaluation.calibration
    unscaled = (PROBABILITIES.log() * 2.5).softmax(1)
    for reliability, p in (
        (calibration.before, unscaled),
        (calibration.after, PROBABILITIES),
    ):
        expected = multiclass_calibration_error(p, EVALUATED.labels, 7, n_bins=15)
        assert reliability.ece == pytest.approx(float(expected), abs=1e-6)
        filled = [b for b in reliability.bins if b.count]
        assert sum(b.count for b in filled) == 150
        ece = sum(b.count / 150 * abs(b.accuracy - b.confidence) for b in filled)
        assert ece == pytest.approx(reliability.ece)
        assert all(b.low < b.confidence <= b.high for b in filled)
        empty = [b for b in reliability.bins if not b.count]
        assert empty
        assert all(b.confidence is b.accuracy is None for b in empty)
    assert calibration.temperature == 2.5


def test_class_scores_agree_with_scikit_learn(evaluation: Evaluation) -> None:
    y, best = EVALUATED.labels.numpy(), PROBABILITIES.argmax(1).numpy()
    precision, recall, f1, support = precision_recall_fscore_support(
        y, best, labels=range(7), zero_division=0
    )
    expected = confusion_matrix(y, best, labels=range(7))
    assert np.array_equal(evaluation.confusion_matrix(), expected)
    assert all(images for *_, images in evaluation.confusion)
    assert [row.name for row in evaluation.per_class] == list(CLASSES)
    for index, row in enumerate(evaluation.per_class):
        assert row.images == support[index]
        assert (row.precision, row.recall, row.f1) == pytest.approx(
            (precision[index], recall[index], f1[index]), abs=1e-12
        )
        rejected = REJECTED.numpy()[y == index]
        assert row.rejected == pytest.approx(rejected.mean() if len(rejected) else 0)


def test_the_most_confused_pairs_come_first(evaluation: Evaluation) -> None:
    pairs = evaluation.confused_pairs
    counts = [pair.count for pair in pairs]
    assert counts == sorted(counts, reverse=True)
    table = evaluation.confusion_matrix()
    assert sum(counts) == table.sum() - np.trace(table) > 0
    for pair in pairs:
        assert table[CLASSES.index(pair.label), CLASSES.index(pair.prediction)] == pair.count > 0
    assert confused_pairs([(0, 0, 1), (2, 2, 5)], ("a", "b", "c")) == ()


def test_rejection_of_known_and_unknown_classes(evaluation: Evaluation) -> None:
    rejection = evaluation.rejection
    assert rejection.known_rejected == pytest.approx(float(REJECTED.double().mean()))
    assert rejection.unknown_rejected == 0.75
    assert rejection.unknown_images == 4
    assert rejection.unknown_classes == ("yak", "zho")
    known_only = compute().rejection
    assert known_only.unknown_rejected is None
    assert known_only.unknown_images == 0


def test_embeddings_are_compared_with_the_training_images(evaluation: Evaluation) -> None:
    arguments = TRAIN.common, TRAIN.labels, EVALUATED.common, EVALUATED.labels
    assert embedding_baselines(TRAIN, EVALUATED).measured() == {
        "knn_on_probe_input": metrics.knn_accuracy(*arguments),
        "nearest_class_mean": metrics.nearest_mean_accuracy(*arguments),
    }
    assert embedding_baselines(NO_IMAGES, EVALUATED).measured() == {}
    assert evaluation.leakage is not None
    assert evaluation.leakage.class_from_common > evaluation.leakage.class_from_style
    assert evaluation.retrieval.precision_at_1 is not None
    assert evaluation.retrieval.precision_at_1 > 0.3


def test_pairs_depend_on_the_boundary(evaluation: Evaluation) -> None:
    assert (evaluation.pairs.threshold, evaluation.pairs.rule) == (0.4, "boundary")
    higher = compute(rule="fitted", boundary=0.7).pairs
    assert (higher.threshold, higher.rule) == (0.7, "fitted")
    assert evaluation.rejection.threshold == 0.3
    assert higher.true_positive_rate < evaluation.pairs.true_positive_rate


def test_training_images_among_the_evaluated_images_are_counted() -> None:
    common = EVALUATED.common.clone()
    common[:5] = TRAIN.common[7:12].float()  # the precision in which a run stores them
    evaluated = EmbeddedImages(EVALUATED.labels, common, EVALUATED.style)
    assert compute(evaluated=evaluated).training_images == 5
    assert compute().training_images == 0
    assert compute(train=NO_IMAGES).training_images == 0


def test_equal_vectors_are_compared_in_finite_time() -> None:
    equal = torch.ones_like(TRAIN.common) / 8**0.5
    train = EmbeddedImages(TRAIN.labels, equal, TRAIN.style)
    evaluated = EmbeddedImages(EVALUATED.labels, equal[:150], EVALUATED.style)
    assert compute(train=train, evaluated=evaluated).training_images == 150


def test_the_same_images_give_the_same_file() -> None:
    assert compute().to_json() == compute().to_json()
    assert "NaN" not in compute().to_json()


def test_an_infinite_likelihood_is_left_out() -> None:
    certain = torch.eye(7, dtype=torch.float64)[(EVALUATED.labels + 1) % 7]
    evaluation = compute(probabilities=certain)
    assert evaluation.calibration.nll is None
    assert "Infinity" not in evaluation.to_json()
    assert model_metrics(evaluation).accuracy == 0


def test_one_image_is_enough() -> None:
    evaluation = compute(
        evaluated=embedded(1, 3),
        probabilities=torch.full((1, 7), 1 / 7, dtype=torch.float64),
        rejected=torch.tensor([False]),
    )
    assert evaluation.images == 1
    assert evaluation.retrieval == Retrieval(precision_at_1=None, map_at_r=None)
    assert "NaN" not in evaluation.to_json()
