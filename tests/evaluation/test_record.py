"""The record of an evaluation: every number against scikit-learn, torchmetrics or a loop."""

import json

import numpy as np
import pytest
import torch
from sklearn.metrics import (
    accuracy_score,
    balanced_accuracy_score,
    confusion_matrix,
    f1_score,
    precision_recall_fscore_support,
    top_k_accuracy_score,
)
from torchmetrics.functional.classification import multiclass_calibration_error

from scs_supcon.evaluation import metrics
from scs_supcon.evaluation.record import (
    Answers,
    Rows,
    Rules,
    Strangers,
    baselines,
    confused,
    evaluate,
)
from scs_supcon.nn.head import unit

CLASSES = ("ant", "bee", "cat", "dog", "elk", "fox", "gnu")
RULES = Rules(CLASSES, temperature=2.5, rule="boundary", threshold=0.4)


def rows(n: int, seed: int) -> Rows:
    """Images of all classes but the last."""
    draw = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 6, (n,), generator=draw)
    noise = torch.randn(n, 12, generator=draw, dtype=torch.float64)
    return Rows(
        labels, unit(2 * torch.eye(7, 8).double()[labels] + noise[:, :8]), unit(noise[:, 8:])
    )


@pytest.fixture(scope="module")
def known() -> Rows:
    return rows(200, 0)


@pytest.fixture(scope="module")
def answers() -> Answers:
    asked = rows(150, 1)
    draw = torch.Generator().manual_seed(2)
    logits = 3 * asked.common[:, :7] + torch.randn(150, 7, generator=draw, dtype=torch.float64) / 2
    return Answers(asked, logits.softmax(1), torch.rand(150, generator=draw) < 0.2)


@pytest.fixture(scope="module")
def record(known: Rows, answers: Answers) -> dict:
    strangers = Strangers(["yak", "zho"], torch.tensor([True, True, False, True]))
    return evaluate(RULES, known, answers, None, strangers)


@pytest.mark.filterwarnings("ignore:y_pred contains classes")
def test_scores_agree_with_scikit_learn(record, answers) -> None:
    y, p = answers.rows.labels.numpy(), answers.probabilities.numpy()
    best = p.argmax(1)
    expected = {
        "acc1": accuracy_score(y, best),
        "acc5": top_k_accuracy_score(y, p, k=5, labels=range(7)),
        "macro_f1": f1_score(y, best, average="macro", labels=np.unique(y), zero_division=0),
        "balanced_acc": balanced_accuracy_score(y, best),
    }
    assert record["scores"].keys() == expected.keys()
    for name, value in expected.items():
        score = record["scores"][name]
        assert score["value"] == pytest.approx(value, abs=1e-12)
        assert score["low"] < score["value"] < score["high"]
        assert 0.01 < score["high"] - score["low"] < 0.3
    assert record["images"] == 150


def test_calibration_before_is_at_temperature_one(record, answers) -> None:
    found = record["calibration"]
    logits = answers.probabilities.log() * 2.5
    labels = answers.rows.labels
    for when, p in (("before", logits.softmax(1)), ("after", answers.probabilities)):
        peer = multiclass_calibration_error(p, labels, 7, n_bins=15)
        assert found[when]["ece"] == pytest.approx(float(peer), abs=1e-6)
        bins = found[when]["bins"]
        assert sum(one["count"] for one in bins) == 150
        ece = sum(
            one["count"] / 150 * abs(one["accuracy"] - one["confidence"])
            for one in bins
            if one["count"]
        )
        assert ece == pytest.approx(found[when]["ece"])
        for one in bins:
            if one["count"]:
                assert one["low"] < one["confidence"] <= one["high"]
            else:
                assert one["confidence"] is one["accuracy"] is None
    assert found["temperature"] == 2.5


def test_classes_agree_with_scikit_learn(record, answers) -> None:
    y, best = answers.rows.labels.numpy(), answers.probabilities.argmax(1).numpy()
    precision, recall, f1, support = precision_recall_fscore_support(
        y, best, labels=range(7), zero_division=0
    )
    assert record["confusion"] == confusion_matrix(y, best, labels=range(7)).tolist()
    for index, row in enumerate(record["per_class"]):
        assert row["name"] == CLASSES[index]
        assert row["images"] == support[index]
        assert (row["precision"], row["recall"], row["f1"]) == pytest.approx(
            (precision[index], recall[index], f1[index])
        )
        own = answers.refused.numpy()[y == index]
        assert row["refused"] == pytest.approx(own.mean() if len(own) else 0)


