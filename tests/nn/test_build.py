"""The shapes of a network, without building it."""

import subprocess
import sys

import pytest
import torch

from scs_supcon.nn.build import build_network, network_shapes
from scs_supcon.nn.timm_models import data_config
from scs_supcon.recipe import make_recipe

WITHOUT_COMPILER = """
import sys
from scs_supcon.nn.build import network_shapes
from scs_supcon.recipe import make_recipe
encoder = {"name": "tf_efficientnet_lite0", "weights": "scratch"}
assert network_shapes(make_recipe({"data": {"source": "shapes"}, "encoder": encoder}))
assert "timm" in sys.modules
assert "torch._dynamo" not in sys.modules
"""


def recipe_with(name, size):
    data = {**data_config(name), "image_size": size, "source": "shapes"}
    encoder = {"name": name, "weights": "scratch", "small_stem": False}
    return make_recipe({"data": data, "encoder": encoder, "head": {"heads": 2}})


@pytest.mark.parametrize(
    "name",
    [
        *("tiny", "resnet18", "tf_efficientnet_lite0", "convnext_tiny", "mobilenetv3_small_100"),
        *("vit_tiny_patch16_224", "tiny_vit_5m_224"),
    ],
)
def test_the_shapes_are_those_of_the_network(name):
    recipe = recipe_with(name, 224 if "vit" in name else 64)
    network = build_network(recipe)
    parts = {"encoder": network.encoder, "head": network.projection}
    assert network_shapes(recipe) == {
        part: {key: tensor.shape for key, tensor in module.state_dict().items()}
        for part, module in parts.items()
    }


@pytest.mark.slow
def test_torchs_compiler_is_not_imported():
    """It takes longer than everything else that a prediction needs."""
    subprocess.run([sys.executable, "-c", WITHOUT_COMPILER], check=True)


@pytest.mark.parametrize(("size", "last"), [(64, False), (96, True)])
def test_encoders_of_large_images_have_their_channels_last(size, last):
    weight = build_network(recipe_with("resnet18", size)).encoder.body.conv1.weight
    assert weight.is_contiguous(memory_format=torch.channels_last) == last
