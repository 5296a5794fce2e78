"""The recommended recipe: when it applies, and what it sets."""

import tomllib

import numpy as np
import pytest

from scs_supcon.recipe import write_toml
from scs_supcon.recipe.recommended import (
    recommended_values,
)
from scs_supcon.recipe.resolve import DatasetFacts, InputFiles, TrainOptions, resolve_recipe
from scs_supcon.training.pretrain import make_method

LARGE = DatasetFacts(
    native_size=300, labels=np.repeat(np.arange(5), 20), classes=("a", "b", "c", "d", "e")
)
SMALL = DatasetFacts(native_size=16, labels=LARGE.labels, classes=LARGE.classes)


def resolve(facts=LARGE, recipe=None, **options):
    files = InputFiles(recipe=recipe or {})
    return resolve_recipe(TrainOptions(**{"source": "birds"} | options), facts, files)


def test_the_default_has_four_heads_fused_with_the_whitened_features():
    recipe = resolve()
    assert recipe.encoder.frozen
    assert (recipe.head.heads, recipe.fusion.whitened, recipe.fusion.folds) == (4, True, 5)
    assert recipe.head.style == "fitted"
    assert recipe.method.preset == "solved"


def test_a_trained_encoder_has_one_head_and_chooses_on_validation_images():
    recipe = resolve(SMALL)
    assert not recipe.encoder.frozen
    assert (recipe.head.heads, recipe.fusion.whitened, recipe.fusion.folds) == (1, True, 0)
    assert recipe.head.style == "fitted"


@pytest.mark.parametrize("options", [{"from_scratch": True}, {"unfreeze": True}, {"frozen": False}])
def test_a_trained_encoder_also_learns_from_cross_entropy_with_one_view(options):
    recipe = resolve(**options)
    assert (recipe.pretrain.cross_entropy, recipe.pretrain.views) == (0.9, 1)
    assert make_method(recipe).views == 1
    plain = resolve(method="scs_supcon@solved", **options)
    assert (plain.pretrain.cross_entropy, plain.pretrain.views) == (0, None)
    assert make_method(plain).views == 2


def test_a_pretrained_encoder_ends_halfway_between_its_initial_and_its_trained_weights():
    recipe = resolve(unfreeze=True)
    assert recipe.pretrain.initial_share == 0.5
    assert (recipe.head.heads, recipe.fusion.folds, recipe.fusion.classifier) == (4, 0, "means")
    others = [{"from_scratch": True}, {"frozen": False}, {}]
    others += [{"unfreeze": True, "method": "baseline"}]
    assert all(resolve(**options).pretrain.initial_share == 0 for options in others)


@pytest.mark.parametrize(
    ("method", "rates"),
    [
        ("scs_supcon", (0.01, 0.3)),
        ("baseline", (0.01, 0.3)),
        ("scs_joint", (0.01, 0.3)),
        ("scs_supcon@solved", (0.01, 0.1)),
        ("supcon", (0.01, 0.1)),
    ],
)
def test_pretrained_features_get_a_low_rate(method, rates):
    settings = resolve(method=method, unfreeze=True).pretrain
    assert (settings.lr, settings.encoder_lr) == rates


def test_a_frozen_encoder_has_no_cross_entropy():
    assert resolve().pretrain.cross_entropy == 0


@pytest.mark.parametrize(
    "method", ["scs_supcon@solved", "scs_supcon@paper", "supcon", "oscs_supcon", "baseline"]
)
def test_other_methods_and_presets_are_plain(method):
    recipe = resolve(method=method)
    assert (recipe.head.heads, recipe.fusion.whitened) == (1, False)
    assert recipe.head.style == "trained"


def test_the_name_without_a_preset_is_the_default():
    assert resolve(method="scs_supcon") == resolve()


def test_options_and_files_override_single_settings():
    recipe = resolve(
        recipe={"head": {"heads": 2}},
        epochs=7,
        settings=("fusion.folds=0", "method.options.t0=5"),
    )
    assert (recipe.head.heads, recipe.pretrain.epochs, recipe.fusion.folds) == (2, 7, 0)
    assert recipe.method.options["t0"] == 5
    assert recipe.head.style == "fitted"


def test_a_method_in_a_recipe_file_keeps_its_meaning():
    recipe = resolve(recipe={"method": {"name": "scs_supcon"}})
    assert (recipe.head.heads, recipe.fusion.whitened) == (1, False)


@pytest.mark.parametrize(
    ("facts", "options"),
    [
        (LARGE, {}),
        (SMALL, {}),
        (LARGE, {"unfreeze": True}),
        (LARGE, {"from_scratch": True}),
        (LARGE, {"frozen": False}),
    ],
)
def test_resolving_the_default_again_does_not_change_it(facts, options):
    recipe = resolve(facts, **options)
    text = write_toml(recipe)
    again = resolve(facts, recipe=tomllib.loads(text))
    assert again == recipe
    assert write_toml(again) == text, "the same order"


HEADS = {"heads": 4, "hidden": 512, "common_dim": 128, "style_dim": 32, "style": "fitted"}
ONE_HEAD = {"style": "fitted"}
FOLDS = {"whitened": True, "folds": 5}
MEANS = {"whitened": True, "folds": 0}
LINEAR = {"whitened": True, "folds": 0, "classifier": "linear"}
WITH_CROSS_ENTROPY = {"cross_entropy": 0.9, "views": 1}


EXPECTED = {
    "frozen": (HEADS, {"epochs": 40}, FOLDS),
    "unfreeze": (HEADS, {**WITH_CROSS_ENTROPY, "initial_share": 0.5}, MEANS),
    "scratch": (ONE_HEAD, WITH_CROSS_ENTROPY, LINEAR),
}


@pytest.mark.parametrize("start", EXPECTED)
def test_the_values_of_the_recommended_recipe(start):
    head, pretrain, fusion = EXPECTED[start]
    assert recommended_values(start == "frozen", start == "unfreeze") == {
        "head": head,
        "pretrain": pretrain,
        "fusion": fusion,
    }
