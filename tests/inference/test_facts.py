"""What `model.json` may say."""

from typing import Any

import pytest
from pydantic import ValidationError

from scs_supcon.inference.facts import Facts
from scs_supcon.recipe import make_recipe

GOOD: dict[str, Any] = {
    "classes": ["a", "b", "c"],
    "trained": 2,
    "readout": "common",
    "temperature": 1.0,
    "sharpness": 8.0,
    "boundary": {"rule": "boundary", "threshold": -0.1, "val_rejected": 0.0},
    "recipe": make_recipe({"data": {"source": "digits"}}).model_dump(mode="json"),
    "images": [],
}


def test_facts_survive_json() -> None:
    facts = Facts.model_validate(GOOD)
    assert Facts.model_validate_json(facts.model_dump_json()) == facts
    assert facts.format_version == 1


@pytest.mark.parametrize(
    "change",
    [
        {"classes": ["a", "a", "c"]},
        {"classes": []},
        {"trained": 4},
        {"trained": 0},
        {"temperature": 0.0},
        {"sharpness": float("inf")},
        {"readout": "z"},
        {"format_version": 2},
        {"metrics": {"acc1": float("nan")}},
        {"boundary": {"rule": "guess", "threshold": 0.0, "val_rejected": 0.0}},
        {"boundary": {"rule": "quantile", "threshold": 0.0, "val_rejected": 2.0}},
        {"something": 1},
    ],
)
def test_impossible_facts_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Facts.model_validate(GOOD | change)
