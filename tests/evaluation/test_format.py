"""The text of an evaluation."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scs_supcon.evaluation.format import (
    describe,
    leakage_sentence,
    pair_warnings,
    style_warnings,
)
from scs_supcon.evaluation.record import (
    ConfusedPair,
    Evaluation,
    FactorReading,
    LabelError,
    Leakage,
    PairHistogram,
    PairStatistics,
    Retrieval,
    ViewAgreement,
)


@pytest.fixture
def evaluation(finished: Path) -> Evaluation:
    return Evaluation.read(finished / "evaluation.json")


def test_every_number_is_explained(evaluation: Evaluation) -> None:
    rates = {"auc": 0.91, "true_positive_rate": 0.64, "false_positive_rate": 0.0071}
    evaluation = evaluation.model_copy(
        update={
            "retrieval": Retrieval(precision_at_1=0.61, map_at_r=0.42),
            "pairs": evaluation.pairs.model_copy(update=rates),
        }
    )
    text = describe(evaluation)
    for _, score in evaluation.scores:
        assert f"{score.value:.2%}" in text
    assert evaluation.leakage is not None
    for phrase in (
        f"{evaluation.data}, test split: 4 images of 4 classes",
        "the first prediction is correct",
        "95% confidence intervals",
        "vote of the ten most similar training images",
        "a linear classifier on the encoder's features",
        "61.00%",
        "42.00%",
        "0.9100",
        "64.0% of the same-class pairs and 0.71% of the different-class pairs reach the",
        "rejected as unknown",
        leakage_sentence(evaluation.leakage),
        "effective rank of the style field",
    ):
        assert phrase in text
    assert max(map(len, text.splitlines())) < 250
    assert text == text.rstrip()


def test_missing_results_are_left_out(evaluation: Evaluation) -> None:
    text = describe(
        evaluation.model_copy(
            update={
                "leakage": None,
                "confused_pairs": (),
                "label_errors": (),
                "retrieval": Retrieval(precision_at_1=None, map_at_r=None),
                "pairs": evaluation.pairs.model_copy(update={"auc": None}),
                "per_class": tuple(
                    row.model_copy(update={"f1": 1.0}) for row in evaluation.per_class
                ),
            }
        )
    )
    for phrase in ("style", "P@1", "AUC", "confused", "label errors", "hardest", "saved to"):
        assert phrase not in text
    assert "of unknown classes" not in text
    assert "\n\n\n" not in text


def test_findings_are_listed(evaluation: Evaluation) -> None:
    errors = [
        LabelError(
            image=f"{i}.png",
            label="a",
            suggested="b",
            label_probability=0.1,
            suggested_probability=0.9,
        )
        for i in range(7)
    ]
    rejection = {"unknown_rejected": 0.75, "unknown_images": 8, "unknown_classes": (*"pqrstuv",)}
    text = describe(
        evaluation.model_copy(
            update={
                "split": "all",
                "training_images": 3,
                "saved_to": "runs/x/evaluations/y.json",
                "label_errors": tuple(errors),
                "confused_pairs": (ConfusedPair(label="a", prediction="b", count=1),),
                "rejection": evaluation.rejection.model_copy(update=rejection),
            }
        )
    )
    for phrase in (
        f"{evaluation.data}: 4 images",
        "3 of them are training images: the numbers are too optimistic",
        "75.00%",
        "of 8 images of unknown classes: p, q, r, s, t and 2 more",
        "suspected label errors: 7",
        "0.png: a, or b?",
        "and 2 more",
        "a predicted as b once",
        "saved to  runs/x/evaluations/y.json",
    ):
        assert phrase in text


@pytest.mark.parametrize(
    ("style", "meaning"),
    [
        (0.11, "next to nothing"),
        (0.3, "a little"),
        (0.6, "much"),
        (0.85, "almost as much"),
        (0.95, "as much"),
    ],
)
def test_the_leakage_sentence_follows_the_numbers(style: float, meaning: str) -> None:
    text = leakage_sentence(
        Leakage(
            chance=0.1,
            class_from_common=0.9,
            class_from_style=style,
            view_agreement=None,
            style_rank=1.0,
            style_dim=4,
        )
    )
    assert f"style reveals {meaning}" in text
    assert f"{style:.0%} of the images" in text
    assert text.count(".") == 1, "one sentence"


def leakage_of(**changes: Any) -> Leakage:
    values = {
        "chance": 0.1,
        "class_from_common": 0.9,
        "class_from_style": 0.2,
        "view_agreement": None,
        "style_rank": 20.0,
        "style_dim": 64,
    }
    return Leakage(**values | changes)


@pytest.mark.parametrize(
    ("changes", "phrase"),
    [
        ({"style_rank": 0.0}, "The style field is constant"),
        ({"style_rank": 1.3}, "almost empty: it uses 1.3 of 64 directions"),
        ({"class_from_style": 0.8}, "full of class: it reveals 88% of what the common field"),
    ],
)
def test_each_failure_of_the_style_field_has_a_sentence(
    changes: dict[str, float], phrase: str
) -> None:
    (sentence,) = style_warnings(leakage_of(**changes))
    assert phrase in sentence


def test_equal_styles_of_a_class_count_as_constant() -> None:
    agreement = ViewAgreement(style_same_image=0.99, style_same_class=0.97, common_same_image=0.9)
    (sentence,) = style_warnings(leakage_of(view_agreement=agreement, style_rank=3.0))
    assert "constant" in sentence


def test_a_working_style_field_has_no_warning() -> None:
    assert style_warnings(leakage_of()) == ()
    assert style_warnings(leakage_of(class_from_common=0.12, class_from_style=0.12)) == ()


def test_the_measures_of_style_are_listed(evaluation: Evaluation) -> None:
    factor = FactorReading(name="size", from_style=0.8, from_common=0.1, from_features=0.9)
    leakage = leakage_of(
        class_from_style_knn=0.15,
        class_from_style_mlp=0.25,
        style_purity=0.05,
        variance_explained=0.45,
        factors=(factor,),
    )
    text = describe(evaluation.model_copy(update={"leakage": leakage}))
    for phrase in (
        "class from style: 20% linearly, 15% by kNN, 25% by a neural network",
        "class purity of neighbours in style: 0.05 (0 is chance)",
        "style explains 45% of the variance within classes",
        "size     0.80 from style, 0.10 from common, 0.90 from the features",
    ):
        assert phrase in text


def pairs_with(**changes: Any) -> PairStatistics:
    histogram = PairHistogram(
        edges=tuple(np.linspace(-1, 1, 61).tolist()),
        same=(0,) * 59 + (10,),
        different=(0,) * 20 + (100,) + (0,) * 39,
    )
    values = {
        "rule": "boundary",
        "threshold": 0.4,
        "t": 10.0,
        "auc": 0.9,
        "true_positive_rate": 0.9,
        "false_positive_rate": 0.1,
        "roc": (),
        "histogram": histogram,
        "images": 20,
    }
    return PairStatistics(**values | changes)


def test_healthy_pairs_give_no_warning() -> None:
    assert pair_warnings(pairs_with()) == ()
    assert pair_warnings(pairs_with(t=None)) == ()


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"t": 0.01}, "towards 0"),
        ({"t": 100.0}, "its limit"),
        ({"threshold": 29.9}, "outside of all similarities"),
        ({"threshold": -1.5}, "outside of all similarities"),
    ],
)
def test_failed_pairs_are_named(changes: dict[str, float], text: str) -> None:
    (sentence,) = pair_warnings(pairs_with(**changes))
    assert text in sentence


@pytest.mark.parametrize("changes", [{"t": 0.01}, {"threshold": 29.9}])
def test_the_advice_fits_methods_without_a_learned_boundary(changes: dict[str, float]) -> None:
    (of_scs,) = pair_warnings(pairs_with(**changes))
    (of_others,) = pair_warnings(pairs_with(rule="fitted", **changes))
    assert "preset" in of_scs or "fix t" in of_scs
    assert "preset" not in of_others
    assert "fix t" not in of_others
    assert "rain for longer" in of_others and "ower the learning rate" in of_others


def test_a_collapsed_common_field_is_named() -> None:
    healthy = pairs_with().histogram
    collapsed = healthy.model_copy(update={"different": (0,) * 58 + (50, 50)})
    (sentence,) = pair_warnings(pairs_with(histogram=collapsed))
    assert "collapsed" in sentence
