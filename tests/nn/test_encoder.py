import copy
import subprocess
import sys

import pytest
import torch

from scs_supcon.errors import UserError
from scs_supcon.nn.encoder import build_encoder, encoder_key


@pytest.mark.parametrize(
    ("name", "size", "width"),
    [
        ("tiny", 8, 128),
        ("resnet18", 64, 512),
        ("mobilenetv3_small_050", 64, 1024),  # timm's own num_features is 288
        ("tiny_vit_5m_224", 224, 320),
        ("test_vit", 160, 64),
    ],
)
def test_num_features_is_the_width_of_the_output(name: str, size: int, width: int) -> None:
    encoder = build_encoder(name, small_stem=False, in_size=size)
    assert encoder.num_features == width
    assert encoder.eval()(torch.rand(2, 3, size, size)).shape == (2, width)


def test_building_is_decided_by_the_seed_and_leaves_training_mode_on() -> None:
    keys = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        encoder = build_encoder("test_resnet", small_stem=False, in_size=32)
        assert encoder.training
        assert encoder.body.training
        keys.append(encoder_key(encoder))
    assert keys[0] == keys[1] != keys[2]


def test_an_impossible_size_is_refused_with_the_right_one() -> None:
    with pytest.raises(UserError, match=r"vit_tiny_patch16_224.*32 pixels.*image_size=224"):
        build_encoder("vit_tiny_patch16_224", small_stem=False, in_size=32)


def test_the_key_tells_every_change_of_features() -> None:
    torch.manual_seed(0)
    encoder = build_encoder("efficientnet_b0", small_stem=False, in_size=32)
    torch.manual_seed(0)
    stride = build_encoder("efficientnet_b0", small_stem=True, in_size=32)  # the same weights
    statistics, weight = copy.deepcopy(encoder), copy.deepcopy(encoder)
    statistics.body.get_buffer("bn1.running_mean")[0] += 1
    with torch.no_grad():
        weight.body.get_parameter("conv_stem.weight")[0, 0, 0, 0] += 1
    assert encoder_key(copy.deepcopy(encoder)) == encoder_key(encoder)
    assert encoder_key(encoder.to(memory_format=torch.channels_last)) == encoder_key(encoder)
    assert len({encoder_key(e) for e in (encoder, stride, statistics, weight)}) == 4


NO_NETWORK = """
import socket, sys

def refuse(*arguments):
    raise SystemExit("somebody asked for the network")

socket.socket.connect = socket.getaddrinfo = refuse
from scs_supcon.nn.catalogue import data_config, weights_licence
from scs_supcon.nn.encoder import build_encoder
assert "timm" not in sys.modules, "timm was loaded before an encoder was wanted"
build_encoder("test_resnet", small_stem=False, in_size=32)
data_config("resnet18"), weights_licence("resnet18")
"""


def test_building_asks_for_no_network_and_importing_for_no_timm() -> None:
    subprocess.run([sys.executable, "-c", NO_NETWORK], check=True, timeout=120)
