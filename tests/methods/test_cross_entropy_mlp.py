import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from scs_supcon.methods import Batch, Network, TaskInfo, probe_input_for
from scs_supcon.methods.cross_entropy_mlp import CrossEntropyMLP
from scs_supcon.nn.head import Projection


def dot(x: list[float], y: list[float]) -> float:
    return math.fsum(a * b for a, b in zip(x, y, strict=True))


def reference(
    h: list[list[float]],
    labels: list[int],
    head: tuple[list[list[float]], list[float], list[list[float]], list[float]],
    w: list[list[float]],
    a: list[float],
) -> float:
    """−(1/n) Σ_i log softmax(W z_i + a)_{y_i} with z = W₂ max(0, W₁ h + b₁) + b₂."""
    w1, b1, w2, b2 = head
    total = 0.0
    for row, y in zip(h, labels, strict=True):
        hidden = [max(0.0, dot(weights, row) + bias) for weights, bias in zip(w1, b1, strict=True)]
        z = [dot(weights, hidden) + bias for weights, bias in zip(w2, b2, strict=True)]
        logits = [dot(weights, z) + bias for weights, bias in zip(w, a, strict=True)]
        top = max(logits)
        total += top + math.log(math.fsum(math.exp(x - top) for x in logits)) - logits[y]
    return total / len(h)


def set_up(classes: int = 3) -> tuple[CrossEntropyMLP, Network]:
    network = Network(nn.Linear(6, 4), Projection(4, 5, 7)).double()
    task = TaskInfo(network, torch.arange(classes), classes, 4, 5, epochs=3)
    return CrossEntropyMLP().setup(task), network


def layer(method: CrossEntropyMLP) -> nn.Linear:
    assert method.classifier is not None
    return method.classifier


@given(st.integers(1, 9), st.integers(1, 5), st.integers(0, 1 << 20))
def test_the_loss_equals_the_reference(n: int, classes: int, seed: int) -> None:
    torch.manual_seed(seed)
    method, network = set_up(classes)
    images, labels = torch.randn(n, 6).double(), torch.randint(0, classes, (n,))
    (value,) = method.training_step(Batch(images, labels, torch.arange(n)), network).values()
    first, _, second = network.projection.layers
    head = tuple(p.tolist() for linear in (first, second) for p in (linear.weight, linear.bias))
    w, a = layer(method).weight.tolist(), layer(method).bias.tolist()
    h = network(images).features.tolist()
    expected = reference(h, labels.tolist(), head, w, a)
    assert value.item() == pytest.approx(expected, rel=1e-10, abs=1e-13)
    assert method(network(images).embeddings, labels).item() == pytest.approx(value.item())


def test_soft_labels_of_one_class_equal_labels() -> None:
    method, network = set_up()
    images, labels = torch.randn(4, 6).double(), torch.tensor([0, 2, 1, 1])
    soft = nn.functional.one_hot(labels, 3).double()
    (hard,) = method.training_step(Batch(images, labels, labels), network).values()
    (value,) = method.training_step(Batch(images, labels, labels, soft), network).values()
    torch.testing.assert_close(value, hard, rtol=1e-14, atol=1e-14)


def test_the_classifier_is_linear_in_the_embeddings_and_trains_the_head() -> None:
    method, network = set_up()
    assert (method.views, probe_input_for(method, frozen=True)) == (1, "embeddings")
    assert probe_input_for(method, frozen=False) == "embeddings"
    images, labels = torch.randn(5, 6).double(), torch.tensor([0, 2, 1, 1, 0])
    (value,) = method.training_step(Batch(images, labels, torch.arange(5)), network).values()
    features, embeddings = network(images)
    logits = method.class_logits(features, embeddings)
    assert logits is not None
    torch.testing.assert_close(value, nn.functional.cross_entropy(logits, labels))
    own = method.linear_classifier("embeddings")
    assert own is not None
    torch.testing.assert_close(logits, embeddings @ own[0].T + own[1])
    assert method.linear_classifier("features") is None
    value.backward()
    assert all(p.grad is not None and p.grad.any() for p in network.projection.parameters())


def test_gradcheck() -> None:
    method, _ = set_up()
    z = torch.randn(5, 5, dtype=torch.float64, requires_grad=True)
    labels = torch.tensor([0, 2, 1, 1, 0])

    def value(z: Tensor, w: Tensor, a: Tensor) -> Tensor:
        return method(z, labels)

    assert torch.autograd.gradcheck(value, (z, layer(method).weight, layer(method).bias))
