"""Sentences of the report."""

import pytest

from scs_supcon.evaluation.metrics import accuracy_interval
from scs_supcon.evaluation.record import (
    Calibration,
    Leakage,
    PairHistogram,
    PairStatistics,
    Rejection,
    Reliability,
    Retrieval,
    Score,
    ViewAgreement,
)
from scs_supcon.report import text

SCORE = Score(value=0.80, low=0.77, high=0.83)
PAIRS = PairStatistics(
    rule="boundary",
    threshold=0.66,
    auc=0.975,
    true_positive_rate=0.641,
    false_positive_rate=0.0064,
    roc=(),
    histogram=PairHistogram(edges=(), same=(), different=()),
    images=9,
)


@pytest.mark.parametrize(
    ("best", "expected"),
    [
        (0.9, "kNN, is 10.0 points better, outside the confidence interval"),
        (0.82, "kNN, is 2.0 points better, within the confidence interval: the difference may be"),
        (0.80, "has the same accuracy"),
        (0.78, "2.0 points better than the best baseline, kNN, within the confidence interval"),
        (0.5, "30.0 points better than the best baseline, kNN, outside the confidence interval"),
    ],
)
def test_the_best_baseline_is_named_in_every_case(best, expected):
    assert expected in text.about_baselines(SCORE, {"linear": 0.1, "kNN": best})


def test_one_image_more_is_within_the_interval_even_if_all_are_correct():
    low, high = accuracy_interval([True] * 200)
    score = Score(value=1.0, low=low, high=high)
    assert "within the confidence" in text.about_baselines(score, {"kNN": 199 / 200})


def test_without_baselines_there_is_no_comparison():
    assert text.about_baselines(SCORE, {}) == "No baseline was measured."


def test_pairs_above_the_boundary_are_described():
    assert text.about_pairs(PAIRS) == (
        "64.1% of the same-class pairs and 0.64% of the different-class pairs have a similarity "
        "above the learned boundary (0.66). A random same-class pair is more similar than a random "
        "different-class pair in 97.5% of cases (AUC)."
    )
    without_boundary = PAIRS.model_copy(update={"rule": "quantile"})
    assert "this method learns no boundary" in text.about_pairs(without_boundary)
    few = PAIRS.model_copy(update={"true_positive_rate": None})
    assert "too few" in text.about_pairs(few)


def test_better_and_worse_calibration_are_distinguished():
    def calibration(after):
        before = Reliability(ece=0.05, bins=())
        return Calibration(temperature=1.2, before=before, after=Reliability(ece=after, bins=()))

    better = text.about_calibration(calibration(0.03))
    assert "3.0 points on average (expected calibration error), down from 5.0" in better
    assert "not better than 5.0" in text.about_calibration(calibration(0.06))


def test_rejection_of_known_and_unknown_images():
    assert text.about_rejection(Rejection(known_rejected=0.1)).count("%") == 1
    both = Rejection(known_rejected=0.1, unknown_rejected=0.7, unknown_images=1234)
    assert "Of 1,234 images of unknown classes, 70.0" in text.about_rejection(both)


def test_retrieval_is_left_out_if_it_was_not_measured():
    assert text.about_retrieval(Retrieval(precision_at_1=None, map_at_r=None)) == ""
    assert "(P@1)" in text.about_retrieval(Retrieval(precision_at_1=0.7, map_at_r=0.5))


def test_the_style_field_is_described_with_and_without_views():
    leakage = Leakage(
        chance=0.1,
        class_from_common=0.9,
        class_from_style=0.2,
        view_agreement=None,
        style_rank=4.25,
        style_dim=8,
    )
    assert text.about_style(leakage) == (
        "The effective rank of the style field is 4.2 of 8 dimensions."
    )

    def with_views(same_class):
        agreement = ViewAgreement(
            style_same_image=0.7, style_same_class=same_class, common_same_image=0.9
        )
        return text.about_style(leakage.model_copy(update={"view_agreement": agreement}))

    assert "a similarity of 0.70 in the style field and 0.90 in the common" in with_views(None)
    assert "(two images of one class: 0.10)" in with_views(0.1)


def test_shown_images_are_counted_by_split():
    assert text.about_shown_images(["test"]) == "The page shows 1 test image."
    assert text.about_shown_images(["val", "test", "val"]) == (
        "The page shows 1 test image and 2 validation images."
    )
    assert text.about_shown_images(["test", "val", "train"]) == (
        "The page shows 1 test image, 1 validation image and 1 training image with a "
        "suspected label error."
    )


def test_problems_are_grouped_by_kind_most_frequent_first():
    problems = [{"kind": kind} for kind in ("small_class", "duplicate", "duplicate")]
    assert [(kind, len(group)) for kind, group in text.problem_groups(problems)] == [
        ("duplicate", 2),
        ("small class", 1),
    ]
    assert text.plural(1, "problem") == "1 problem"
    assert text.plural(2000, "problem") == "2,000 problems"
