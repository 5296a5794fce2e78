"""The text of an evaluation."""

from pathlib import Path

import pytest

from scs_supcon.evaluation.format import describe, leakage_sentence
from scs_supcon.evaluation.record import ConfusedPair, Evaluation, LabelError, Leakage, Retrieval


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
