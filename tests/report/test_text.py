"""Sentences: honest, and right about who is better."""

import pytest

from scs_supcon.evaluation.metrics import accuracy_interval
from scs_supcon.report import text as words

SCORE = {"value": 0.80, "low": 0.77, "high": 0.83}


@pytest.mark.parametrize(
    ("best", "expected"),
    [
        (0.9, "kNN, is 10.0 points better, and more than chance explains"),
        (0.82, "kNN, is 2.0 points better, within what chance can do: it is level, not better"),
        (0.80, "does exactly as well"),
        (0.78, "2.0 points better than the best of the baselines, kNN, which is within"),
        (0.5, "30.0 points better than the best of the baselines, kNN, and more than chance"),
    ],
)
def test_the_best_baseline_is_named_whoever_wins(best, expected):
    assert expected in words.beside_baselines(SCORE, {"linear": 0.1, "kNN": best})


def test_one_image_more_is_chance_even_where_all_are_right():
    low, high = accuracy_interval([True] * 200)
    verdict = words.beside_baselines({"value": 1.0, "low": low, "high": high}, {"kNN": 199 / 200})
    assert "within what chance can do" in verdict


def test_without_baselines_nothing_is_claimed():
    assert words.beside_baselines(SCORE, {}) == "Nothing was measured beside it."


PAIRS = {
    "true_positive_rate": 0.641,
    "false_positive_rate": 0.0064,
    "auc": 0.975,
    "rule": "boundary",
    "threshold": 0.66,
}


def test_the_boundary_in_words():
    assert words.about_pairs(PAIRS).replace("\u00a0", " ") == (
        "64.1 % of the pairs of one class are more alike than the boundary that training found "
        "(0.66), and 0.64 % of the pairs of different classes. Without any line, a pair of one "
        "class is the more alike of two pairs in 97.5 % of cases."
    )
    assert "as this method learns none" in words.about_pairs(PAIRS | {"rule": "quantile"})
    assert "too few" in words.about_pairs(PAIRS | {"true_positive_rate": None})


def test_calibration_is_not_praised_when_it_got_worse():
    found = {"temperature": 1.2, "before": {"ece": 0.05}, "after": {"ece": 0.03}}
    assert "3.0 points on average, down from 5.0" in words.about_calibration(found)
    found["after"] = {"ece": 0.06}
    assert "6.0 points on average, not better than 5.0" in words.about_calibration(found)


def test_refusals_of_known_and_unknown():
    known = {"known": 0.1, "unknown": None, "unknown_images": 0}
    assert words.about_refusals(known).count("%") == 1
    both = {"known": 0.1, "unknown": 0.7, "unknown_images": 1234}
    assert "Of 1,234 images of other classes" in words.about_refusals(both)


def test_retrieval_is_left_out_where_there_is_none():
    assert words.about_retrieval({"p_at_1": None, "map_at_r": None}) == ""
    assert "(P@1)" in words.about_retrieval({"p_at_1": 0.7, "map_at_r": 0.5})


def test_style_with_and_without_views():
    found = {"style_rank": 4.25, "style_columns": 8, "view_agreement": None}
    assert words.about_style(found) == (
        "The style field fills 4.2 of its 8 directions (effective rank)."
    )
    agreement = {"same_image": 0.7, "classmates": None, "common_same_image": 0.9}
    told = words.about_style(found | {"view_agreement": agreement})
    assert told.startswith("Two views of one image agree by 0.70 in the style field and by 0.90")
    told = words.about_style(found | {"view_agreement": agreement | {"classmates": 0.1}})
    assert "(two images of a class: 0.10)" in told


def test_shown_images_are_counted_by_what_they_are():
    assert words.about_shown(["test"]) == "Shown are 1 test image."
    assert words.about_shown(["val", "test", "val"]) == (
        "Shown are 1 test image and 2 validation images."
    )
    assert words.about_shown(["test", "val", "train"]) == (
        "Shown are 1 test image, 1 validation image and 1 training image whose label is in doubt."
    )


def test_problems_by_kind_most_frequent_first():
    problems = [{"kind": kind} for kind in ("tiny class", "duplicate", "duplicate")]
    assert [(kind, len(found)) for kind, found in words.problem_groups(problems)] == [
        ("duplicate", 2),
        ("small class", 1),
    ]
    assert words.many(1, "problem") == "1 problem"
    assert words.many(2000, "problem") == "2,000 problems"
