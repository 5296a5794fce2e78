import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from scs_supcon.errors import UserError
from scs_supcon.methods import Batch, Network, TaskInfo
from scs_supcon.methods.baseline import Baseline


def reference(
    h: list[list[float]], labels: list[int], w: list[list[float]], a: list[float]
) -> float:
    """−(1/n) Σ_i log softmax(W h_i + a)_{y_i}."""
    total = 0.0
    for row, y in zip(h, labels, strict=True):
        logits = [
            math.fsum(x * v for x, v in zip(row, weights, strict=True)) + bias
            for weights, bias in zip(w, a, strict=True)
        ]
        top = max(logits)
        total += top + math.log(math.fsum(math.exp(x - top) for x in logits)) - logits[y]
    return total / len(h)


def set_up(classes: int = 3) -> tuple[Baseline, Network]:
    network = Network(nn.Linear(6, 4), nn.Linear(4, 2)).double()
    task = TaskInfo(network, torch.arange(classes), classes, 4, 2, epochs=3)
    return Baseline().setup(task), network


def layer(method: Baseline) -> nn.Linear:
    assert method.classifier is not None
    return method.classifier


@given(st.integers(1, 9), st.integers(1, 5), st.integers(0, 1 << 20))
def test_the_loss_equals_the_reference(n: int, classes: int, seed: int) -> None:
    torch.manual_seed(seed)
    method, _ = set_up(classes)
    h = 3 * torch.randn(n, 4, dtype=torch.float64)
    labels = torch.randint(0, classes, (n,))
    w, a = layer(method).weight.tolist(), layer(method).bias.tolist()
    expected = reference(h.tolist(), labels.tolist(), w, a)
    assert method(h, labels).item() == pytest.approx(expected, rel=1e-10, abs=1e-13)


@given(st.integers(1, 9), st.integers(1, 5), st.integers(0, 1 << 20))
def test_soft_labels_weight_the_logarithms(n: int, classes: int, seed: int) -> None:
    torch.manual_seed(seed)
    method, network = set_up(classes)
    images, soft = torch.randn(n, 6).double(), torch.rand(n, classes).double().softmax(1)
    batch = Batch(images, soft.argmax(1), torch.arange(n), soft)
    (value,) = method.training_step(batch, network).values()
    h = network(images).features.tolist()
    w, a = layer(method).weight.tolist(), layer(method).bias.tolist()
    expected = math.fsum(
        soft[i, k].item() * reference([h[i]], [k], w, a) for i in range(n) for k in range(classes)
    )
    assert value.item() == pytest.approx(expected / n, rel=1e-10, abs=1e-13)
    hard = Batch(images, batch.labels, batch.indices)
    one_hot = nn.functional.one_hot(batch.labels, classes).double()
    (expected_value,) = method.training_step(hard, network).values()
    (value,) = method.training_step(replace(hard, label_probabilities=one_hot), network).values()
    torch.testing.assert_close(value, expected_value, rtol=1e-14, atol=1e-14)


def test_soft_labels_need_a_column_for_every_class() -> None:
    method, network = set_up(3)
    batch = Batch(torch.randn(2, 6).double(), torch.zeros(2).long(), torch.arange(2))
    with pytest.raises(UserError, match="one column for each of the 3 classes of this task, got 2"):
        method.training_step(replace(batch, label_probabilities=torch.eye(2)), network)


def test_zero_logits_cost_the_logarithm_of_the_number_of_classes() -> None:
    method, _ = set_up(10)
    nn.init.zeros_(layer(method).bias)
    value = method(torch.zeros(3, 4).double(), torch.tensor([0, 4, 9]))
    assert value.item() == pytest.approx(2.302585093, abs=1e-9)


def test_the_loss_uses_the_features_of_one_view_and_the_classifier_is_the_same_layer() -> None:
    method, network = set_up()
    assert method.views == 1 and not method.adapted
    images, labels = torch.randn(5, 6).double(), torch.tensor([0, 2, 1, 1, 0])
    (value,) = method.training_step(Batch(images, labels, torch.arange(5)), network).values()
    features, embeddings = network(images)
    logits = method.class_logits(features, embeddings)
    assert logits is not None
    torch.testing.assert_close(logits, layer(method)(features))
    torch.testing.assert_close(value, nn.functional.cross_entropy(logits, labels))
    value.backward()
    assert all(p.grad is not None and p.grad.any() for p in network.encoder.parameters())


def test_gradcheck() -> None:
    method, _ = set_up()
    h = torch.randn(5, 4, dtype=torch.float64, requires_grad=True)
    labels = torch.tensor([0, 2, 1, 1, 0])

    def value(h: Tensor, w: Tensor, a: Tensor) -> Tensor:
        return method(h, labels)

    leaves = (h, layer(method).weight, layer(method).bias)
    assert torch.autograd.gradcheck(value, leaves)


def test_weights_decay_and_biases_do_not() -> None:
    method, _ = set_up()
    weights, biases = method.param_groups(0.3, 0.1)
    assert weights["weight_decay"] == 0.1 and biases["weight_decay"] == 0
    assert weights["lr"] == biases["lr"] == 0.3
    assert [*weights["params"], *biases["params"]] == [layer(method).weight, layer(method).bias]


def test_errors_say_what_is_missing_or_wrong() -> None:
    with pytest.raises(UserError, match=r"Baseline has not been set up.*setup"):
        Baseline()(torch.randn(2, 4), torch.tensor([0, 1]))
    assert Baseline().class_logits(torch.randn(2, 4), torch.randn(2, 2)) is None
    method, _ = set_up(3)
    with pytest.raises(UserError, match="between 0 and 2 for this task of 3 classes, got 0 to 3"):
        method(torch.randn(2, 4).double(), torch.tensor([0, 3]))
