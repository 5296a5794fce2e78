"""Facts about timm's models, and their small stems."""

import pytest
import timm
import torch
from timm.data import resolve_data_config
from torch import nn

from scs_supcon.errors import UserError
from scs_supcon.nn.encoder import build_encoder
from scs_supcon.nn.timm_models import (
    data_config,
    has_small_stem,
    is_convolutional,
    pretrained_cfg,
    timm_name,
    weights_licence,
)


@pytest.mark.parametrize(
    "name", ["tf_efficientnet_lite0", "resnet50.tv_in1k", "vit_base_patch16_384", "inception_v3"]
)
def test_the_data_config_equals_that_of_timm(name: str) -> None:
    theirs = resolve_data_config(pretrained_cfg=timm.get_pretrained_cfg(name).to_dict())
    assert data_config(name) == {
        "image_size": theirs["input_size"][-1],
        "mean": theirs["mean"],
        "std": theirs["std"],
        "interpolation": theirs["interpolation"],
        "crop_pct": theirs["crop_pct"],
    }


def test_every_published_config_fits_the_data_recipe() -> None:
    for name in timm.list_pretrained():
        config = data_config(name)
        assert config["interpolation"] in ("bilinear", "bicubic")
        assert len(config["mean"]) == len(config["std"]) == 3
        assert 0 < config["crop_pct"] <= 1


def test_the_licence_of_the_weights_is_known() -> None:
    assert weights_licence("tf_efficientnet_lite0") == "apache-2.0"
    assert weights_licence("convnextv2_atto") == "cc-by-nc-4.0"
    assert weights_licence("tiny") == "none"


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("resnt18", "did you mean 'resnet18'"),
        ("tiney", "'tiny'"),
        ("resnet18.a1", "'resnet18.a1_in1k'"),
        ("tv_resnet50", "'resnet50.tv_in1k'"),
        ("hf-hub:someone/something", "name of a timm model"),
        ("local-dir:weights", "name of a timm model"),
        ("", "name of a timm model"),
    ],
)
def test_the_error_for_a_wrong_name_suggests_another(name: str, hint: str) -> None:
    with pytest.raises(UserError) as error:
        pretrained_cfg(name)
    assert name in str(error.value)
    assert hint in str(error.value)


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
def test_a_small_stem_gives_the_first_stage_a_larger_map(name: str) -> None:
    _, published, small = SIDES[name]
    assert side_of_first_stage(name, small_stem=False) == published
    assert side_of_first_stage(name, small_stem=True) == small


def test_a_small_resnet_has_the_stem_of_the_cifar_papers() -> None:
    encoder = build_encoder("resnet18", small_stem=True, in_size=32)
    stem = encoder.body.get_submodule("conv1")
    assert isinstance(stem, nn.Conv2d)
    assert (stem.kernel_size, stem.stride, stem.padding) == ((3, 3), (1, 1), (1, 1))
    assert isinstance(encoder.body.get_submodule("maxpool"), nn.Identity)
    assert encoder.stem.text == "3×3 stride 1, no pooling"


def test_a_small_convnext_uses_patches_of_one_pixel_for_very_small_images() -> None:
    assert build_encoder("convnext_atto", small_stem=True, in_size=16).stem.text.endswith("1×1")


def test_a_family_without_a_small_stem_is_an_error() -> None:
    assert has_small_stem("resnet18.a1_in1k")
    assert not has_small_stem("tiny_vit_5m_224")
    assert not has_small_stem("tiny")
    with pytest.raises(UserError, match=r"tiny_vit_5m_224.*small_stem=false.*image_size=224"):
        build_encoder("tiny_vit_5m_224", small_stem=True, in_size=32)
    with pytest.raises(UserError, match="unknown encoder"):
        has_small_stem("resnt18")


@pytest.mark.parametrize(
    ("name", "timm_model"),
    [
        ("resnet18", "resnet18"),
        ("ResNet-50", "resnet50"),
        ("convnext_t", "convnext_tiny"),
        ("ConvNeXt-T", "convnext_tiny"),
        ("tinyvit_5m", "tiny_vit_5m_224"),
        ("TinyViT-21M", "tiny_vit_21m_224"),
        ("tiny", "tiny"),
        ("vit_tiny_patch16_224", "vit_tiny_patch16_224"),
    ],
)
def test_the_encoders_of_the_paper_have_short_names(name: str, timm_model: str) -> None:
    assert timm_name(name) == timm_model
    data_config(timm_model)  # raises an error for an unknown name


@pytest.mark.parametrize(
    ("name", "convolutional"),
    [
        *[(name, True) for name in ("resnet18", "resnet50", "convnext_tiny", "tiny")],
        *[(name, True) for name in ("tf_efficientnet_lite0", "mobilenetv3_small_100")],
        *[(name, False) for name in ("tiny_vit_5m_224", "vit_tiny_patch16_224")],
        *[(name, False) for name in ("swin_tiny_patch4_window7_224", "xcit_nano_12_p16_224")],
    ],
)
def test_convolutional_networks_and_transformers(name: str, convolutional: bool) -> None:
    assert is_convolutional(name) == convolutional
