"""What a recipe refuses, and with which words."""

import math
from typing import Any

import pytest
from pydantic import ValidationError

from scs_supcon.errors import UserError
from scs_supcon.recipe import make_recipe, merge

BIRDS = {"data": {"source": "birds"}}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"folds": 5}, "folds and fold go together"),
        ({"folds": 5, "fold": 5}, "fold is 5: with 5 folds the last is 4"),
        ({"folds": 1, "fold": 0}, "data.folds = 1"),
    ],
)
def test_folds_fit_together(data, message) -> None:
    with pytest.raises(UserError, match=message):
        make_recipe({"data": {**BIRDS["data"], **data}})


def test_a_recipe_is_frozen() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        make_recipe(BIRDS).pretrain.lr = 3.0  # type: ignore[misc]


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({}, "data.source is missing"),
        ({"data": {"source": ""}}, "data.source"),
        ({"data": {"source": "a", "crop_scale": [0.5, 0.1]}}, "crop_scale is 0.5, 0.1"),
        ({"data": {"source": "a", "test_share": 0.9}}, "leave something to train on"),
        ({"data": {"source": "a", "std": [1, 0, 1]}}, "greater than 0"),
        ({"encoder": {"name": "hf-hub:someone/model"}}, "Any timm model name"),
        ({"encoder": {"name": "../model"}}, "Any timm model name"),
        ({"encoder": {"weights": "file.pt"}}, "'pretrained' (timm's own), 'scratch'"),
        ({"head": {"overlap": 65}}, "the narrower field has 64 columns"),
        ({"pretrain": {"epochs": 3, "warmup_epochs": 4}}, "more than the 3 epochs"),
        (
            {"pretrain": {"batches": "balanced", "per_class": 8, "batch_size": 4}},
            "more than the batch_size of 4",
        ),
        ({"pretrain": {"optimizer": "lars"}}, "'sgd' or 'adamw'"),
        ({"pretrain": {"lr": math.nan}}, "finite number"),
        ({"method": {"options": {"t0": math.inf}}}, "method.options.t0 = inf: it should be"),
        ({"probe": {"lrs": []}}, "probe.lrs"),
        ({"method": {"temprature": 1}}, "unknown key 'temprature' in [method]"),
    ],
)
def test_impossible_values_are_refused_in_words(values: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError) as caught:
        make_recipe(merge(BIRDS if values else {}, values))
    assert words in str(caught.value)


def test_all_problems_are_told_at_once() -> None:
    with pytest.raises(UserError) as caught:
        make_recipe({**BIRDS, "pretrain": {"lr": -1, "batch_size": 0}})
    assert "pretrain.lr = -1" in str(caught.value)
    assert "pretrain.batch_size = 0" in str(caught.value)


def test_the_projection_counts_the_overlap_once() -> None:
    assert make_recipe({**BIRDS, "head": {"overlap": 32}}).head.dim == 192 + 64 - 32
