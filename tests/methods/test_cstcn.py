import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from scs_supcon import SupCon
from scs_supcon.errors import UserError
from scs_supcon.methods import Batch, Network, Output, TaskInfo
from scs_supcon.methods.cstcn import CSTCN, codes, sinkhorn, swap_loss
from scs_supcon.nn.head import unit

Vectors = list[list[float]]


def reference_codes(z: Vectors, prototypes: Vectors, sharpness: float = 0.05) -> Vectors:
    """exp(C z/ε), columns then rows normalised three times: Cuturi (2013), as SwAV uses it."""
    q = [[math.exp(dot(row, c) / sharpness) for c in prototypes] for row in z]
    for _ in range(3):
        for k in range(len(prototypes)):
            total = math.fsum(row[k] for row in q)
            for row in q:
                row[k] /= total
        q = [[x / math.fsum(row) for x in row] for row in q]
    return q


def reference_swap(
    views: tuple[Vectors, Vectors],
    past: tuple[Vectors, Vectors],
    prototypes: Vectors,
    tau: float,
) -> float:
    """−(1/2B) Σ_i Σ_k [q_ik² log softmax(C z_i¹/τ)_k + q_ik¹ log softmax(C z_i²/τ)_k]."""
    images = len(views[0])
    q = [reference_codes(past[v] + views[v], prototypes)[len(past[v]) :] for v in (0, 1)]
    total = 0.0
    for i in range(images):
        for v in (0, 1):
            logits = [dot(views[v][i], c) / tau for c in prototypes]
            top = max(logits)
            log_z = top + math.log(math.fsum(math.exp(x - top) for x in logits))
            total -= math.fsum(
                code * (x - log_z) for code, x in zip(q[1 - v][i], logits, strict=True)
            )
    return total / (2 * images)


def dot(x: list[float], y: list[float]) -> float:
    return math.fsum(a * b for a, b in zip(x, y, strict=True))


def set_up(**options: Any) -> tuple[CSTCN, Network]:
    torch.manual_seed(0)
    network = Network(nn.Linear(6, 5), nn.Linear(5, 4)).double()
    return CSTCN(**options).setup(
        TaskInfo(network, torch.arange(3).repeat(5), 3, 5, 4, epochs=3)
    ), network


def prototypes(method: CSTCN) -> Tensor:
    assert method.prototypes is not None
    return method.prototypes


def batch(seed: int = 0, count: int = 4) -> Batch:
    source = torch.Generator().manual_seed(seed)
    images = torch.randn(2 * count, 6, generator=source, dtype=torch.float64)
    return Batch(images, torch.tensor([0, 1, 0, 2, 1, 1])[:count], torch.arange(count))


def rows(images: int, seed: int) -> Tensor:
    source = torch.Generator().manual_seed(seed)
    return torch.randn(images, 2, 4, generator=source, dtype=torch.float64)


@settings(max_examples=25)
@given(st.integers(1, 6), st.integers(1, 7), st.integers(0, 1 << 20))
def test_the_loss_equals_the_reference(images: int, count: int, seed: int) -> None:
    method, _ = set_up(prototypes=count, prototype_temperature=0.2, weight=0.5)
    z, labels = rows(images, seed), torch.arange(images) % 3
    terms = method.loss_terms(z, labels)
    first, second = unit(z[:, 0]).tolist(), unit(z[:, 1]).tolist()
    expected = reference_swap((first, second), ([], []), prototypes(method).tolist(), 0.2)
    assert terms["swap"].item() == pytest.approx(0.5 * expected, rel=1e-10)
    torch.testing.assert_close(terms["contrast"], SupCon(0.1)(z, labels))


@given(st.integers(1, 9), st.integers(1, 9), st.integers(0, 1 << 20))
def test_sinkhorn_balances_rows_and_columns(images: int, count: int, seed: int) -> None:
    source = torch.Generator().manual_seed(seed)
    scores = torch.randn(images, count, generator=source, dtype=torch.float64)
    q = sinkhorn(scores)
    torch.testing.assert_close(q.sum(1), torch.ones(images, dtype=torch.float64))
    converged = sinkhorn(scores, iterations=300)
    even = torch.full((count,), images / count, dtype=torch.float64)
    torch.testing.assert_close(converged.sum(0), even, rtol=1e-6, atol=0)


def test_the_sharpest_possible_codes_are_exact_in_float32() -> None:
    """All rows at one prototype and none at the others: cosines of ±1, divided by ε = 0.05."""
    scores = torch.tensor([[1.0, -1.0], [1.0, -1.0], [1.0, -0.9], [-1.0, 1.0]]) / 0.05
    torch.testing.assert_close(sinkhorn(scores), sinkhorn(scores.double()).float())
    q = sinkhorn(torch.tensor([[20.0, -20.0]] * 5))
    torch.testing.assert_close(q, torch.full((5, 2), 0.5))
    assert sinkhorn(torch.zeros(0, 3)).shape == (0, 3)


