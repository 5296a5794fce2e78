"""Initial weights of the network, and the features of the splits."""

from functools import partial

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from scs_supcon.data.builtin import shapes
from scs_supcon.device import find_compute
from scs_supcon.errors import UserError
from scs_supcon.methods import build_method, probe_input_for
from scs_supcon.nn.build import build_network
from scs_supcon.nn.head import Projection, unit
from scs_supcon.progress import Display
from scs_supcon.recipe import make_recipe
from scs_supcon.training.distributed import make_fabric
from scs_supcon.training.features import (
    encode_images,
    extract_features,
    load_initial_weights,
    probe_inputs,
)

IMAGES = shapes(per_class=1)
SPLITS = np.array(["train", "train", "train", "val", "val", "test"])
FILE = f"sha256:{'0' * 64}"


def recipe_for(**encoder):
    defaults = {"name": "tiny", "weights": "scratch", "small_stem": True, "frozen_views": 2}
    return make_recipe(
        {
            "data": {"source": "shapes", "image_size": 16},
            "encoder": defaults | encoder,
            "probe": {"views": 1},
        }
    )


def extract(recipe, cache, shared):
    """Return the network, its features, and the function that encodes images."""
    network = build_network(recipe).eval()
    compute, display = find_compute("cpu", 0, shared), Display(quiet=True)
    fabric = make_fabric("cpu")
    encode = partial(encode_images, network.encoder, IMAGES, recipe, fabric, compute, display)
    features = extract_features(network, encode, SPLITS, IMAGES.labels, "common", recipe, cache)
    return network, features, encode


def test_the_encoder_starts_from_the_weights_of_the_recipe(weights):
    network = build_network(recipe_for())
    assert load_initial_weights(network, recipe_for()) == (
        "encoder   tiny, trained, starting from random weights"
    )
    recipe = recipe_for(weights=FILE, small_stem=False, frozen=True)
    network = build_network(recipe)
    assert load_initial_weights(network, recipe, weights=weights) == (
        f"encoder   tiny, frozen, with weights from {weights}"
    )
    for name, value in load_file(weights).items():
        assert torch.equal(network.encoder.body.state_dict()[name], value)
    with pytest.raises(UserError, match="give it with --weights FILE"):
        load_initial_weights(network, recipe)


def test_only_training_images_have_random_views(tmp_path):
    network, features, _ = extract(recipe_for(), tmp_path / "run", tmp_path / "shared")
    train, val = features["train"], features["val"]
    width = network.encoder.num_features
    assert train.indices.tolist() == [0, 1, 2]
    assert train.labels.tolist() == IMAGES.labels[:3].tolist()
    assert train.features.shape == (3, 2, width)
    assert val.features.shape == (2, 1, width)
    assert train.probe_inputs.shape == (3, 2, 192)
    assert not torch.equal(train.features[:, 0], train.features[:, 1])


def test_a_frozen_run_has_the_cached_views(tmp_path):
    recipe = recipe_for(frozen=True, weights=FILE)
    network, features, encode = extract(recipe, tmp_path / "cache", tmp_path / "shared")
    assert features["train"].features.shape == (3, 3, network.encoder.num_features)
    again = encode(features["train"].indices, "train", 2, tmp_path / "cache")
    assert torch.equal(again, features["train"].features)


@pytest.mark.parametrize(
    ("name", "frozen", "probe_input"),
    [
        ("scs_supcon", False, "common"),
        ("supcon", False, "features"),
        ("scs_supcon", True, "common"),
        ("supcon", True, "embeddings"),
        ("baseline", True, "features"),
    ],
)
def test_every_view_gives_the_probe_input_of_the_method(name, frozen, probe_input):
    assert probe_input_for(build_method(name), frozen=frozen) == probe_input
    projection = Projection(5, 256, centre=True).eval()
    features = torch.randn(7, 3, 5)
    inputs = probe_inputs(features, projection, probe_input, 192)
    for image in range(7):
        for view in range(3):
            single = features[image, view : view + 1]
            with torch.no_grad():
                embeddings = projection(single)
            expected = {
                "features": single,
                "embeddings": unit(embeddings),
                "common": unit(embeddings[:, :192]),
            }
            assert torch.allclose(inputs[image, view], expected[probe_input][0], atol=1e-6)
    assert not inputs.requires_grad


def test_an_empty_split_has_empty_probe_inputs():
    inputs = probe_inputs(torch.empty(0, 1, 5), nn.Linear(5, 256), "common", 192)
    assert inputs.shape == (0, 1, 192)
