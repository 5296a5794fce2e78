"""The encoder a run starts from, and what it sees."""

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from scs_supcon.data.builtin import shapes
from scs_supcon.device import find_compute
from scs_supcon.errors import UserError
from scs_supcon.methods import Network, build_method
from scs_supcon.nn.head import Projection
from scs_supcon.progress import Display
from scs_supcon.recipe import make_recipe
from scs_supcon.recipe.resolve import TrainOptions
from scs_supcon.training.distributed import make_fabric
from scs_supcon.training.features import FeatureExtractor, Parts, build_initial_encoder


def recipe_for(**encoder):
    usual = {"name": "tiny", "weights": "scratch", "small_stem": True, "frozen_views": 2}
    return make_recipe(
        {
            "data": {"source": "drawn", "image_size": 16},
            "encoder": usual | encoder,
            "method": {"name": "scs_supcon"},
            "probe": {"views": 1},
        }
    )


@pytest.fixture
def looking(tmp_path):
    place = find_compute("cpu", 0, tmp_path / "cache")

    def make(recipe):
        return FeatureExtractor(make_fabric("cpu", "32-true"), recipe, place, Display(quiet=True))

    return make


@pytest.fixture
def parts():
    images = shapes(per_class=1)
    splits = np.array(["train", "train", "train", "val", "val", "test"])
    encoder, _ = build_initial_encoder(recipe_for(), TrainOptions(source="drawn"), offline=True)
    network = Network(encoder, Projection(encoder.num_features, 256).eval())
    return Parts(images, splits, encoder, encoder, network, build_method("scs_supcon"))


def test_an_encoder_starts_as_the_recipe_says(weights):
    encoder, line = build_initial_encoder(recipe_for(), TrainOptions(source="drawn"), offline=True)
    assert line == "encoder   tiny, random weights; it is trained"
    kept = recipe_for(weights=f"sha256:{'0' * 64}", small_stem=False, frozen=True)
    encoder, line = build_initial_encoder(
        kept, TrainOptions(source="drawn", weights=weights), offline=True
    )
    assert line == f"encoder   tiny, weights from {weights}; its features are computed once"
    for name, value in load_file(weights).items():
        assert torch.equal(encoder.body.state_dict()[name], value)
    with pytest.raises(UserError, match="give it with --weights FILE"):
        build_initial_encoder(kept, TrainOptions(source="drawn"), offline=True)


def test_training_images_are_seen_under_random_views_too(looking, parts, tmp_path):
    eye = looking(recipe_for())
    train, val = (eye.see(parts, split, tmp_path / "own") for split in ("train", "val"))
    assert train.indices.tolist() == [0, 1, 2]
    assert train.features.shape == (3, 2, parts.encoder.num_features)
    assert val.features.shape == (2, 1, parts.encoder.num_features)
    assert train.readout.shape == (3, 2, 192)
    assert not torch.equal(train.features[:, 0], train.features[:, 1])
    assert (tmp_path / "own").exists()
    assert not (tmp_path / "cache").exists(), "an encoder that only this run has"


def test_features_of_a_frozen_encoder_are_shared(looking, parts, tmp_path):
    eye = looking(recipe_for(frozen=True, weights=f"sha256:{'0' * 64}"))
    seen = eye.see(parts, "train", tmp_path / "own")
    assert seen.features.shape == (3, 3, parts.encoder.num_features)
    assert (tmp_path / "cache").exists()
    assert not (tmp_path / "own").exists()
    again = eye.features(parts, seen.indices, "train", 2)
    assert torch.equal(again, seen.features)