def test_the_most_confused_come_first(record) -> None:
    counts = [pair["count"] for pair in record["confused"]]
    assert counts == sorted(counts, reverse=True)
    table = np.array(record["confusion"])
    assert sum(counts) == table.sum() - np.trace(table)
    for pair in record["confused"]:
        place = CLASSES.index(pair["label"]), CLASSES.index(pair["prediction"])
        assert table[place] == pair["count"] > 0
    assert confused(torch.eye(3), ("a", "b", "c")) == []


def test_refusals_of_known_and_of_held_out_classes(record, answers, known) -> None:
    assert record["refused"] == {
        "known": pytest.approx(float(answers.refused.double().mean())),
        "unknown": 0.75,
        "unknown_images": 4,
        "unknown_classes": ["yak", "zho"],
    }
    without = evaluate(RULES, known, answers, None, Strangers())["refused"]
    assert without["unknown"] is None
    assert without["unknown_images"] == 0


def test_vectors_are_judged_against_the_training_images(record, answers, known) -> None:
    asked = answers.rows
    between = known.common, known.labels, asked.common, asked.labels
    assert baselines(known, asked) == {
        "kNN on the readout": metrics.knn_accuracy(*between),
        "nearest class mean": metrics.nearest_mean_accuracy(*between),
    }
    assert baselines(Rows(known.labels[:0], known.common[:0], known.style[:0]), asked) == {}
    assert record["leakage"]["class_from_common"] > record["leakage"]["class_from_style"]
    assert record["retrieval"]["p_at_1"] > 0.3


def test_the_boundary_is_marked_where_one_was_learned(record, answers, known) -> None:
    pairs = record["pairs"]
    assert (pairs["boundary"], pairs["threshold"], pairs["rule"]) == (0.4, 0.4, "boundary")
    rules = Rules(CLASSES, 1.0, "quantile", 0.7)
    other = evaluate(rules, known, answers, None, Strangers())["pairs"]
    assert (other["boundary"], other["threshold"], other["rule"]) == (None, 0.7, "quantile")
    assert other["true_positive_rate"] < pairs["true_positive_rate"]


def test_images_that_were_trained_on_are_noticed(known, answers) -> None:
    asked = answers.rows
    common = asked.common.clone()
    common[:5] = known.common[7:12].float()  # as a run keeps them
    seen = Answers(Rows(asked.labels, common, asked.style), answers.probabilities, answers.refused)
    assert evaluate(RULES, known, seen, None, Strangers())["trained_on"] == 5
    assert evaluate(RULES, known, answers, None, Strangers())["trained_on"] == 0
    nobody = Rows(known.labels[:0], known.common[:0], known.style[:0])
    assert evaluate(RULES, nobody, answers, None, Strangers())["trained_on"] == 0


def test_vectors_that_are_all_alike_are_compared_in_finite_time(known, answers) -> None:
    alike = torch.ones_like(known.common) / 8**0.5
    asked = Rows(answers.rows.labels, alike[:150], answers.rows.style)
    rows = Rows(known.labels, alike, known.style)
    seen = Answers(asked, answers.probabilities, answers.refused)
    assert evaluate(RULES, rows, seen, None, Strangers())["trained_on"] == 150


def test_the_record_is_plain_and_the_same_every_time(record, answers, known) -> None:
    strangers = Strangers(["yak", "zho"], torch.tensor([True, True, False, True]))
    again = evaluate(RULES, known, answers, None, strangers)
    assert json.dumps(again) == json.dumps(record)
    assert "NaN" not in json.dumps(record)


def test_one_image_is_enough(known) -> None:
    one = rows(1, 3)
    p = torch.full((1, 7), 1 / 7, dtype=torch.float64)
    record = evaluate(RULES, known, Answers(one, p, torch.tensor([False])), None, Strangers())
    assert record["images"] == 1
    assert record["retrieval"] == {"p_at_1": None, "map_at_r": None}
    assert "NaN" not in json.dumps(record)
