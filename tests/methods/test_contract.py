"""The contract of all methods in `available()`."""

import copy
import math
from collections.abc import Callable
from importlib import import_module

import pytest
import torch
from torch import Tensor, nn

from scs_supcon.methods import (
    Batch,
    Method,
    Network,
    Output,
    TaskInfo,
    available,
    build_method,
    method_class,
    probe_input_for,
)
from scs_supcon.nn.head import Projection
from scs_supcon.nn.network import probe_features

CLASSES, SIZE, FEATURES, DIM = 3, 6, 16, 64

# The loss grows while a queue fills: one batch fills this one.
OPTIONS = {"paco": {"queue": 24}}

every_method = pytest.mark.parametrize("name", available())


def network() -> Network:
    torch.manual_seed(0)
    encoder = nn.Sequential(nn.Linear(SIZE, FEATURES), nn.LayerNorm(FEATURES), nn.ReLU())
    return Network(encoder, Projection(FEATURES, DIM, centre=True))


def noisy_images(labels: Tensor) -> Tensor:
    """Return "images" of six numbers: those of the class, and noise."""
    source = torch.Generator().manual_seed(1)
    classes = torch.randn(CLASSES, SIZE, generator=source)
    return classes[labels] + 0.5 * torch.randn(len(labels), SIZE, generator=source)


def batch(method: Method, labels: Tensor) -> Batch:
    images = noisy_images(labels).repeat(method.views, 1)
    source = torch.Generator().manual_seed(2)
    images = images + 0.1 * torch.randn(images.shape, generator=source)
    return Batch(images, labels, torch.arange(len(labels)))


def set_up(name: str, labels: Tensor, net: Network) -> Method:
    """Return a method after `setup` and the start of its first epoch."""
    torch.manual_seed(0)
    method = build_method(name, **OPTIONS.get(name, {})).setup(
        TaskInfo(net, labels, CLASSES, FEATURES, DIM, epochs=4)
    )
    method.on_epoch_start(0, encode_images_of(labels))
    return method


def encode_images_of(labels: Tensor) -> Callable[[nn.Module], Output]:
    def encode(net: nn.Module) -> Output:
        with torch.no_grad():
            output: Output = net(noisy_images(labels).to(next(net.parameters()).dtype))
        return output

    return encode


def total(method: Method, example: Batch, net: Network) -> Tensor:
    return torch.stack(list(method.training_step(example, net).values())).sum()


LABELS = {
    "mixed": torch.tensor([0, 1, 1, 2, 0, 0, 2, 1]),
    "singletons": torch.tensor([0, 1, 2]),
    "one class": torch.tensor([1, 1, 1, 1]),
    "one without positives": torch.tensor([0, 0, 0, 2]),
    "one image": torch.tensor([1]),
}


@every_method
@pytest.mark.parametrize("labels", LABELS)
def test_value_and_gradient_are_finite(name: str, labels: str) -> None:
    net = network()
    method = set_up(name, LABELS[labels], net)
    terms = method.training_step(batch(method, LABELS[labels]), net)
    assert terms and all(term.shape == () for term in terms.values())
    torch.stack(list(terms.values())).sum().backward()
    for module in (net, method):
        for parameter, p in module.named_parameters():
            assert p.grad is None or p.grad.isfinite().all(), parameter


@every_method
@pytest.mark.parametrize("value", [0.0, 1.0])
def test_equal_images_give_finite_gradients(name: str, value: float) -> None:
    """With 0 and no bias in the network the embeddings are zero vectors."""
    net = network()
    for parameter, p in net.named_parameters():
        if value == 0 and parameter.endswith("bias"):
            p.data.zero_()
    method, labels = set_up(name, LABELS["mixed"], net), LABELS["mixed"]
    images = torch.full((method.views * len(labels), SIZE), value)
    total(method, Batch(images, labels, torch.arange(len(labels))), net).backward()
    for parameter, p in (*net.named_parameters(), *method.named_parameters()):
        assert p.grad is None or p.grad.isfinite().all(), parameter


@every_method
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32])
def test_labels_may_be_of_any_integer_type(name: str, dtype: torch.dtype) -> None:
    values = []
    for labels in (LABELS["mixed"], LABELS["mixed"].to(dtype)):
        net = network()
        method = set_up(name, LABELS["mixed"], net)
        example = batch(method, LABELS["mixed"])
        values.append(total(method, Batch(example.images, labels, example.indices), net))
    assert torch.equal(*values)


