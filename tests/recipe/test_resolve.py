"""From options and data to a recipe: what suits < a recipe file < options."""

import dataclasses

import numpy as np
import pytest

from scs_supcon.data.builtin import digits, shapes
from scs_supcon.errors import UserError
from scs_supcon.io.hashing import file_sha256
from scs_supcon.recipe import from_toml, write_toml
from scs_supcon.recipe.resolve import (
    DatasetFacts,
    TrainOptions,
    resolve_recipe,
    split_dataset,
)
from scs_supcon.training.input_files import read_input_files


@pytest.fixture(scope="module")
def images():
    return shapes(per_class=10)


def like(images, **changes):
    return dataclasses.replace(images, **changes)


def of_classes(images, count, per_class):
    """The same images, told to be of other classes."""
    kept = np.arange(count * per_class)
    return dataclasses.replace(
        images,
        names=images.names[: len(kept)],
        labels=kept // per_class,
        classes=tuple(f"{number:03d}" for number in range(count)),
    )


def resolve(images, has_gpu=False, **values):
    options = TrainOptions(**({"source": "drawn"} | values))
    facts = DatasetFacts.of(images)
    return resolve_recipe(options, facts, read_input_files(options), has_gpu=has_gpu)


def test_the_drawn_set_trains_a_tiny_encoder_on_views_that_suit_it(images):
    recipe = resolve(images)
    assert (recipe.encoder.name, recipe.encoder.weights) == ("tiny", "scratch")
    assert not recipe.encoder.frozen
    assert (recipe.data.image_size, recipe.data.crop_scale) == (32, (0.5, 1.0))
    assert recipe.data.source == "drawn"
    assert recipe.method.name == "scs_supcon"
    assert recipe.head.centre


def test_digits_are_not_mirrored():
    recipe = resolve(digits(), source="digits")
    assert not recipe.data.flip
    assert recipe.data.rotate > 0
    assert recipe.encoder.name == "tiny"
    assert recipe.data.image_size == digits().view_defaults["image_size"]


def test_photographs_get_a_pretrained_encoder_at_the_size_it_was_made_for(images):
    recipe = resolve(like(images, native_size=500, view_defaults={}))
    assert recipe.encoder.weights == "pretrained"
    assert (recipe.encoder.name, recipe.data.image_size) == ("tf_efficientnet_lite0", 224)
    assert not recipe.encoder.small_stem


def test_many_small_images_get_a_resnet_with_a_small_stem(images):
    recipe = resolve(like(images, native_size=48, view_defaults={}))
    assert (recipe.encoder.name, recipe.encoder.small_stem) == ("resnet18", True)
    assert (recipe.data.image_size, recipe.data.crop_pct) == (48, 1.0)


@pytest.mark.parametrize(
    ("weights", "has_gpu", "frozen", "views"),
    [
        ("pretrained", False, True, 4),
        ("pretrained", True, False, 8),
        ("scratch", False, False, 4),
        ("scratch", True, False, 8),
    ],
)
def test_frozen_is_the_default_without_an_has_gpu_where_weights_are_given(
    images, weights, has_gpu, frozen, views
):
    asked = [f"encoder.weights={weights}", "encoder.name=resnet18"]
    recipe = resolve(images, has_gpu, settings=asked)
    assert recipe.encoder.frozen == frozen
    assert recipe.encoder.frozen_views == views


def test_a_weights_file_is_known_by_its_content(images, weights, tmp_path):
    recipe = resolve(images, encoder="tiny", weights=weights)
    assert recipe.encoder.weights == f"sha256:{file_sha256(weights)}"
    assert recipe.encoder.frozen
    assert not resolve(images, encoder="tiny", weights=weights, frozen=False).encoder.frozen
    with pytest.raises(UserError, match=r"cannot read .*gone.safetensors"):
        resolve(images, weights=tmp_path / "gone.safetensors")


def test_a_random_encoder_cannot_be_frozen(images):
    with pytest.raises(UserError, match=r"--frozen .* random weights: give --weights FILE"):
        resolve(images, frozen=True)


def test_options_win_over_the_file_and_the_file_over_what_suits(images, tmp_path):
    file = tmp_path / "r.toml"
    file.write_text(
        "seed = 3\n[pretrain]\nepochs = 7\nlr = 0.3\n[data]\nflip = false\n"
        '[method]\nname = "supcon"\n'
    )
    recipe = resolve(images, recipe=file, epochs=9, settings=["pretrain.lr=0.4"])
    assert (recipe.seed, recipe.data.flip, recipe.method.name) == (3, False, "supcon")
    assert (recipe.pretrain.epochs, recipe.pretrain.lr) == (9, 0.4)
    assert recipe.data.crop_scale == (0.5, 1.0), "what the file leaves open still suits the data"
    assert not recipe.head.centre, "and the method"
    assert resolve(images, recipe=file, seed=4).seed == 4


def test_the_source_is_always_the_one_asked_for(images, tmp_path):
    file = tmp_path / "r.toml"
    file.write_text('[data]\nsource = "elsewhere"\n')
    assert resolve(images, recipe=file).data.source == "drawn"


