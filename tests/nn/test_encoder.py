"""Encoders: features, keys, taps in cached rows, and the tiny encoder."""

import copy
import subprocess
import sys

import pytest
import torch
from torch import nn

from scs_supcon.errors import UserError
from scs_supcon.nn.encoder import (
    TINY_WIDTH,
    TappedEncoder,
    TinyNet,
    build_encoder,
    encoder_key,
    for_cache,
    rows_key,
)
from scs_supcon.nn.taps import pool, record_taps


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


def test_equal_seeds_build_equal_encoders_in_training_mode() -> None:
    keys = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        encoder = build_encoder("test_resnet", small_stem=False, in_size=32)
        assert encoder.training
        assert encoder.body.training
        keys.append(encoder_key(encoder))
    assert keys[0] == keys[1] != keys[2]


def test_the_error_for_an_impossible_size_gives_a_possible_one() -> None:
    with pytest.raises(UserError, match=r"vit_tiny_patch16_224.*32 pixels.*image_size=224"):
        build_encoder("vit_tiny_patch16_224", small_stem=False, in_size=32)


def test_the_key_changes_with_the_features() -> None:
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

def fail(*arguments):
    raise SystemExit("the network was used")

socket.socket.connect = socket.getaddrinfo = fail
from scs_supcon.nn.timm_models import data_config, weights_licence
from scs_supcon.nn.encoder import build_encoder
assert "timm" not in sys.modules, "timm was loaded before an encoder was built"
build_encoder("test_resnet", small_stem=False, in_size=32)
data_config("resnet18"), weights_licence("resnet18")
"""


def test_building_needs_no_network_and_importing_no_timm() -> None:
    subprocess.run([sys.executable, "-c", NO_NETWORK], check=True, timeout=120)


SIZES = {"tiny": 16, "resnet18": 32, "convnext_atto": 64}


@pytest.mark.parametrize(
    ("name", "tap"),
    [
        ("tiny", {"body.layers.1": 64}),
        ("resnet18", {"body.layer2": 128}),
        ("convnext_atto", {"body.stages.1": 80}),
        ("tiny_vit_5m_224", {"body.stages.1": 128}),
        ("vit_tiny_patch16_224", {"body.blocks.5": 192}),
    ],
)
def test_tapped_rows_are_the_features_and_the_tap(name, tap):
    encoder = build_encoder(name, small_stem=False, in_size=SIZES.get(name, 224)).eval()
    assert encoder.taps == tap
    (stage, width), images = (
        next(iter(tap.items())),
        torch.randn(2, 3, SIZES.get(name, 224), SIZES.get(name, 224)),
    )
    inner_outputs = []
    handle = encoder.get_submodule(stage).register_forward_hook(
        lambda *o: inner_outputs.append(o[-1])
    )
    with torch.inference_mode():
        features = encoder(images)
        handle.remove()
        rows = TappedEncoder(encoder)(images)
    assert torch.equal(rows[:, : encoder.num_features], features), "bit for bit"
    assert torch.equal(rows[:, encoder.num_features :], pool(inner_outputs[0], width))
    assert rows.shape[1] == TappedEncoder(encoder).num_features


def test_a_cached_encoder_returns_features_and_taps_from_the_rows():
    encoder = build_encoder("tiny", small_stem=False, in_size=16).eval()
    source, cached_encoder = for_cache(encoder, taps=True)
    assert isinstance(source, TappedEncoder)
    rows = torch.randn(3, source.num_features)
    with record_taps(cached_encoder, list(cached_encoder.taps.values())) as outputs:
        features = cached_encoder(rows)
    assert torch.equal(features, rows[:, :128])
    assert torch.equal(outputs[0][0], rows[:, 128:])
    assert not list(cached_encoder.parameters())


def test_without_taps_the_encoder_itself_is_cached():
    encoder = build_encoder("tiny", small_stem=False, in_size=16)
    source, cached_encoder = for_cache(encoder, taps=False)
    assert source is encoder
    assert isinstance(cached_encoder, nn.Identity)
    assert rows_key(encoder) == encoder_key(encoder)
    assert rows_key(TappedEncoder(encoder)) not in ("", rows_key(encoder))


def test_an_encoder_without_stages_is_cached_without_taps():
    encoder = build_encoder("tiny", small_stem=False, in_size=16)
    encoder.taps = {}
    assert for_cache(encoder, taps=True)[0] is encoder


def test_the_tiny_encoder_accepts_images_of_8_to_32_pixels() -> None:
    for size in (8, 12, 16, 24, 32):
        assert TinyNet(size)(torch.rand(2, 3, size, size)).shape == (2, TINY_WIDTH)


def test_tiny_features_do_not_depend_on_the_batch_even_in_training() -> None:
    torch.manual_seed(0)
    encoder, images = TinyNet(16).train(), torch.rand(6, 3, 16, 16)
    alone = torch.cat([encoder(image[None]) for image in images])
    torch.testing.assert_close(encoder(images), alone, rtol=1e-5, atol=1e-6)
    assert not [m for m in encoder.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]


def test_every_weight_of_the_tiny_encoder_gets_a_gradient() -> None:
    encoder = TinyNet(8)
    encoder(torch.rand(4, 3, 8, 8)).square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in encoder.parameters())


def test_tinyvit_features_are_pooled_over_the_image() -> None:
    encoder = build_encoder("tiny_vit_5m_224", small_stem=False, in_size=224).eval()
    image = torch.randn(1, 3, 224, 224)
    with torch.no_grad():
        maps = encoder.body.forward_features(image)
        assert maps.ndim == 4  # there is no CLS token
        pooled = encoder.body.head.norm(encoder.body.head.global_pool(maps))
        torch.testing.assert_close(encoder(image), pooled.flatten(1))


def test_the_features_of_a_vit_are_its_cls_token() -> None:
    encoder = build_encoder("vit_tiny_patch16_224", small_stem=False, in_size=224).eval()
    image = torch.randn(1, 3, 224, 224)
    with torch.no_grad():
        tokens = encoder.body.forward_features(image)
        torch.testing.assert_close(encoder(image), tokens[:, 0])
