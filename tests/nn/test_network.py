"""The network, its micro-batches, and the input of the probe."""

import copy

import pytest
import torch
from torch import Tensor, nn

from scs_supcon.nn.encoder import build_encoder
from scs_supcon.nn.head import Projection
from scs_supcon.nn.network import Network, Output, in_micro_batches, probe_features


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


def gradients(encoder: nn.Module, images: Tensor, size: int) -> tuple[Tensor, list[Tensor]]:
    """Return features, and gradients of a loss on all pairs."""
    encoder.zero_grad()
    torch.manual_seed(3)
    features = in_micro_batches(encoder, images, size)
    z = nn.functional.normalize(features.to(images.dtype), dim=1)
    (z @ z.T).exp().mean().backward()
    return features.detach(), [p.grad.clone() for p in encoder.parameters() if p.grad is not None]


@pytest.mark.parametrize("size", [1, 4, 5, 6, 100])
@pytest.mark.parametrize("name", ["tiny", "convnext_atto"])
def test_micro_batches_equal_the_whole_batch_without_batch_statistics(name: str, size: int) -> None:
    encoder = build_encoder(name, small_stem=name != "tiny", in_size=16).double()
    images = torch.randn(11, 3, 16, 16, dtype=torch.float64)
    whole, chunked = (gradients(encoder, images, at_once) for at_once in (0, size))
    torch.testing.assert_close(chunked, whole, rtol=1e-9, atol=1e-13)
    assert len(whole[1]) == len(list(encoder.parameters()))


def test_only_the_features_are_kept_until_the_backward_pass() -> None:
    encoder = nn.Sequential(nn.Conv2d(3, 8, 3), nn.GELU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    images = torch.randn(12, 3, 9, 9)
    batch_sizes: list[int] = []
    encoder[0].register_forward_hook(lambda _m, inputs, _out: batch_sizes.append(len(inputs[0])))
    saved_sizes: list[int] = []

    def record_size(tensor: Tensor) -> Tensor:
        saved_sizes.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(record_size, lambda tensor: tensor):
        value = in_micro_batches(encoder, images, 4).square().sum()
    assert max(saved_sizes, default=0) <= images.numel()
    assert batch_sizes == [4, 4, 4]
    value.backward()
    assert batch_sizes == [4] * 6, "each micro-batch is encoded twice"


def test_micro_batches_differ_by_at_most_one_image() -> None:
    """Thirteen images, four at a time: a single last one would have no batch statistics."""
    encoder = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    sizes: list[int] = []
    encoder.register_forward_hook(lambda _m, inputs, _out: sizes.append(len(inputs[0])))
    in_micro_batches(encoder, torch.randn(13, 3), 4)
    assert sizes == [4, 3, 3, 3]
    assert in_micro_batches(encoder.eval(), torch.randn(0, 3), 4).shape == (0, 4)


@pytest.mark.parametrize("momentum", [0.1, None])
def test_running_statistics_are_updated_once(momentum: float | None) -> None:
    def make() -> nn.Sequential:
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4, momentum=momentum), nn.ReLU())

    images = torch.randn(12, 3)
    chunked, by_hand = make(), make()
    gradients(chunked, images, 4)
    for chunk in images.split(4):
        by_hand(chunk)
    for name, buffer in by_hand.named_buffers():
        torch.testing.assert_close(chunked.get_buffer(name), buffer)
    norm = chunked[1]
    assert isinstance(norm, nn.BatchNorm1d) and norm.momentum == momentum
    assert norm.num_batches_tracked is not None and int(norm.num_batches_tracked) == 3


def test_batch_statistics_are_those_of_a_micro_batch() -> None:
    """Compare with micro-batches encoded one after the other."""
    encoder = build_encoder("resnet18", small_stem=True, in_size=16).double()
    other = copy.deepcopy(encoder)
    images = torch.randn(8, 3, 16, 16, dtype=torch.float64)
    features, results = gradients(encoder, images, 4)
    expected = torch.cat([other(chunk) for chunk in images.split(4)])
    z = nn.functional.normalize(expected, dim=1)
    (z @ z.T).exp().mean().backward()
    torch.testing.assert_close(features, expected.detach())
    expected_gradients = [p.grad for p in other.parameters() if p.grad is not None]
    torch.testing.assert_close(results, expected_gradients, rtol=1e-8, atol=1e-12)


def test_both_passes_drop_the_same_units() -> None:
    images = torch.randn(8, 3)
    encoder = nn.Sequential(nn.Linear(3, 50), nn.Dropout(0.5))
    torch.manual_seed(3)
    features = in_micro_batches(encoder, images, 4)
    state = torch.get_rng_state()
    features.sum().backward()
    assert torch.equal(state, torch.get_rng_state()), "the second pass draws no random numbers"
    derivative = (features != 0).float() * 2  # of a column by its bias: 2 unless dropped
    torch.testing.assert_close(encoder[0].bias.grad, derivative.sum(0))


def test_micro_batches_work_under_autocast() -> None:
    encoder = build_encoder("tiny", small_stem=False, in_size=16)
    images = torch.randn(6, 3, 16, 16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        whole, chunked = (
            in_micro_batches(encoder, images, size).float().mean(1) for size in (0, 2)
        )
    results = []
    for value in (whole, chunked):  # backward passes run outside of autocast, as in training
        encoder.zero_grad()
        value.square().sum().backward()
        results.append([p.grad.clone() for p in encoder.parameters() if p.grad is not None])
    torch.testing.assert_close(results[1], results[0], rtol=0.05, atol=1e-3)


def test_without_gradients_there_is_no_second_pass() -> None:
    encoder = nn.Linear(3, 4)
    images = torch.randn(7, 3)
    with torch.no_grad():
        torch.testing.assert_close(in_micro_batches(encoder, images, 2), encoder(images))


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