def test_another_method_leaves_the_files_preset_and_options_behind(images, tmp_path):
    file = tmp_path / "r.toml"
    file.write_text('[method]\nname = "scs_supcon"\npreset = "paper"\noptions = { t0 = 5.0 }\n')
    assert resolve(images, recipe=file, method="supcon").method.options == {
        "temperature": 0.1,
        "loss_scale": 1.0,
    }
    same = resolve(images, recipe=file, method="scs_supcon@siglip").method
    assert (same.preset, same.options["t0"], same.options["b0"]) == ("siglip", 5.0, 10.0)


def test_a_whole_recipe_comes_back_as_it_is(images, tmp_path):
    recipe = resolve(images, method="scs_supcon@paper", seed=5, batch_size=12)
    file = tmp_path / "r.toml"
    file.write_text(write_toml(recipe))
    assert resolve(images, recipe=file) == recipe == from_toml(write_toml(recipe))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('encoder = "tiny"', "encoder"),
        ("[encoder]\nname = 5", "encoder.name = 5"),
        ("[pretrain]\nepochs = -1", "pretrain.epochs = -1"),
        ("[pretrain]\nepoch = 1", "unknown key 'epoch' in .pretrain.; did you mean 'epochs'"),
        ("epochs = 1", "unknown key 'epochs'; it belongs in .pretrain."),
        ("[pretrain", "not valid TOML"),
    ],
)
def test_a_bad_recipe_file_is_named_with_its_bad_value(images, tmp_path, text, message):
    file = tmp_path / "r.toml"
    file.write_text(text)
    with pytest.raises(UserError, match=f"(?s)r.toml: .*{message}"):
        resolve(images, recipe=file)


@pytest.mark.parametrize("epochs", [0, 1, 5, 30])
def test_few_epochs_warm_up_for_less(images, epochs):
    usual = resolve(images).pretrain
    assert 0 < usual.warmup_epochs <= usual.epochs / 10
    short = resolve(images, epochs=epochs).pretrain
    assert short.warmup_epochs == min(usual.warmup_epochs, epochs / 10)


def test_batches_are_balanced_where_shuffling_leaves_anchors_alone(images):
    few = resolve(images, batch_size=16).pretrain  # 6 classes: about 2.7 of each in 16
    assert few.batches == "balanced"
    assert 2 <= few.per_class <= few.batch_size // 2
    assert resolve(images).pretrain.batches == "shuffle", "one batch holds everything"
    many = of_classes(images, count=15, per_class=4)
    assert resolve(many, batch_size=8).pretrain.batches == "balanced"
    chosen = resolve(images, batch_size=16, settings=["pretrain.batches=shuffle"])
    assert chosen.pretrain.batches == "shuffle"


def test_a_batch_is_no_larger_than_the_training_part(images):
    recipe = resolve(images)
    assert recipe.pretrain.batch_size == (split_dataset(images, recipe) == "train").sum() == 42


def test_the_method_says_which_head_suits_it(images):
    overlap = resolve(images, method="cs_supcon_overlap").head
    assert (overlap.style_dim, overlap.overlap, overlap.centre) == (92, 28, False)
    assert not resolve(images, method="scs_supcon@paper").head.centre
    assert resolve(images, method="scs_supcon@paper", settings=["head.centre=true"]).head.centre


def test_a_split_may_have_a_seed_of_its_own(images):
    first, again = resolve(images, seed=3), resolve(images, seed=4, settings=["data.split_seed=3"])
    assert again.seed == 4
    assert split_dataset(images, again).tolist() == split_dataset(images, first).tolist()
    assert (
        split_dataset(images, resolve(images, seed=4)).tolist()
        != split_dataset(images, first).tolist()
    )


def test_someone_has_to_validate(images):
    with pytest.raises(UserError, match=r"no image is left for validation.*val_share"):
        resolve(images, settings=["data.val_share=0"])


def test_going_on_from_a_run_keeps_its_encoder_head_and_views(images, finished):
    before = from_toml((finished / "recipe.toml").read_text())
    for place in (finished, finished / "model"):
        recipe = resolve(images, init_from=place)
        assert recipe.encoder.name == before.encoder.name
        assert recipe.encoder.weights == (
            f"sha256:{file_sha256(finished / 'model' / 'weights.safetensors')}"
        )
        assert not recipe.encoder.frozen, "as it was, though there are weights and no has_gpu"
        assert recipe.head == before.head
        assert recipe.data.image_size == before.data.image_size == 16
    with pytest.raises(UserError, match="there is no"):
        resolve(images, init_from=finished / "gone")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "supcom"}, "unknown method 'supcom'; did you mean 'supcon'"),
        ({"encoder": "resnet19"}, "unknown encoder 'resnet19'.*did you mean 'resnet18'"),
        ({"settings": ["pretrain.lrr=1"]}, "unknown key 'lrr'.*did you mean 'lr'"),
        ({"settings": ["pretrain.lr"]}, "is not key=value"),
        ({"settings": ["pretrain.lr=fast"]}, "pretrain.lr = fast"),
        ({"batch_size": 0}, "batch_size = 0"),
        ({"seed": -1}, "seed = -1"),
    ],
)
def test_bad_wishes_are_named(images, options, message):
    with pytest.raises(UserError, match=message):
        resolve(images, **options)
