"""Resolving a recipe: defaults for the data < recipe file < options."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scs_supcon.data.builtin import digits, shapes
from scs_supcon.errors import UserError
from scs_supcon.io.hashing import file_sha256
from scs_supcon.methods import available, build_method, method_class
from scs_supcon.nn.timm_models import data_config, weights_licence
from scs_supcon.recipe import from_toml, write_toml
from scs_supcon.recipe.defaults import complete_options
from scs_supcon.recipe.encoders import ALIASES, ENCODERS, explain_default
from scs_supcon.recipe.resolve import (
    DatasetFacts,
    InputFiles,
    TrainOptions,
    resolve_recipe,
    split_dataset,
)
from scs_supcon.training.input_files import read_input_files


@pytest.fixture(scope="module")
def images():
    return shapes(per_class=10)


def of_classes(images, count, per_class):
    """Return the first images with labels of other classes."""
    positions = np.arange(count * per_class)
    return dataclasses.replace(
        images,
        names=images.names[: len(positions)],
        labels=positions // per_class,
        classes=tuple(f"{number:03d}" for number in range(count)),
    )


def resolve(images, has_gpu=False, **values):
    options = TrainOptions(**({"source": "drawn"} | values))
    facts = DatasetFacts.of(images)
    return resolve_recipe(options, facts, read_input_files(options), has_gpu=has_gpu)


def test_shapes_train_a_tiny_encoder_on_suitable_views(images):
    recipe = resolve(images)
    assert (recipe.encoder.name, recipe.encoder.weights) == ("tiny", "scratch")
    assert not recipe.encoder.frozen
    assert (recipe.data.image_size, recipe.data.crop_scale) == (32, (0.5, 1.0))
    assert recipe.data.source == "drawn"
    assert recipe.method.name == "scs_supcon"
    assert recipe.head.centre


def test_small_images_are_held_in_memory_if_the_encoder_is_trained_on_them(images, weights):
    assert resolve(images).data.in_memory
    assert not resolve(images, encoder="resnet18", weights=weights).data.in_memory
    large = dataclasses.replace(images, native_size=65)
    assert not resolve(large, encoder="resnet18", from_scratch=True).data.in_memory


def test_digits_are_not_mirrored():
    recipe = resolve(digits(), source="digits")
    assert not recipe.data.flip
    assert recipe.data.rotate > 0
    assert recipe.encoder.name == "tiny"
    assert recipe.data.image_size == digits().view_defaults["image_size"]


@pytest.mark.parametrize(
    ("per_class", "has_gpu", "options", "alias"),
    [
        (60, False, {}, "fast"),
        (10, False, {}, "balanced"),
        (60, True, {}, "balanced"),
        (10, False, {"unfreeze": True}, "fast"),
        (10, False, {"encoder": "best"}, "best"),
        (10, False, {"encoder": "fast"}, "fast"),
    ],
)
def test_photographs_get_a_pretrained_encoder_at_its_default_image_size(
    per_class, has_gpu, options, alias
):
    images = dataclasses.replace(shapes(per_class=per_class), native_size=500, view_defaults={})
    recipe = resolve(images, has_gpu, **options)
    assert recipe.encoder.weights == "pretrained"
    assert (recipe.encoder.name, recipe.data.image_size) == (ALIASES[alias], 224)
    assert not recipe.encoder.small_stem
    if "encoder" not in options:
        facts = (500, len(images), has_gpu)
        assert f"({alias}): there is " in explain_default(recipe.encoder.name, *facts)


def test_a_weights_file_without_an_encoder_is_for_the_fast_one(images):
    photographs = dataclasses.replace(images, native_size=500, view_defaults={})
    recipe = resolve(photographs, settings=["encoder.weights=sha256:" + "0" * 64])
    assert recipe.encoder.name == ALIASES["fast"]


def test_the_listed_encoders_are_as_timm_describes_them():
    for choice in ENCODERS:
        assert data_config(choice.name)["image_size"] == choice.image_size
        assert weights_licence(choice.name) == choice.licence.lower()
    assert set(ALIASES) == {"fast", "balanced", "best"}


def test_many_small_images_get_a_resnet_with_a_small_stem(images):
    recipe = resolve(dataclasses.replace(images, native_size=48, view_defaults={}))
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
def test_frozen_is_the_default_with_weights_and_without_a_gpu(
    images, weights, has_gpu, frozen, views
):
    chosen = [f"encoder.weights={weights}", "encoder.name=resnet18"]
    recipe = resolve(images, has_gpu, settings=chosen)
    assert recipe.encoder.frozen == frozen
    assert recipe.encoder.frozen_views == views


def test_a_weights_file_is_recorded_by_its_sha256(images, weights, tmp_path):
    recipe = resolve(images, encoder="tiny", weights=weights)
    assert recipe.encoder.weights == f"sha256:{file_sha256(weights)}"
    assert recipe.encoder.frozen
    assert not resolve(images, encoder="tiny", weights=weights, frozen=False).encoder.frozen
    with pytest.raises(UserError, match=r"gone\.safetensors does not exist"):
        resolve(images, weights=tmp_path / "gone.safetensors")


def test_a_random_encoder_cannot_be_frozen(images):
    with pytest.raises(UserError, match=r"--frozen .* random weights: add --weights FILE"):
        resolve(images, frozen=True)


def test_options_override_the_file_and_the_file_overrides_defaults(images, tmp_path):
    file = tmp_path / "r.toml"
    file.write_text(
        "seed = 3\n[pretrain]\nepochs = 7\nlr = 0.3\n[data]\nflip = false\n"
        '[method]\nname = "cs_supcon_overlap"\n'
    )
    recipe = resolve(images, recipe=file, epochs=9, settings=["pretrain.lr=0.4"])
    assert (recipe.seed, recipe.data.flip, recipe.method.name) == (3, False, "cs_supcon_overlap")
    assert (recipe.pretrain.epochs, recipe.pretrain.lr) == (9, 0.4)
    assert recipe.data.crop_scale == (0.5, 1.0), "other values are defaults for the data"
    assert recipe.head.overlap == 28, "or defaults of the method"
    assert resolve(images, recipe=file, seed=4).seed == 4


def test_the_source_option_overrides_the_file(images, tmp_path):
    file = tmp_path / "r.toml"
    file.write_text('[data]\nsource = "elsewhere"\n')
    assert resolve(images, recipe=file).data.source == "drawn"


def test_another_method_drops_preset_and_options_of_the_file(images, tmp_path):
    file = tmp_path / "r.toml"
    file.write_text('[method]\nname = "scs_supcon"\npreset = "paper"\noptions = { t0 = 5.0 }\n')
    assert resolve(images, recipe=file, method="supcon").method.options == {
        "temperature": 0.1,
        "loss_scale": 1.0,
        "anchors": "all",
    }
    same = resolve(images, recipe=file, method="scs_supcon@learned").method
    assert (same.preset, same.options["t0"], same.options["b0"]) == ("learned", 5.0, 10.0)


def test_a_complete_recipe_file_is_not_changed(images, tmp_path):
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
    ],
)
def test_errors_in_a_recipe_file_name_file_and_value(images, tmp_path, text, message):
    file = tmp_path / "r.toml"
    file.write_text(text)
    with pytest.raises(UserError, match=f"(?s)r.toml: .*{message}"):
        resolve(images, recipe=file)


@pytest.mark.parametrize("epochs", [0, 1, 5, 30])
def test_short_schedules_have_a_short_warm_up(images, epochs):
    usual = resolve(images).pretrain
    assert 0 < usual.warmup_epochs <= usual.epochs / 10
    short = resolve(images, epochs=epochs).pretrain
    assert short.warmup_epochs == min(usual.warmup_epochs, epochs / 10)


def test_batches_are_balanced_if_shuffling_leaves_anchors_without_positives(images):
    few = resolve(images, batch_size=16).pretrain  # 6 classes: about 2.7 of each in 16
    assert few.batches == "balanced"
    assert 2 <= few.per_class <= few.batch_size // 2
    assert resolve(images).pretrain.batches == "shuffle", "one batch contains all images"
    many = of_classes(images, count=15, per_class=4)
    assert resolve(many, batch_size=8).pretrain.batches == "balanced"
    chosen = resolve(images, batch_size=16, settings=["pretrain.batches=shuffle"])
    assert chosen.pretrain.batches == "shuffle"


@pytest.mark.parametrize("name", ["simclr", "byol"])
def test_methods_without_labels_get_shuffled_batches(images, name):
    options = {"method": name, "batch_size": 16}
    assert resolve(images, **options).pretrain.batches == "shuffle"
    chosen = resolve(images, **options, settings=["pretrain.batches=balanced"])
    assert chosen.pretrain.batches == "balanced", "the user's choice is kept"


def test_a_batch_has_at_most_all_training_images(images):
    recipe = resolve(images)
    assert recipe.pretrain.batch_size == (split_dataset(images, recipe) == "train").sum() == 42


@pytest.mark.parametrize(("batch_size", "epochs"), [(None, 100), (100, 100), (10, 60)])
def test_few_images_get_more_epochs_with_a_frozen_encoder(images, weights, batch_size, epochs):
    pretrain = resolve(
        images, method="supcon", encoder="tiny", weights=weights, frozen=True, batch_size=batch_size
    ).pretrain
    assert pretrain.epochs == epochs  # 100 steps of one batch; 60 epochs of five batches
    explicit = resolve(images, encoder="tiny", weights=weights, frozen=True, epochs=3).pretrain
    assert explicit.epochs == 3


def test_methods_set_defaults_of_the_head(images):
    overlap = resolve(images, method="cs_supcon_overlap").head
    assert (overlap.style_dim, overlap.overlap, overlap.centre) == (92, 28, True)
    for name in ("supcon", "cs_supcon", "simclr", "byol", "paco", "circle", "scs_supcon"):
        assert resolve(images, method=name).head.centre, "no method alone has the advantage"
    assert not resolve(images, method="supcon", settings=["head.centre=false"]).head.centre
    assert not resolve(images, method="baseline").head.centre
    assert not resolve(images, method="scs_supcon@paper").head.centre
    assert resolve(images, method="scs_supcon@paper", settings=["head.centre=true"]).head.centre


def test_split_seed_keeps_the_splits_of_another_seed(images):
    first, again = resolve(images, seed=3), resolve(images, seed=4, settings=["data.split_seed=3"])
    assert again.seed == 4
    assert split_dataset(images, again).tolist() == split_dataset(images, first).tolist()
    assert (
        split_dataset(images, resolve(images, seed=4)).tolist()
        != split_dataset(images, first).tolist()
    )


def test_validation_images_are_required(images):
    with pytest.raises(UserError, match=r"no images for validation.*val_share"):
        resolve(images, settings=["data.val_share=0"])


def test_init_from_keeps_encoder_head_and_image_preparation(images, finished):
    before = from_toml((finished / "recipe.toml").read_text())
    for path in (finished, finished / "model"):
        recipe = resolve(images, init_from=path)
        assert recipe.encoder.name == before.encoder.name
        assert recipe.encoder.weights == (
            f"sha256:{file_sha256(finished / 'model' / 'weights.safetensors')}"
        )
        assert not recipe.encoder.frozen, "as in the first run"
        assert recipe.head == before.head
        assert recipe.data.image_size == before.data.image_size == 16
    with pytest.raises(UserError, match="does not exist"):
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
def test_invalid_options_are_errors(images, options, message):
    with pytest.raises(UserError, match=message):
        resolve(images, **options)


FACTS = {
    "small": DatasetFacts(
        native_size=32, labels=np.arange(60) % 6, classes=tuple("abcdef"), view_defaults={}
    ),
    "photographs": DatasetFacts(
        native_size=500, labels=np.arange(900) % 45, classes=tuple(map(str, range(45)))
    ),
    "grouped": DatasetFacts(
        native_size=48,
        labels=np.arange(80) % 4,
        classes=tuple("abcd"),
        groups=np.array([f"g{n // 8}" for n in range(80)]),
        view_defaults={"flip": False, "rotate": 10.0},
    ),
}

SETTINGS = [
    "pretrain.lr=0.3",
    "pretrain.batches=long_tail",
    "data.split_seed=5",
    "data.test_share=0",
    "head.common_dim=32",
    "probe.epochs=3",
]
METHODS = ["scs_supcon", "scs_supcon@paper", "oscs_supcon@learned", "supcon", "pcl", "byol"]


@given(
    facts=st.sampled_from(sorted(FACTS)),
    has_gpu=st.booleans(),
    method=st.none() | st.sampled_from(METHODS),
    encoder=st.none() | st.sampled_from(["tiny", "resnet18", "tf_efficientnet_lite0"]),
    from_scratch=st.booleans(),
    epochs=st.none() | st.integers(0, 500),
    batch_size=st.none() | st.integers(8, 1000),
    seed=st.none() | st.integers(0, 2**32 - 1),
    chosen=st.lists(st.sampled_from(SETTINGS), unique=True),
    bias=st.none() | st.sampled_from(["learn", "fixed", "solve"]),
)
def test_resolving_a_resolved_recipe_changes_nothing(
    facts, has_gpu, chosen, bias, method, **options
):
    if bias and "scs" in (method or "scs"):
        chosen = [*chosen, f"method.options.bias={bias}"]
    options = TrainOptions(source="x", method=method, settings=chosen, **options)
    recipe = resolve_recipe(options, FACTS[facts], has_gpu=has_gpu)
    files = InputFiles(recipe=recipe.model_dump(mode="json", exclude_none=True))
    for gpu in (False, True):
        again = resolve_recipe(TrainOptions(source="x"), FACTS[facts], files, has_gpu=gpu)
        assert again == recipe
    assert from_toml(write_toml(recipe)) == recipe


@pytest.mark.parametrize("name", available())
def test_a_recipe_holds_every_option_of_its_method(images, name):
    preset = next(iter(method_class(name).presets), None)  # without one, the recommended recipe
    method = resolve(images, method=f"{name}@{preset}" if preset else name).method
    written = build_method(name, method.preset, **method.options)
    default = build_method(name)
    assert written.state_dict().keys() == default.state_dict().keys()
    assert method.options == complete_options(name, None, {})


def test_methods_get_their_published_views_if_they_train_on_large_images(images):
    large = {"encoder": "resnet18", "from_scratch": True, "settings": ["data.image_size=96"]}
    assert resolve(images, method="simclr", **large).data.blur == (0.5,)
    byol = resolve(images, method="byol", **large).data
    assert (byol.blur, byol.solarize) == ((1.0, 0.1), (0.0, 0.2))
    assert resolve(images, method="supcon", **large).data.blur == (0.0,)
    assert resolve(images, method="simclr").data.blur == (0.0,), "32 pixels"
    chosen = large | {"settings": ["data.image_size=96", "data.blur=[0.2]"]}
    assert resolve(images, method="byol", **chosen).data.blur == (0.2,)


def test_gradients_are_clipped_only_if_they_explode(images):
    assert resolve(images).pretrain.clip_norm == 10
    assert resolve(images, settings=["pretrain.clip_norm=1"]).pretrain.clip_norm == 1


def test_another_preset_replaces_options_that_only_repeat_a_preset(images, tmp_path):
    file = tmp_path / "r.toml"
    file.write_text(write_toml(resolve(images, settings=["method.options.beta=0.5"])))
    method = resolve(images, recipe=file, method="scs_supcon@paper").method
    assert (method.preset, method.options["t0"], method.options["bias"]) == ("paper", 0.1, "learn")
    assert method.options["beta"] == 0.5, "chosen by the user"


def test_options_are_checked_before_any_image_is_read(tmp_path):
    for values, message in (
        ({"method": "supcom"}, "unknown method 'supcom'"),
        ({"method": "scs_supcon@papper"}, "preset"),
        ({"encoder": "resnet19"}, "unknown encoder 'resnet19'"),
        ({"recipe": tmp_path / "gone.toml"}, "cannot read the recipe: .*gone.toml"),
        ({"settings": ["method.options.tt=1"]}, "option 'tt'"),
    ):
        with pytest.raises(UserError, match=message):
            read_input_files(TrainOptions(source="a folder that does not exist", **values))


def test_a_long_tailed_training_set(images):
    recipe = resolve(images, settings=("data.imbalance=5",))
    labels, splits = images.labels, split_dataset(DatasetFacts.of(images), recipe)
    counts = [int(((splits == "train") & (labels == k)).sum()) for k in range(6)]
    assert counts == [7, 5, 3, 2, 1, 1]  # 7 · 5^(−k/5), rounded down
    everything = split_dataset(DatasetFacts.of(images), resolve(images))
    assert np.array_equal(splits == "test", everything == "test")
    assert np.array_equal(splits == "val", everything == "val")
