"""Two runs on the same images, with a plain reference."""

import math

import pytest

from scs_supcon.errors import UserError
from scs_supcon.server.comparison import Predicted, compare_predictions, sign_test

LABELS = {f"{i}.png": "ab"[i % 2] for i in range(12)}


def predicted(wrong, split="test"):
    flip = {"a": "b", "b": "a"}
    return {
        name: Predicted(flip[label] if name in wrong else label, split)
        for name, label in LABELS.items()
    }


def test_accuracies_changes_and_classes():
    old = predicted({"0.png", "1.png", "2.png"})
    new = predicted({"2.png", "3.png"})
    result = compare_predictions(old, new, LABELS, "ab", edited={"4.png"})
    assert (result["images"], result["left_out"]) == (11, 1)
    assert [score["value"] for score in result["accuracy"]] == [8 / 11, 9 / 11]
    assert (result["fixed"], result["broken"]) == (2, 1)
    assert {row["image"] for row in result["changed"]} == {"0.png", "1.png", "3.png"}
    by_class = {row["class"]: (row["images"], row["old"], row["new"]) for row in result["classes"]}
    assert by_class == {"a": (5, 3 / 5, 4 / 5), "b": (6, 5 / 6, 5 / 6)}


def test_runs_without_common_images_are_not_compared():
    with pytest.raises(UserError, match="no test images in common"):
        compare_predictions(predicted(set()), {}, LABELS, "ab", edited=set())


def test_the_interval_is_wilsons():
    score = compare_predictions(predicted({"0.png"}), predicted(()), LABELS, "ab", set())
    n, p, z = 12, 11 / 12, 1.959963984540054
    centre = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    assert score["accuracy"][0]["low"] == pytest.approx(centre - half)
    assert score["accuracy"][0]["high"] == pytest.approx(centre + half)


@pytest.mark.parametrize(("fixed", "broken"), [(0, 0), (5, 0), (7, 2), (3, 3), (40, 20)])
def test_the_sign_test_counts_all_outcomes_as_unlikely(fixed, broken):
    n, k = fixed + broken, max(fixed, broken)
    chances = [math.comb(n, i) / 2**n for i in range(n + 1)]
    expected = sum(p for i, p in enumerate(chances) if abs(i - n / 2) >= abs(k - n / 2))
    assert sign_test(fixed, broken) == pytest.approx(expected)


def test_validation_images_are_used_without_a_test_split():
    result = compare_predictions(predicted((), "val"), predicted((), "val"), LABELS, "ab", set())
    assert (result["split"], result["images"]) == ("val", 12)
