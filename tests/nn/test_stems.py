import pytest
import torch
from torch import nn

from scs_supcon.errors import UserError
from scs_supcon.nn.encoder import build_encoder
from scs_supcon.nn.stems import has_small_stem

# The side of the first stage's map for a 32-pixel image: as published, and with the small stem.
SIDES = {
    "resnet18": ("layer1", 8, 32),
    "resnet18d": ("layer1", 8, 32),
    "convnext_atto": ("stages.0", 8, 16),
    "convnext_atto_ols": ("stages.0", 8, 16),
    "efficientnet_b0": ("blocks.0", 16, 32),
    "tf_efficientnet_lite0": ("blocks.0", 16, 32),
    "mobilenetv3_small_050": ("blocks.0", 8, 16),
}


def side_of_first_stage(name: str, small_stem: bool) -> int:
    encoder = build_encoder(name, small_stem=small_stem, in_size=32).eval()
    shapes: list[torch.Size] = []
    encoder.body.get_submodule(SIDES[name][0]).register_forward_hook(
        lambda module, inputs, output: shapes.append(output.shape)
    )
    features = encoder(torch.rand(2, 3, 32, 32))
    assert features.shape == (2, encoder.num_features)
    return shapes[0][-1]


@pytest.mark.parametrize("name", SIDES)
def test_the_first_stage_sees_a_larger_map(name: str) -> None:
    _, published, small = SIDES[name]
    assert side_of_first_stage(name, small_stem=False) == published
    assert side_of_first_stage(name, small_stem=True) == small


def test_resnets_get_the_stem_of_the_cifar_papers() -> None:
    encoder = build_encoder("resnet18", small_stem=True, in_size=32)
    stem = encoder.body.get_submodule("conv1")
    assert isinstance(stem, nn.Conv2d)
    assert (stem.kernel_size, stem.stride, stem.padding) == ((3, 3), (1, 1), (1, 1))
    assert isinstance(encoder.body.get_submodule("maxpool"), nn.Identity)
    assert encoder.stem.text == "3×3 stride 1, no pooling"


def test_convnext_takes_single_pixels_of_very_small_images() -> None:
    assert build_encoder("convnext_atto", small_stem=True, in_size=16).stem.text.endswith("1×1")


def test_families_without_a_small_stem_say_so() -> None:
    assert has_small_stem("resnet18.a1_in1k")
    assert not has_small_stem("tiny_vit_5m_224")
    assert not has_small_stem("tiny")
    with pytest.raises(UserError, match=r"tiny_vit_5m_224.*small_stem=false.*image_size=224"):
        build_encoder("tiny_vit_5m_224", small_stem=True, in_size=32)
    with pytest.raises(UserError, match="unknown encoder"):
        has_small_stem("resnt18")
