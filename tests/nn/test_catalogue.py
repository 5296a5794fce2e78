import pytest
import timm
from timm.data import resolve_data_config

from scs_supcon.errors import UserError
from scs_supcon.nn.catalogue import data_config, pretrained_cfg, weights_licence


@pytest.mark.parametrize(
    "name", ["tf_efficientnet_lite0", "resnet50.tv_in1k", "vit_base_patch16_384", "inception_v3"]
)
def test_data_config_is_timms(name: str) -> None:
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


def test_licences() -> None:
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
def test_a_wrong_name_is_named_with_a_way_out(name: str, hint: str) -> None:
    with pytest.raises(UserError) as error:
        pretrained_cfg(name)
    assert name in str(error.value)
    assert hint in str(error.value)
