"""The model card: data, recipe, metrics and licence, and names that are no markup."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from scs_supcon.inference.card import write_card
from scs_supcon.recipe import from_toml


def test_the_card_tells_what_a_user_needs(trained: Callable[..., Any], tmp_path: Path) -> None:
    model = trained().model()
    model.save(tmp_path, {"acc1": 0.9712, "nll": 0.1234, "odd": float("inf")}, {"train": 600})
    card = (tmp_path / "README.md").read_text()
    assert card == write_card(model.facts)
    for text in (
        "# Classifier of 10 classes",
        "| accuracy | 97.12% |",
        "| negative log-likelihood | 0.1234 |",
        "Images: 600 train.",
        "Classes: 0, 1, 2, 3, 4, 5, 6, 7, 8, 9.",
        "none, it started from random weights",
        "scs_supcon.load",
        "the boundary that training found",
    ):
        assert text in card
    assert "odd" not in card
    recipe = card.partition("```toml\n")[2].partition("```")[0]
    assert from_toml(recipe) == model.facts.recipe


def test_a_rule_from_validation_and_added_classes_are_told(trained: Callable[..., Any]) -> None:
    parts = trained(known=9, readout="features")
    model = parts.model()
    model.add_class("<script>*nine*", parts.left_out[:3])
    card = write_card(model.facts)
    assert "all but 5 % of the validation images" in card
    assert r"Added later by their mean: \<script\>\*nine\*." in card
    assert "Not measured." in card


def test_numbers_of_validation_are_not_called_test(trained: Callable[..., Any]) -> None:
    facts = trained().model().facts
    tested, untested = (
        write_card(
            facts.model_copy(update={"metrics": {"acc1": 0.9}, "counts": {"val": 9, "test": n}})
        )
        for n in (5, 0)
    )
    assert "| on the test images | |" in tested
    assert "no test part" not in tested
    assert "| on the validation images | |" in untested
    assert "There is no test part" in untested
