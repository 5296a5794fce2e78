import copy
import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from scs_supcon.errors import UserError
from scs_supcon.methods import Batch, Network, TaskInfo
from scs_supcon.methods.paco import PaCo, alpha_for, parametric
from scs_supcon.methods.shared.momentum import momentum_encoder
from scs_supcon.nn.head import unit

Vectors = list[list[float]]
Weights = tuple[float, float, float]


def reference(
    centres: Vectors, s: Vectors, labels: list[int], row_labels: list[int], weights: Weights
) -> float:
    """(1/B) Σ_i −[β log p(i,y_i) + α Σ_{f∈P} log p(i,f)]/(β + α|P|): Cui et al. (2021), Eq. 3.

    centres: logits of classes; s: logits of rows, of which the i-th is anchor i itself. Weights
    (α, β, γ): as in the official code γ multiplies the rows' part of the denominator.
    """
    alpha, beta, gamma = weights
    total = 0.0
    for i, y in enumerate(labels):
        rows = [j for j in range(len(s[i])) if j != i]
        z = math.fsum(math.exp(u) for u in centres[i])
        z += gamma * math.fsum(math.exp(s[i][j]) for j in rows)
        positives = [j for j in rows if row_labels[j] == y]
        value = beta * (centres[i][y] - math.log(z))
        value += alpha * math.fsum(s[i][j] - math.log(z) for j in positives)
        total -= value / (beta + alpha * len(positives))
    return total / len(labels)


@st.composite
def logits(draw: st.DrawFn) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return centres, row logits, labels, and labels of rows (the anchors first)."""
    labels = draw(st.lists(st.integers(0, 2), min_size=1, max_size=5))
    more = draw(st.lists(st.integers(0, 2), max_size=6))
    row_labels = labels + labels + more
    source = torch.Generator().manual_seed(draw(st.integers(0, 1 << 20)))
    centres = 2 * torch.randn(len(labels), 3, generator=source, dtype=torch.float64)
    s = 3 * torch.randn(len(labels), len(row_labels), generator=source, dtype=torch.float64)
    return centres, s, torch.tensor(labels), torch.tensor(row_labels)


@given(
    logits(), st.sampled_from([(0.05, 1.0, 1.0), (0.0, 1.0, 0.0), (1.0, 0.0, 1.0), (2.0, 1.0, 0.5)])
)
def test_the_loss_equals_the_reference(
    case: tuple[Tensor, Tensor, Tensor, Tensor], weights: Weights
) -> None:
    centres, s, labels, row_labels = case
    same = labels[:, None] == row_labels
    value = parametric(centres, s, labels, same, weights)
    expected = reference(
        centres.tolist(), s.tolist(), labels.tolist(), row_labels.tolist(), weights
    )
    assert value.item() == pytest.approx(expected, rel=1e-10, abs=1e-13)


@given(logits())
def test_without_rows_the_loss_is_cross_entropy(
    case: tuple[Tensor, Tensor, Tensor, Tensor],
) -> None:
    centres, s, labels, row_labels = case
    s.requires_grad_()
    value = parametric(centres, s, labels, labels[:, None] == row_labels, (0.0, 1.0, 0.0))
    torch.testing.assert_close(value, nn.functional.cross_entropy(centres, labels))
    value.backward()
    assert s.grad is not None and not s.grad.any()


def test_gradcheck() -> None:
    source = torch.Generator().manual_seed(0)
    labels, rows = torch.tensor([0, 1, 0]), torch.tensor([0, 1, 0, 0, 1, 0, 2])
    centres = torch.randn(3, 3, generator=source, dtype=torch.float64, requires_grad=True)
    s = torch.randn(3, 7, generator=source, dtype=torch.float64, requires_grad=True)
    same = labels[:, None] == rows
    assert torch.autograd.gradcheck(
        lambda c, s: parametric(c, s, labels, same, (0.3, 1.0, 1.0)), (centres, s)
    )


@pytest.mark.parametrize(
    ("classes", "queue", "expected"),
    [(1000, 8192, 0.05), (50, 1024, 0.02), (100, 1024, 0.04), (10_000, 1024, 1.0), (50, 0, 0.05)],
)
def test_alpha_follows_classes_and_queue(classes: int, queue: int, expected: float) -> None:
    assert alpha_for(classes, queue) == pytest.approx(expected)
    if 0 < classes < queue:  # the centre weighs as in the authors' ImageNet runs
        centre = 1 / (1 + alpha_for(classes, queue) * queue / classes)
        assert centre == pytest.approx(1 / (1 + 0.05 * 8192 / 1000))


def test_a_given_alpha_is_kept() -> None:
    assert PaCo().alpha == "auto"
    assert set_up()[0].alpha == alpha_for(3, 1024)
    assert set_up(alpha=0.05)[0].alpha == 0.05
    with pytest.raises(UserError, match="alpha must be one of 'auto'"):
        PaCo(alpha="large")


# In training.


def set_up(**options: Any) -> tuple[PaCo, Network]:
    torch.manual_seed(0)
    network = Network(nn.Linear(6, 5), nn.Linear(5, 4)).double()
    return PaCo(**options).setup(
        TaskInfo(network, torch.tensor([0] * 6 + [1] * 3 + [2]), 3, 5, 4, epochs=3)
    ), network


def batch(seed: int = 0, count: int = 4) -> Batch:
    source = torch.Generator().manual_seed(seed)
    images = torch.randn(2 * count, 6, generator=source, dtype=torch.float64)
    return Batch(images, torch.tensor([0, 1, 0, 2, 1, 1])[:count], torch.arange(count))


def whole_reference(method: PaCo, network: Network, example: Batch) -> float:
    """Compute the loss from images: view 1, the momentum encoder's view 2, the queue."""
    assert method.queue is not None and method.classifier is not None
    with torch.no_grad():
        first, second = example.images.chunk(2)
        features, embeddings = network(first)
        q, k = unit(embeddings), unit(momentum_encoder(method).network(second).embeddings)
        old, old_labels = method.queue.contents()
        centres = method.classifier(features) + method.log_prior
        s = q @ torch.cat([q, k, old]).T / method.temperature
    labels = example.labels.tolist()
    rows = labels + labels + old_labels.tolist()
    return reference(
        centres.tolist(), s.tolist(), labels, rows, (method.alpha, method.beta, method.gamma)
    )


