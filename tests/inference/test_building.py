"""A model put together from what training left."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from scs_supcon.errors import UserError
from scs_supcon.inference import Network, build_model
from scs_supcon.recipe import make_recipe

Trained = Callable[..., Any]


def test_the_learned_boundary_is_the_rule_where_there_is_one(trained: Trained) -> None:
    parts = trained()
    model = parts.model()
    assert model.facts.boundary.rule == "boundary"
    assert model.facts.boundary.threshold == parts.boundary
    rejected = model.judge(parts.evidence.val[0]).none_of_these.double().mean()
    assert model.facts.boundary.val_rejected == float(rejected)


def test_otherwise_a_quantile_of_validation_is(trained: Trained) -> None:
    facts = trained(readout="features").model().facts
    assert facts.boundary.rule == "quantile"
    assert facts.boundary.val_rejected == pytest.approx(0.05)


def test_the_network_is_copied(trained: Trained) -> None:
    parts = trained()
    model = parts.model()
    before = model.judge(parts.evidence.val[0]).probabilities
    weight = parts.network.head.layers[0].weight
    kept = weight.detach().clone()
    with torch.no_grad():
        weight.zero_()
    try:
        assert torch.equal(model.judge(parts.evidence.val[0]).probabilities, before)
    finally:
        with torch.no_grad():
            weight.copy_(kept)


def test_the_licence_follows_the_weights(trained: Trained) -> None:
    parts = trained()
    digest = "sha256:" + "0" * 64
    values = parts.recipe.model_dump()
    for weights, words in (("scratch", "random weights"), (digest, digest), ("pretrained", "none")):
        values["encoder"]["weights"] = weights
        assert words in replace(parts, recipe=make_recipe(values)).model().facts.weights_licence


def test_a_common_field_needs_a_head(trained: Trained) -> None:
    parts = trained()
    network = Network(parts.network.encoder, None, "common")
    with pytest.raises(UserError, match="there is no head"):
        build_model(parts.recipe, parts.classes, network, parts.classifier, parts.evidence, None)
