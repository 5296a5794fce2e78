"""The recipe `paper` holds the values of the paper's hyper-parameter table."""

from pathlib import Path

import numpy as np
import pytest

from scs_supcon.recipe import from_toml, write_toml
from scs_supcon.recipe.resolve import DatasetFacts, TrainOptions, resolve_recipe
from scs_supcon.training.input_files import read_input_files

# Table 2 of the paper: learning rates and batch sizes of stage 1 and stage 2.
TABLE = {
    "cifar10": (0.5, 3.0, 1024, 512),
    "cifar100": (0.5, 3.0, 1024, 512),
    "tiny_imagenet": (0.5, 3.0, 1024, 512),
    "cub200": (0.1, 0.1, 96, 48),
    "stanford_dogs": (0.1, 0.1, 96, 48),
    "voc2005": (0.1, 0.1, 96, 48),
}
SIZES = {"cifar10": 32, "cifar100": 32, "tiny_imagenet": 64}


def facts(size, images=2000):
    labels = np.arange(images) // (images // 10)
    splits = np.array(["train", "train", "train", "val", "test"] * (images // 5))
    names = tuple(f"{number}" for number in range(10))
    return DatasetFacts(native_size=size, labels=labels, classes=names, splits=splits)


def resolve(source, size=None, images=2000, **values):
    options = TrainOptions(source=source, recipe=Path("paper"), **values)
    known = facts(size or SIZES.get(source.partition("=")[0], 300), images)
    return resolve_recipe(options, known, read_input_files(options), has_gpu=True)


@pytest.mark.parametrize("name", TABLE)
@pytest.mark.parametrize("folder", ["", "=/data/x"])
def test_the_hyperparameter_table(name, folder):
    recipe = resolve(name + folder)
    stage_1, stage_2 = recipe.pretrain, recipe.probe
    assert (stage_1.lr, stage_2.plain_lr, stage_1.batch_size, stage_2.batch_size) == TABLE[name]
    assert (stage_1.epochs, stage_2.epochs) == (1000, 100)


def test_the_text_on_training():
    recipe = resolve("cub200")
    stage_1, stage_2 = recipe.pretrain, recipe.probe
    assert (stage_1.optimizer, stage_1.momentum, stage_1.weight_decay) == ("sgd", 0.9, 1e-4)
    assert (stage_1.lr_floor, stage_1.warmup_epochs, stage_1.clip_norm) == (0, 0, 0)
    assert stage_1.batches == "shuffle"
    assert (stage_2.classifier, stage_2.momentum, stage_2.weight_decays) == ("single", 0.9, (1e-4,))
    assert (recipe.head.common_dim, recipe.head.style_dim, recipe.head.dim) == (192, 64, 256)
    assert not recipe.head.centre and not recipe.fusion.whitened and not recipe.encoder.frozen
    options = recipe.method.options
    assert (recipe.method.name, recipe.method.preset) == ("scs_supcon", "paper")
    assert (options["t0"], options["b0"], options["beta"]) == (0.1, 0.0, 0.001)
    assert (options["bias"], options["pairs"]) == ("learn", "all")
    assert recipe.data.flip and recipe.data.jitter > 0 and recipe.data.grayscale == 0


@pytest.mark.parametrize(
    ("source", "encoder", "dropout", "weights"),
    [
        ("cifar100", "resnet50", 0.5, "scratch"),
        ("tiny_imagenet", "resnet18", 0.5, "scratch"),
        ("cub200", "tiny_vit_21m_224", 0.0, "pretrained"),
        ("stanford_dogs", "tiny_vit_5m_224", 0.0, "pretrained"),
    ],
)
def test_encoders_and_dropout_for_convolutional_ones(source, encoder, dropout, weights):
    recipe = resolve(source)
    assert (recipe.encoder.name, recipe.encoder.weights) == (encoder, weights)
    assert recipe.probe.dropout == dropout
    assert recipe.encoder.small_stem == (weights == "scratch")
    other = resolve(source, encoder="convnext_t", from_scratch=True)
    assert (other.encoder.name, other.encoder.weights) == ("convnext_tiny", "scratch")
    assert other.probe.dropout == 0.5


def test_other_data_by_the_size_of_the_images():
    small, large = resolve("birds", size=48), resolve("birds", size=300)
    assert (small.pretrain.lr, large.pretrain.lr) == (0.5, 0.1)
    assert (small.encoder.name, large.encoder.name) == ("resnet18", "tiny_vit_5m_224")


def test_options_override_it_and_batches_fit_the_data():
    recipe = resolve("cifar10", epochs=3, images=500, settings=("probe.plain_lr=1",))
    assert (recipe.pretrain.epochs, recipe.pretrain.batch_size) == (3, 300)
    assert recipe.probe.plain_lr == 1
    assert resolve("cifar10", batch_size=64).pretrain.batch_size == 64


def test_other_methods_and_presets_keep_their_own_values():
    assert resolve("cifar10", method="scs_supcon@solved").method.preset == "solved"
    supcon = resolve("cifar10", method="supcon")
    assert (supcon.method.name, supcon.method.preset, supcon.pretrain.lr) == ("supcon", None, 0.5)
    overlap = resolve("cifar10", method="cs_supcon_overlap").head
    assert (overlap.style_dim, overlap.overlap, overlap.centre) == (92, 28, False)


def test_a_resolved_recipe_is_not_changed_by_resolving_it_again(tmp_path):
    recipe = resolve("cub200")
    file = tmp_path / "recipe.toml"
    file.write_text(write_toml(recipe))
    options = TrainOptions(source="cub200", recipe=file)
    again = resolve_recipe(options, facts(300), read_input_files(options), has_gpu=True)
    assert again == recipe == from_toml(file.read_text())


def test_a_file_called_paper_is_read(tmp_path, monkeypatch):
    (tmp_path / "paper").write_text("[pretrain]\nepochs = 7\n")
    monkeypatch.chdir(tmp_path)
    assert resolve("cifar10").pretrain.epochs == 7