@pytest.mark.parametrize("prior", [False, True])
def test_training_equals_the_reference_while_the_queue_fills(prior: bool) -> None:
    method, network = set_up(queue=6, prior=prior)
    optimizer = torch.optim.SGD(
        [{"params": list(network.parameters())}, *method.param_groups(0.1)], 0.1
    )
    for step in range(4):
        example = batch(step)
        value = method.training_step(example, network)["contrast"]
        expected = whole_reference(method, network, example)
        assert value.item() == pytest.approx(expected, rel=1e-10)
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        method.after_step(network, step / 4)


def test_keys_are_added_to_the_queue_after_the_step() -> None:
    method, network = set_up(queue=6)
    assert method.queue is not None
    keys = []
    for step in range(2):
        example = batch(step)
        with torch.no_grad():
            keys.append(unit(momentum_encoder(method).network(example.images[4:]).embeddings))
        method.training_step(example, network)
        assert len(method.queue.contents()[0]) == 4 * step
        method.after_step(network, 0.1)
    rows, labels = method.queue.contents()
    assert len(rows) == 6
    # The newest two replaced the oldest two.
    torch.testing.assert_close(rows, torch.cat([keys[1][2:], keys[0][2:], keys[1][:2]]))
    assert labels.tolist() == [0, 2, 0, 2, 0, 1]


def test_keys_queue_and_momentum_encoder_have_no_gradient() -> None:
    method, network = set_up()
    method.training_step(batch(), network)["contrast"].backward()
    assert method.classifier is not None
    assert not any(
        p.requires_grad or p.grad is not None for p in momentum_encoder(method).parameters()
    )
    learnable = [id(p) for group in method.param_groups(0.1) for p in group["params"]]
    assert sorted(learnable) == sorted(id(p) for p in method.classifier.parameters())
    for module in (network, method.classifier):
        assert all(p.grad is not None and p.grad.any() for p in module.parameters())


def test_the_momentum_is_lower_in_the_first_steps() -> None:
    method, network = set_up(momentum=0.5)
    before = copy.deepcopy(momentum_encoder(method).network)
    with torch.no_grad():
        network.encoder.get_parameter("weight").add_(1.0)
    method.after_step(network, 0.0)
    average = momentum_encoder(method).network.get_parameter("encoder.weight")
    torch.testing.assert_close(average, before.get_parameter("encoder.weight") + 0.9)
    for _ in range(20):
        method.after_step(network, 0.5)
    assert momentum_encoder(method).warmup_momentum(0.999) == pytest.approx(22 / 31)
    assert momentum_encoder(method).warmup_momentum(0.5) == 0.5


def test_priors_are_the_class_frequencies_and_do_not_change_the_classifier() -> None:
    method, network = set_up(prior=True)
    assert method.log_prior.exp().tolist() == pytest.approx([0.6, 0.3, 0.1])
    assert not set_up()[0].log_prior.any()
    features = network(batch().images).features
    logits = method.class_logits(features, features)
    assert logits is not None and method.classifier is not None
    torch.testing.assert_close(logits, method.classifier(features))


def test_errors_say_what_to_call_and_what_is_wrong() -> None:
    with pytest.raises(UserError, match=r"call setup\(task\), then training_step"):
        PaCo()(torch.randn(4, 3), torch.arange(4))
    with pytest.raises(UserError, match="has not been set up"):
        PaCo().training_step(batch(), set_up()[1])
    with pytest.raises(UserError, match="both be 0"):
        PaCo(alpha=0.0, beta=0.0)
    for options in ({"temperature": 0.0}, {"alpha": -1.0}, {"momentum": 2.0}, {"queue": -1}):
        with pytest.raises(UserError, match=f"{next(iter(options))} must be"):
            PaCo(**options)  # type: ignore[arg-type]


def test_the_queue_may_have_size_zero() -> None:
    method, network = set_up(queue=0)
    for step in range(2):
        example = batch(step)
        value = method.training_step(example, network)["contrast"].item()
        assert value == pytest.approx(whole_reference(method, network, example), rel=1e-10)
        method.after_step(network, 0.1)
