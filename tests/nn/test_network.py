"""The network and the input of the probe."""

import torch
from torch import nn

from scs_supcon.nn.head import Projection
from scs_supcon.nn.network import Network, Output, probe_features


def test_a_network_returns_features_and_embeddings() -> None:
    network = Network(nn.Linear(4, 3), Projection(3, 2))
    output = network(torch.ones(5, 4))
    assert output.features.shape == (5, 3) and output.embeddings.shape == (5, 2)


def test_the_probe_input_is_features_or_unit_embeddings_or_the_unit_common_field() -> None:
    output = Output(torch.randn(2, 7), torch.tensor([[3.0, 4.0, 12.0], [0.0, 0.0, 1.0]]))
    assert probe_features(output, "features", 2) is output.features
    torch.testing.assert_close(
        probe_features(output, "embeddings", 2),
        torch.tensor([[3 / 13, 4 / 13, 12 / 13], [0.0, 0.0, 1.0]]),
    )
    torch.testing.assert_close(
        probe_features(output, "common", 2), torch.tensor([[0.6, 0.8], [0.0, 0.0]])
    )


def test_fixed_norms_use_and_keep_their_running_statistics():
    encoder = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5))
    network = Network(encoder, nn.BatchNorm1d(4), fixed_norm=True)
    before = encoder[1].running_mean.clone()
    images = torch.randn(8, 3)
    for mode in (True, False, True):
        nn.ModuleList([network]).train(mode)
        assert not encoder[1].training
        assert (encoder[2].training, network.projection.training) == (mode, mode)
    output = network(images)
    assert torch.equal(encoder[1].running_mean, before)
    encoder[2].eval()
    assert torch.equal(network(images).features, network.eval()(images).features)
    output.embeddings.square().sum().backward()
    assert encoder[1].weight.grad is not None, "scale and shift are trained"
