"""The bias that is solved for at every step."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from scs_supcon import SCSSupCon
from scs_supcon.kernels import Pairs


def reference(similarities: list[tuple[float, bool]], t: float) -> float:
    """Return b with mean σ(t r − b) = share of positive pairs, by bisection; 0 < share < 1."""
    pairs = len(similarities)
    share = min(max(sum(same for _, same in similarities), 0.5), pairs - 0.5) / pairs
    low, high = -1e4, 1e4
    for _ in range(200):
        b = (low + high) / 2
        expected_positives = math.fsum(
            1 / (1 + math.exp(min(b - t * r, 700))) for r, _ in similarities
        )
        low, high = (b, high) if expected_positives / pairs > share else (low, b)
    return low


def similarities(
    z: Tensor, labels: Tensor, include_self: bool = True, refs: Any = None
) -> list[tuple[float, bool]]:
    """Return (similarity, whether positive) of every pair, by loops over unit vectors."""
    other, other_labels = (z, labels) if refs is None else refs
    rows, columns = (
        [[x / math.hypot(*row) for x in row] for row in side.tolist()] for side in (z, other)
    )
    return [
        (math.fsum(x * y for x, y in zip(p, q, strict=True)), bool(labels[u] == other_labels[v]))
        for u, p in enumerate(rows)
        for v, q in enumerate(columns)
        if include_self or refs is not None or u != v
    ]


@st.composite
def batches(draw: st.DrawFn) -> tuple[Tensor, Tensor]:
    n = draw(st.integers(2, 9))
    mix = draw(st.sampled_from(["any", "one", "different"]))
    labels = {
        "any": draw(st.lists(st.integers(0, 2), min_size=n, max_size=n)),
        "one": [7] * n,
        "different": list(range(n)),
    }[mix]
    source = torch.Generator().manual_seed(draw(st.integers(0, 1 << 20)))
    return torch.randn(n, 3, generator=source, dtype=torch.float64), torch.tensor(labels)


@given(batches(), st.sampled_from([0.1, 1.0, 10.0]), st.booleans())
def test_b_of_a_batch_equals_the_reference(
    batch: tuple[Tensor, Tensor], t: float, include_self: bool
) -> None:
    z, labels = batch
    loss = SCSSupCon(3, t0=t, include_self=include_self)
    loss(z, labels)
    expected = reference(similarities(z, labels, include_self), t)
    assert loss.b.item() == pytest.approx(expected, abs=1e-5)


@given(batches(), batches())
def test_b_with_references_equals_the_reference(
    batch: tuple[Tensor, Tensor], refs: tuple[Tensor, Tensor]
) -> None:
    loss = SCSSupCon(3)
    loss(*batch, references=refs[0], reference_labels=refs[1])
    expected = reference(similarities(*batch, refs=refs), 10.0)
    assert loss.b.item() == pytest.approx(expected, abs=1e-5)


@given(batches(), st.integers(0, 99))
def test_b_of_listed_pairs_equals_the_reference(batch: tuple[Tensor, Tensor], seed: int) -> None:
    z, labels = batch
    u, v = torch.randint(0, len(z), (2, 12), generator=torch.Generator().manual_seed(seed))
    same = labels[u] == labels[v]
    loss = SCSSupCon(3)
    pairs = Pairs.listed(
        len(z),
        (u[same], v[same]),
        (u[~same], v[~same]),
        references=z.clone(),
        divide_by="positives",
    )
    loss.terms(z, pairs)
    all_pairs = similarities(z, labels)
    different = {int(i) * len(z) + int(j) for i, j in zip(u, v, strict=True)}
    listed = [all_pairs[k] for k in sorted(different)]  # a pair counts once
    assert loss.b.item() == pytest.approx(reference(listed, 10.0), abs=1e-5)


def random_batch(n: int = 12, classes: int = 3) -> tuple[Tensor, Tensor]:
    source = torch.Generator().manual_seed(n)
    z = torch.randn(n, 6, generator=source, dtype=torch.float64)
    return z, torch.randint(0, classes, (n,), generator=source)


def test_gold_values() -> None:
    """T4 and T5 at t = 10."""
    loss = SCSSupCon(2)
    four = [[1.0, 0], [0.6, 0.8], [0, 1], [-0.8, 0.6]]
    five = [[1.0, 0], [0.6, 0.8], [0.8, 0.6], [0, 1], [-0.8, 0.6]]
    loss(torch.tensor(four, dtype=torch.float64), torch.tensor([0, 0, 1, 1]))
    assert loss.b.item() == pytest.approx(5.7617734807, abs=1e-9)
    assert loss.boundary.item() == pytest.approx(0.57617734807, abs=1e-9)
    loss(torch.tensor(five, dtype=torch.float64), torch.tensor([0, 0, 0, 1, 1]))
    assert loss.b.item() == pytest.approx(6.1850708425, abs=1e-9)


@pytest.mark.parametrize("pairs", ["all", "balanced", "positives"])
@pytest.mark.parametrize("include_self", [True, False])
def test_no_gradient_flows_through_the_solved_b(pairs: Any, include_self: bool) -> None:
    """Value and gradient equal those of the loss with b fixed at the solved value."""
    z, labels = random_batch()
    solved = SCSSupCon(4, pairs=pairs, include_self=include_self)
    assert not [p for p in solved.parameters() if p.requires_grad]
    first = z.clone().requires_grad_()
    value = solved(first, labels)
    value.backward()
    fixed = SCSSupCon(4, bias="fixed", b0=solved.b.item(), pairs=pairs, include_self=include_self)
    second = z.clone().requires_grad_()
    again = fixed(second, labels)
    again.backward()
    assert torch.equal(value, again)
    assert first.grad is not None and second.grad is not None
    assert torch.equal(first.grad, second.grad)


def test_a_sample_of_pairs_sets_b_for_more_than_1024_rows() -> None:
    """Within 3% of the share of positive pairs; the loss itself is over all pairs."""
    z, labels = random_batch(1500, 40)
    loss = SCSSupCon(6)
    value = loss(z, labels)
    unit = torch.nn.functional.normalize(z)
    same = labels[:, None] == labels
    a = 10 * unit @ unit.T - loss.b
    assert a.sigmoid().mean().item() == pytest.approx(same.double().mean().item(), rel=0.03)
    costs = torch.nn.functional.softplus(torch.where(same, -a, a), threshold=40)
    torch.testing.assert_close(value, costs.sum() / same.sum(), rtol=1e-10, atol=0)


def test_the_last_solved_b_is_kept_after_training() -> None:
    loss = SCSSupCon()
    loss(*random_batch())
    solved = loss.b.clone()
    loss.eval()
    value = loss(*random_batch(20))
    assert torch.equal(loss.b, solved)
    assert loss.scalars()["boundary"] == pytest.approx(solved.item() / 10)
    again = loss.train()(*random_batch(20))  # depends only on the batch
    torch.testing.assert_close(again, value, rtol=1e-12, atol=0)
    assert not torch.equal(loss.b, solved)
    assert torch.equal(SCSSupCon().eval()(*random_batch()), SCSSupCon()(*random_batch()))


@given(batches(), st.lists(batches(), max_size=3), st.floats(-50, 50))
def test_b_does_not_depend_on_earlier_calls(
    batch: tuple[Tensor, Tensor], history: list[tuple[Tensor, Tensor]], start: float
) -> None:
    """Earlier values of b are guesses of the solver; they change the time, not the result."""
    fresh, used = SCSSupCon(3), SCSSupCon(3)
    torch.nn.init.constant_(used.b, start)
    for earlier in history:
        used(*earlier)
    for loss in (fresh, used):
        loss(*batch)
    assert used.b.item() == pytest.approx(fresh.b.item(), abs=1e-7)


def test_an_evaluation_between_two_steps_changes_nothing() -> None:
    losses = [SCSSupCon(), SCSSupCon()]
    for loss in losses:
        loss(*random_batch())
    losses[1].eval()(*random_batch(30))
    values = [loss.train()(*random_batch(20)) for loss in losses]
    assert torch.equal(*values)
    assert torch.equal(losses[0].b, losses[1].b)


def test_a_loss_restored_from_its_state_continues_with_the_same_bytes() -> None:
    loss, restored = SCSSupCon(), SCSSupCon()
    loss(*random_batch())
    restored.load_state_dict(loss.state_dict())
    assert torch.equal(restored(*random_batch(20)), loss(*random_batch(20)))
    assert torch.equal(restored.b, loss.b)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("labels", [[0] * 6, [0, 1, 2, 3, 4, 5], [0, 0, 0, 0, 0, 1]])
def test_batches_without_one_kind_of_pair_have_a_finite_boundary(
    labels: list[int], dtype: torch.dtype
) -> None:
    z = torch.randn(6, 4, dtype=dtype, requires_grad=True)
    for include_self in (True, False):
        loss = SCSSupCon(include_self=include_self)
        value = loss(z, torch.tensor(labels))
        value.backward()
        assert value.isfinite() and loss.b.isfinite()
        assert z.grad is not None and z.grad.isfinite().all()
