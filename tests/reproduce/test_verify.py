"""Stored predictions are compared with those of a repetition."""

import pytest

from scs_supcon.errors import UserError
from scs_supcon.reproduce.verify import compare_predictions, verify


def table(correct: int, images: int = 40, wrong: str = "b") -> dict[str, tuple[str, str]]:
    return {f"{n:02d}": ("a", "a" if n < correct else wrong) for n in range(images)}


def test_equal_predictions_agree():
    result = compare_predictions("x", table(30), table(30))
    assert result.agrees
    assert result.sentence == (
        "x agrees: all 40 predictions are equal, accuracy 75.00% stored, 75.00% now."
    )


def test_small_differences_agree_up_to_chance():
    result = compare_predictions("x", table(30), table(28))
    assert result.agrees
    assert result.p == 0.5  # two disagreements in one direction: 2 · (1/2)²
    assert "38 of 40 predictions are equal" in result.sentence
    # The same images are wrong, but other classes are predicted.
    result = compare_predictions("x", table(30), table(30, wrong="c"))
    assert (result.agrees, result.equal, result.p) == (True, 30, 1.0)


def test_large_differences_do_not_agree():
    result = compare_predictions("x", table(30), table(20))
    assert not result.agrees
    assert result.p == pytest.approx(2 / 2**10)
    assert result.sentence.startswith("x does not agree: 30 of 40")


def test_other_images_are_an_error(tmp_path):
    with pytest.raises(UserError, match="3 of 40 test images of x were not tested again"):
        compare_predictions("x", table(30), table(30, images=37))
    with pytest.raises(UserError, match="is not a results folder"):
        verify(tmp_path, data={}, compute=None, display=None)
