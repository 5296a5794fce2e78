import pytest
import torch
from torch import nn

from scs_supcon.nn.encoder import build_encoder, encoder_key
from scs_supcon.nn.tapped import Tapped, for_cache, rows_key
from scs_supcon.nn.taps import pool, tapped

SIZES = {"tiny": 16, "resnet18": 32, "convnext_atto": 64, "tiny_vit_5m_224": 224}


@pytest.mark.parametrize(
    ("name", "tap"),
    [
        ("tiny", {"body.layers.1": 64}),
        ("resnet18", {"body.layer2": 128}),
        ("convnext_atto", {"body.stages.1": 80}),
        ("tiny_vit_5m_224", {"body.stages.1": 128}),
    ],
)
def test_rows_hold_the_features_and_beside_them_the_tap(name, tap):
    encoder = build_encoder(name, small_stem=False, in_size=SIZES[name]).eval()
    assert encoder.taps == tap
    (where, width), images = next(iter(tap.items())), torch.randn(2, 3, SIZES[name], SIZES[name])
    inner = []
    handle = encoder.get_submodule(where).register_forward_hook(lambda *o: inner.append(o[-1]))
    with torch.inference_mode():
        features = encoder(images)
        handle.remove()
        rows = Tapped(encoder)(images)
    assert torch.equal(rows[:, : encoder.num_features], features), "bit for bit"
    assert torch.equal(rows[:, encoder.num_features :], pool(inner[0], width))
    assert rows.shape[1] == Tapped(encoder).num_features


def test_a_stand_in_gives_back_what_the_rows_hold():
    encoder = build_encoder("tiny", small_stem=False, in_size=16).eval()
    source, stand_in = for_cache(encoder, taps=True)
    assert isinstance(source, Tapped)
    rows = torch.randn(3, source.num_features)
    with tapped(stand_in, list(stand_in.taps.values())) as caught:
        features = stand_in(rows)
    assert torch.equal(features, rows[:, :128])
    assert torch.equal(caught[0][0], rows[:, 128:])
    assert not list(stand_in.parameters())


def test_who_wants_no_taps_pays_for_none():
    encoder = build_encoder("tiny", small_stem=False, in_size=16)
    source, stand_in = for_cache(encoder, taps=False)
    assert source is encoder
    assert isinstance(stand_in, nn.Identity)
    assert rows_key(encoder) == encoder_key(encoder)
    assert rows_key(Tapped(encoder)) not in ("", rows_key(encoder))


def test_an_encoder_without_stages_has_no_taps():
    encoder = build_encoder("tiny", small_stem=False, in_size=16)
    encoder.taps = {}
    assert for_cache(encoder, taps=True)[0] is encoder