def test_equal_scores_cost_the_logarithm_of_the_number_of_prototypes() -> None:
    q = sinkhorn(torch.zeros(6, 5, dtype=torch.float64))
    torch.testing.assert_close(q, torch.full_like(q, 1 / 5))
    scores = torch.zeros(6, 5, dtype=torch.float64)
    assert swap_loss((scores, scores), (q, q), 0.1).item() == pytest.approx(math.log(5))


def test_codes_have_no_gradient() -> None:
    z = unit(torch.randn(4, 4, dtype=torch.float64)).requires_grad_()
    assert not codes(z, z[:0], z).requires_grad
    fixed = sinkhorn(torch.randn(3, 4, dtype=torch.float64)), sinkhorn(torch.randn(3, 4).double())
    scores = torch.randn(2, 3, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda s: swap_loss((s[0], s[1]), fixed, 0.5), (scores,))


def test_there_are_three_prototypes_per_class_and_at_least_300() -> None:
    assert len(prototypes(set_up()[0])) == 300
    network = Network(nn.Linear(6, 5), nn.Linear(5, 4))
    many = CSTCN().setup(TaskInfo(network, torch.arange(150).repeat(2), 150, 5, 4, epochs=3))
    assert len(prototypes(many)) == 450
    lengths = torch.linalg.vector_norm(prototypes(many), dim=1)
    torch.testing.assert_close(lengths, torch.ones(450))


def test_a_small_batch_is_balanced_together_with_the_queue() -> None:
    method, network = set_up(prototypes=7, queue=6)
    assert method.queue is not None
    past: tuple[Vectors, Vectors] = ([], [])
    for step in range(4):
        example = batch(step)
        views = [unit(z).tolist() for z in network(example.images).embeddings.chunk(2)]
        value = method.training_step(example, network)["swap"].item()
        expected = reference_swap((views[0], views[1]), past, prototypes(method).tolist(), 0.1)
        assert value == pytest.approx(expected, rel=1e-9)
        method.after_step(network, 0.1)
        past = (past[0] + views[0])[-6:], (past[1] + views[1])[-6:]
    assert len(method.queue.contents()[0]) == 6


def test_a_large_batch_needs_no_queue() -> None:
    method, network = set_up(prototypes=4)
    assert method.queue is not None
    method.training_step(batch(), network)
    method.after_step(network, 0.1)
    assert not len(method.queue.contents()[0])


def encode(_network: nn.Module) -> Output:
    raise AssertionError("the training set is not needed")


def test_prototypes_are_frozen_in_the_first_epoch_and_keep_unit_length() -> None:
    method, network = set_up(prototypes=7)
    weight = prototypes(method)
    optimizer = torch.optim.SGD(method.param_groups(0.5), 0.5)
    method.on_epoch_start(0, encode)
    sum(method.training_step(batch(), network).values()).backward()  # type: ignore[union-attr]
    assert weight.grad is None
    method.on_epoch_start(1, encode)
    before = weight.detach().clone()
    sum(method.training_step(batch(), network).values()).backward()  # type: ignore[union-attr]
    optimizer.step()
    method.after_step(network, 0.1)
    assert not torch.equal(weight, before)
    lengths = torch.linalg.vector_norm(weight.detach(), dim=1)
    torch.testing.assert_close(lengths, torch.ones(7, dtype=torch.float64))


def test_alternating_steps_use_one_loss_each() -> None:
    method, network = set_up(prototypes=7, alternate=True)
    both, _ = set_up(prototypes=7)
    expected = both.training_step(batch(), network)
    even = method.training_step(batch(), network)
    assert even["contrast"] == expected["contrast"] and even["swap"] == 0
    method.after_step(network, 0.1)
    odd = method.training_step(batch(), network)
    torch.testing.assert_close(odd["swap"], expected["swap"])
    assert odd["contrast"] == 0 and method.adapted


def test_errors_say_what_is_missing_or_wrong() -> None:
    with pytest.raises(UserError, match="has not been set up"):
        CSTCN()(torch.randn(4, 2, 3), torch.arange(4))
    with pytest.raises(UserError, match=r"CSTCN compares the views.*\(B, V, D\)"):
        set_up()[0](torch.randn(4, 3), torch.arange(4))
    for options in ({"temperature": 0.0}, {"prototypes": -1}, {"queue": -1}, {"weight": -0.1}):
        with pytest.raises(UserError, match=f"{next(iter(options))} must be"):
            CSTCN(**options)  # type: ignore[arg-type]
