"""The record in words."""

import copy
import json

import pytest

from scs_supcon.evaluation.format import describe


@pytest.fixture
def record(finished) -> dict:
    return json.loads((finished / "evaluation.json").read_text())


def test_every_number_comes_with_its_meaning(record) -> None:
    record["retrieval"] = {"p_at_1": 0.61, "map_at_r": 0.42}
    record["pairs"] |= {"auc": 0.91, "true_positive_rate": 0.64, "false_positive_rate": 0.0071}
    text = describe(record)
    for name in ("acc1", "acc5", "macro_f1", "balanced_acc"):
        assert f"{record['scores'][name]['value']:.2%}" in text
    for part in (
        f"{record['data']}, test part: 4 images of 4 classes",
        "the first guess is right",
        "intervals: 95 %",
        "vote of the ten most similar training images",
        "a linear classifier without stage 1",
        "61.00%",
        "42.00%",
        "0.9100",
        "is reached by 64.0% of same-class pairs and 0.71% of the others",
        "known classes, wrongly refused",
        record["leakage"]["sentence"],
        "directions (effective rank)",
    ):
        assert part in text
    assert max(map(len, text.splitlines())) < 250
    assert text == text.rstrip()


def test_what_there_is_not_is_not_said(record) -> None:
    bare = copy.deepcopy(record) | {"leakage": None, "confused": [], "label_errors": []}
    bare["retrieval"] = {"p_at_1": None, "map_at_r": None}
    bare["pairs"]["auc"] = None
    for row in bare["per_class"]:
        row["f1"] = 1.0
    text = describe(bare)
    for part in ("style", "P@1", "AUC", "confused", "second look", "hardest", "held-out", "kept"):
        assert part not in text
    assert "\n\n\n" not in text


def test_what_matters_is_said(record) -> None:
    told = copy.deepcopy(record) | {
        "split": "all",
        "trained_on": 3,
        "kept": "runs/x/evaluations/y.json",
        "label_errors": [{"name": f"{i}.png", "label": "a", "suggested": "b"} for i in range(7)],
        "confused": [{"label": "a", "prediction": "b", "count": 1}],
    }
    told["refused"] |= {
        "unknown": 0.75,
        "unknown_images": 8,
        "unknown_classes": [*"pqrstuv"],
    }
    text = describe(told)
    for part in (
        f"{record['data']}: 4 images",
        "3 of them were trained on: the numbers flatter",
        "75.00%",
        "of 8 images of held-out classes: p, q, r, s, t and 2 more",
        "labels worth a second look: 7",
        "0.png: a, or b?",
        "and 2 more",
        "a taken for b once",
        "kept in   runs/x/evaluations/y.json",
    ):
        assert part in text
