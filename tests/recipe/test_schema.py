"""Invalid recipes and their error messages."""

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
        ({"folds": 5}, "set both folds and fold, or neither"),
        ({"folds": 5, "fold": 5}, "fold must be between 0 and 4, got 5"),
        ({"folds": 1, "fold": 0}, "data.folds = 1"),
    ],
)
def test_folds_and_fold_must_agree(data, message) -> None:
    with pytest.raises(UserError, match=message):
        make_recipe({"data": {**BIRDS["data"], **data}})


def test_a_recipe_is_immutable() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        make_recipe(BIRDS).pretrain.lr = 3.0  # type: ignore[misc]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "data.source is missing"),
        ({"data": {"source": ""}}, "data.source"),
        ({"data": {"source": "a", "crop_scale": [0.5, 0.1]}}, "got 0.5, 0.1"),
        ({"data": {"source": "a", "test_share": 0.9}}, "val_share + test_share must be below 1"),
        ({"data": {"source": "a", "std": [1, 0, 1]}}, "greater than 0"),
        ({"encoder": {"name": "hf-hub:someone/model"}}, "Any timm model name"),
        ({"encoder": {"name": "../model"}}, "Any timm model name"),
        ({"encoder": {"weights": "file.pt"}}, "'pretrained' (by timm), 'scratch'"),
        ({"head": {"overlap": 65}}, "overlap must be at most 64"),
        ({"pretrain": {"epochs": 3, "warmup_epochs": 4}}, "at most epochs (3)"),
        (
            {"pretrain": {"batches": "balanced", "per_class": 8, "batch_size": 4}},
            "at most batch_size (4)",
        ),
        ({"pretrain": {"optimizer": "adam"}}, "'sgd', 'lars' or 'adamw'"),
        ({"pretrain": {"lr": math.nan}}, "finite number"),
        ({"method": {"options": {"t0": math.inf}}}, "method.options.t0 = inf: it should be"),
        ({"probe": {"lrs": []}}, "probe.lrs"),
        ({"method": {"temprature": 1}}, "unknown key 'temprature' in [method]"),
    ],
)
def test_impossible_values_are_errors(values: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as caught:
        make_recipe(merge(BIRDS if values else {}, values))
    assert message in str(caught.value)


def test_all_errors_are_reported_at_once() -> None:
    with pytest.raises(UserError) as caught:
        make_recipe({**BIRDS, "pretrain": {"lr": -1, "batch_size": 0}})
    assert "pretrain.lr = -1" in str(caught.value)
    assert "pretrain.batch_size = 0" in str(caught.value)


def test_the_embedding_counts_the_overlap_once() -> None:
    assert make_recipe({**BIRDS, "head": {"overlap": 32}}).head.dim == 192 + 64 - 32