@every_method
def test_the_gradient_reaches_the_encoder(name: str) -> None:
    net = network()
    method = set_up(name, LABELS["mixed"], net)
    total(method, batch(method, LABELS["mixed"]), net).backward()
    weight = net.encoder[0].weight
    assert weight.grad is not None and weight.grad.any()


@every_method
def test_a_restored_copy_continues_identically(name: str) -> None:
    net = network()
    labels = LABELS["mixed"]
    method = set_up(name, labels, net)
    optimiser = torch.optim.SGD(
        [{"params": list(net.parameters()), "lr": 0.1}, *method.param_groups(lr=0.1)]
    )
    total(method, batch(method, labels), net).backward()
    optimiser.step()
    method.after_step(net, 0.1)
    other_net = network()
    other = set_up(name, labels, other_net)
    other_net.load_state_dict(net.state_dict())
    other.load_state_dict(method.state_dict())
    for m, n in ((other, other_net), copy.deepcopy((method, net))):
        torch.manual_seed(5)
        restored = total(m, batch(m, labels), n)
        torch.manual_seed(5)
        assert torch.equal(restored, total(*copy.deepcopy((method, batch(method, labels), net))))


@every_method
def test_micro_batches_give_the_gradient_of_the_whole_batch(name: str) -> None:
    labels, results = LABELS["mixed"], []
    for size in (0, 3):
        net = network().double()
        method = set_up(name, labels, net)
        net.micro_batch = size
        example = batch(method, labels)
        example = Batch(example.images.double(), example.labels, example.indices)
        value = total(method, example, net)
        value.backward()
        parameters = [*net.parameters(), *method.parameters()]
        results.append([value, *(p.grad for p in parameters if p.grad is not None)])
    whole, chunked = results
    assert len(whole) == len(chunked) > 1
    for expected, actual in zip(whole, chunked, strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-13)


@every_method
def test_the_loss_is_finite_in_bfloat16(name: str) -> None:
    net = network()
    method = set_up(name, LABELS["mixed"], net)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        value = total(method, batch(method, LABELS["mixed"]), net)
    value.backward()
    assert value.isfinite()
    assert all(p.grad is None or p.grad.isfinite().all() for p in net.parameters())


class Float32Network(nn.Module):
    """A network that always computes in float32."""

    def __init__(self, net: Network) -> None:
        super().__init__()
        self.net = net

    def forward(self, images: Tensor) -> Output:
        with torch.autocast("cpu", enabled=False):
            output: Output = self.net(images)
        return output


@pytest.mark.parametrize("name", sorted({*available()} - {"byol", "selfcon"}))
def test_the_loss_itself_is_not_rounded_to_bfloat16(name: str) -> None:
    """Except BYOL's predictor and SelfCon's second exit, which are networks."""
    values = []
    for enabled in (False, True):
        net = Float32Network(network())
        method = set_up(name, LABELS["mixed"], net)  # type: ignore[arg-type]
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
            values.append(total(method, batch(method, LABELS["mixed"]), net))  # type: ignore[arg-type]
    torch.testing.assert_close(*values, rtol=1e-5, atol=1e-6)


@every_method
def test_the_probe_input_and_the_logits_have_one_row_per_image(name: str) -> None:
    net = network()
    method = set_up(name, LABELS["mixed"], net)
    output = net(noisy_images(LABELS["mixed"]))
    for frozen in (False, True):
        probe_input = probe_input_for(method, frozen=frozen)
        rows = probe_features(output, probe_input, common_dim=48)
        assert len(rows) == len(LABELS["mixed"]) and rows.isfinite().all()
    logits = method.class_logits(output.features, output.embeddings)
    assert logits is None or logits.shape == (len(LABELS["mixed"]), CLASSES)
    assert all(math.isfinite(value) for value in method.scalars().values())


@every_method
def test_thirty_steps_lower_the_loss(name: str) -> None:
    """A weak check: the loss of a wrong formula can also fall."""
    net = network()
    labels = torch.arange(24) % CLASSES
    method = set_up(name, labels, net)
    example = batch(method, labels)
    optimiser = torch.optim.SGD(
        [{"params": list(net.parameters()), "lr": 0.05}, *method.param_groups(lr=0.01)]
    )
    values = []
    for step in range(30):
        optimiser.zero_grad()
        value = total(method, example, net)
        value.backward()
        optimiser.step()
        method.after_step(net, step / 30)
        values.append(value.item())
    assert sum(values[-5:]) < sum(values[:5])


@every_method
def test_the_docstring_gives_the_formula(name: str) -> None:
    module = import_module(f"scs_supcon.methods.{name}")
    assert method_class(name).__doc__
    assert module.__doc__ and (" = " in module.__doc__ or "The loss of `" in module.__doc__)
