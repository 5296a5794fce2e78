"""Learning rates of the layers of an encoder."""

import pytest
import torch
from torch import nn

from scs_supcon.nn.encoder import build_encoder
from scs_supcon.training.layer_rates import encoder_rates
from scs_supcon.training.loop import make_optimizer, parameter_groups


def rates_by_name(encoder, encoder_lr, layer_decay):
    rates = encoder_rates(encoder, encoder_lr, layer_decay)
    return {name: rates[parameter] for name, parameter in encoder.named_parameters()}


def test_each_layer_of_the_tiny_encoder_is_slower_than_the_one_above():
    rates = rates_by_name(build_encoder("tiny", small_stem=False, in_size=16), 0.1, 0.5)
    for name, rate in rates.items():
        number = int(name.split(".")[2])
        assert rate == 0.1 * 0.5 ** (3 - number), name


@pytest.mark.parametrize(
    ("name", "first", "last"),
    [
        ("resnet18", "body.conv1.weight", "body.layer4.1.conv2.weight"),
        ("tf_efficientnet_lite0", "body.conv_stem.weight", "body.conv_head.weight"),
    ],
)
def test_the_layers_of_timm_models_are_used(name, first, last):
    rates = rates_by_name(build_encoder(name, small_stem=False, in_size=32), 0.1, 0.5)
    assert rates[last] == 0.1
    assert rates[first] == min(rates.values()) < 0.1 * 0.5**7
    assert all(0 < rate <= 0.1 for rate in rates.values())


def test_without_a_decay_all_layers_have_the_rate_of_the_encoder():
    rates = rates_by_name(build_encoder("resnet18", small_stem=False, in_size=32), 0.1, 1.0)
    assert set(rates.values()) == {0.1}


def test_an_unknown_encoder_is_one_layer():
    assert set(rates_by_name(nn.Linear(2, 3), 0.1, 0.5).values()) == {0.1}
    assert encoder_rates(nn.Identity(), 0.1, 0.5) == {}


def test_the_optimiser_gets_a_group_per_rate_and_decay():
    first, second = nn.Linear(2, 3), nn.Linear(3, 3)
    rates = dict.fromkeys(first.parameters(), 0.25)
    groups = parameter_groups([nn.Sequential(first, second)], 0.2, 0.5, rates)
    settings = [
        (group.get("lr", 0.2), group["weight_decay"], len(group["params"])) for group in groups
    ]
    assert settings == [(0.2, 0.5, 1), (0.2, 0.0, 1), (0.05, 0.5, 1), (0.05, 0.0, 1)]
    optimizer = make_optimizer("sgd", groups, 0.2)
    assert [group["lr_scale"] for group in optimizer.param_groups] == [1, 1, 0.25, 0.25]


def test_equal_rates_leave_the_groups_as_they_were():
    network = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    plain = parameter_groups([network], 0.2, 0.5)
    rates = parameter_groups([network], 0.2, 0.5, encoder_rates(network, 1.0, 1.0))
    assert [group.keys() for group in plain] == [group.keys() for group in rates]
    pairs = zip(plain, rates, strict=True)
    assert all(torch.equal(a["params"][0], b["params"][0]) for a, b in pairs)
