import copy
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from scs_supcon.errors import UserError
from scs_supcon.methods import Batch, Network, TaskInfo
from scs_supcon.methods.byol import BYOL, distance
from scs_supcon.methods.shared.momentum import momentum_encoder
from scs_supcon.nn.head import Projection

Vectors = list[list[float]]


def reference(q1: Vectors, q2: Vectors, k1: Vectors, k2: Vectors) -> float:
    """(1/B) Σ_i [2 − 2 cos(q_i¹, k_i²)] + [2 − 2 cos(q_i², k_i¹)]: Grill et al. (2020), Eq. 2."""

    def cosine(x: list[float], y: list[float]) -> float:
        return math.fsum(a * b for a, b in zip(x, y, strict=True)) / math.hypot(*x) / math.hypot(*y)

    total = 0.0
    for i in range(len(q1)):
        total += 2 - 2 * cosine(q1[i], k2[i])
        total += 2 - 2 * cosine(q2[i], k1[i])
    return total / len(q1)


def set_up(**options: float) -> tuple[BYOL, Network]:
    torch.manual_seed(0)
    network = Network(nn.Linear(6, 4), Projection(4, 3, centre=True)).double()
    method = BYOL(hidden=8, **options).setup(TaskInfo(network, torch.arange(2), 2, 4, 3, epochs=3))
    return method, network


def batch(count: int, seed: int = 0) -> Batch:
    source = torch.Generator().manual_seed(seed)
    images = torch.randn(2 * count, 6, generator=source, dtype=torch.float64)
    return Batch(images, torch.arange(count) % 2, torch.arange(count))


def perturbed_copy(network: Network) -> Network:
    """Return a copy of a network with other weights, as after a step of an optimiser."""
    other = copy.deepcopy(network)
    with torch.no_grad():
        for p in other.parameters():
            p.add_(torch.randn_like(p))
    other(batch(7, seed=3).images)
    return other


@settings(max_examples=20)
@given(st.integers(1, 6), st.integers(0, 1 << 20))
def test_the_loss_equals_the_reference(images: int, seed: int) -> None:
    method, network = set_up()
    network = perturbed_copy(network)
    example = batch(images, seed)
    assert method.predictor is not None
    with torch.no_grad():
        q1, q2 = method.predictor(network(example.images).embeddings).chunk(2)
        k1, k2 = momentum_encoder(method).network(example.images).embeddings.chunk(2)
    expected = reference(q1.tolist(), q2.tolist(), k1.tolist(), k2.tolist())
    value = method.training_step(example, network)["predict"]
    assert value.item() == pytest.approx(expected, rel=1e-10, abs=1e-12)


def test_same_orthogonal_and_opposite_directions() -> None:
    x = torch.tensor([[3.0, 0.0], [0.0, 2.0]], dtype=torch.float64)
    across = torch.tensor([[0.0, 5.0], [1.0, 0.0]], dtype=torch.float64)
    assert distance(x, 2 * x).item() == 0
    assert distance(x, across).item() == 2
    assert distance(x, -x).item() == 4


def test_only_the_prediction_has_a_gradient() -> None:
    x = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    target = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: distance(x, target), (x,))
    distance(x, target).backward()
    assert target.grad is None


def test_the_momentum_encoder_gets_no_gradient() -> None:
    method, network = set_up()
    method.training_step(batch(5), network)["predict"].backward()
    assert method.predictor is not None
    averages = list(momentum_encoder(method).parameters())
    assert averages and not any(p.requires_grad or p.grad is not None for p in averages)
    learnable = [id(p) for group in method.param_groups(0.1) for p in group["params"]]
    assert sorted(learnable) == sorted(id(p) for p in method.predictor.parameters())
    assert all(p.grad is not None for p in method.predictor.parameters())
    assert all(p.grad is not None for p in network.parameters())


def test_the_momentum_rises_to_one() -> None:
    method, network = set_up()
    assert method.momentum_at(0.0) == pytest.approx(0.996)
    assert method.momentum_at(0.5) == pytest.approx(0.998)
    assert method.momentum_at(1.0) == 1
    before = copy.deepcopy(momentum_encoder(method))
    online = perturbed_copy(network)
    method.after_step(online, 0.5)
    for old, new, now in zip(
        before.network.parameters(),
        momentum_encoder(method).network.parameters(),
        online.parameters(),
        strict=True,
    ):
        torch.testing.assert_close(new, 0.998 * old + 0.002 * now)
    for new, now in zip(momentum_encoder(method).network.buffers(), online.buffers(), strict=True):
        assert torch.equal(new, now)


def test_with_momentum_zero_the_momentum_encoder_equals_the_network() -> None:
    method, network = set_up(momentum=0.0)
    online = perturbed_copy(network)
    method.after_step(online, 0.0)
    for new, now in zip(
        momentum_encoder(method).network.parameters(), online.parameters(), strict=True
    ):
        assert torch.equal(new, now)


def test_labels_are_not_used_and_views_may_be_swapped() -> None:
    method, network = set_up()
    example = batch(6)
    value = method.training_step(example, network)["predict"]
    other = Batch(example.images, 1 - example.labels, example.indices)
    assert torch.equal(method.training_step(other, network)["predict"], value)
    swapped = Batch(torch.cat(example.images.chunk(2)[::-1]), example.labels, example.indices)
    torch.testing.assert_close(method.training_step(swapped, network)["predict"], value)


def test_errors_say_what_to_call() -> None:
    with pytest.raises(UserError, match=r"needs images: call setup\(task\), then training_step"):
        BYOL()(torch.randn(4, 3), torch.arange(4))
    _, network = set_up()
    with pytest.raises(UserError, match="has not been set up"):
        BYOL().training_step(batch(2), network)
    for options in ({"momentum": 1.5}, {"momentum": -0.1}, {"hidden": 0}):
        with pytest.raises(UserError):
            BYOL(**options)  # type: ignore[arg-type]


def test_only_the_direction_of_a_row_matters() -> None:
    x, y = torch.randn(2, 4, 3, dtype=torch.float64)
    scale: Tensor = torch.rand(4, 1, dtype=torch.float64) + 0.5
    torch.testing.assert_close(distance(scale * x, y), distance(x, y))


def test_the_recipe_centres_the_embeddings() -> None:
    assert BYOL.recipe_defaults(None) == {"head": {"centre": True}}
