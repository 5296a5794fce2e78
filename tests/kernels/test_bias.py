import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from scs_supcon.kernels import Rows, solve_bias, solve_listed_bias, sort_rows
from sorted_batches import Largest, sorted_batches

Vectors = list[list[float]]


def reference(
    q: Vectors,
    q_labels: list[int],
    t: float,
    b: float,
    include_self: bool = True,
    r: Vectors | None = None,
    r_labels: list[int] | None = None,
) -> tuple[float, float]:
    """(mean of σ(t q_u·r_v − b) over the pairs, share of positive pairs kept off 0 and 1)."""
    right, right_labels = (q, q_labels) if r is None else (r, r_labels)
    assert right_labels is not None
    pairs, positive, total = 0, 0, 0.0
    for u in range(len(q)):
        for v in range(len(right)):
            if r is None and u == v and not include_self:
                continue
            a = t * math.fsum(x * y for x, y in zip(q[u], right[v], strict=True)) - b
            total += 1 / (1 + math.exp(-a)) if a > 0 else math.exp(a) / (1 + math.exp(a))
            pairs += 1
            positive += q_labels[u] == right_labels[v]
    return total / pairs, min(max(positive, 0.5), pairs - 0.5) / pairs


temperatures = st.sampled_from([0.1, 1.0, 10.0, 100.0])


@given(sorted_batches(2, 14), temperatures, st.booleans())
def test_the_mean_judgement_is_the_share_of_positive_pairs(
    batch: tuple[Tensor, Rows], t: float, include_self: bool
) -> None:
    x, rows = batch
    b = solve_bias(x, rows, t, include_self=include_self)
    mean, share = reference(x.tolist(), rows.labels.tolist(), t, b, include_self)
    assert abs(mean - share) <= 1e-6


@given(sorted_batches(2, 14), sorted_batches(2, 14), temperatures)
def test_references_apart(
    batch: tuple[Tensor, Rows], others: tuple[Tensor, Rows], t: float
) -> None:
    (q, rows), (r, columns) = batch, others
    width = min(q.shape[1], r.shape[1])
    q, r = q[:, :width], r[:, :width]
    b = solve_bias(q, rows, t, references=r, columns=columns)
    mean, share = reference(
        q.tolist(), rows.labels.tolist(), t, b, True, r.tolist(), columns.labels.tolist()
    )
    assert abs(mean - share) <= 1e-6


@given(sorted_batches(2, 14), temperatures, st.integers(0, 99))
def test_listed_pairs(batch: tuple[Tensor, Rows], t: float, seed: int) -> None:
    x, rows = batch
    source = torch.Generator().manual_seed(seed)
    u, v = torch.randint(0, len(x), (2, 20), generator=source)
    same = rows.labels[u] == rows.labels[v]
    logits = t * (x[u] * x[v]).sum(1)
    b = solve_listed_bias(logits, same)
    judged = [1 / (1 + math.exp(min(b - a, 700))) for a in logits.tolist()]
    share = min(max(sum(same.tolist()), 0.5), 19.5) / 20
    assert abs(sum(judged) / 20 - share) <= 1e-6


@pytest.mark.parametrize("t", [1.0, 10.0, 100.0])
@pytest.mark.parametrize("n", [200, 700, 1024])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_up_to_1024_rows_every_pair_speaks(n: int, t: float, dtype: torch.dtype) -> None:
    x, rows = centred(n, 20)
    b = solve_bias(x.to(dtype), rows, t)
    same = rows.labels[:, None] == rows.labels[None, :]
    mean = torch.sigmoid(t * x @ x.T - b).mean()
    assert abs(float(mean - same.double().mean())) <= 1e-6


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_share_of_almost_nothing_is_met_in_proportion(dtype: torch.dtype) -> None:
    """All different, no self pairs: half a pair of half a million counts as positive."""
    x, _ = centred(700, 20)
    b = solve_bias(x.to(dtype), Rows(torch.arange(700)), 10.0, include_self=False)
    judged = torch.sigmoid(10 * x @ x.T - b).fill_diagonal_(0).sum() / (700 * 699)
    assert judged.item() == pytest.approx(0.5 / (700 * 699), rel=1e-4)


@pytest.mark.parametrize("n", [1025, 1500, 4096])
def test_beyond_that_an_evenly_spaced_subset_of_the_sorted_rows_speaks(n: int) -> None:
    x, rows = centred(n, 37)
    picked = torch.tensor([k * n // 1024 for k in range(1024)])
    some, labels = x[picked], rows.labels[picked]
    share = (labels[:, None] == labels[None, :]).double().mean()
    for include_self in (True, False):
        b = solve_bias(x, rows, 10.0, include_self=include_self)
        assert b == solve_bias(some, Rows(labels), 10.0, include_self=include_self)
    mean = torch.sigmoid(10 * some @ some.T - solve_bias(x, rows, 10.0)).mean()
    assert abs(float(mean - share)) <= 1e-6


def test_a_subset_of_each_side_speaks_for_queries_and_references() -> None:
    (q, rows), (r, columns) = centred(1300, 12), centred(1100, 12, seed=9)
    some = [torch.tensor([k * n // 1024 for k in range(1024)]) for n in (1300, 1100)]
    b = solve_bias(q, rows, 10.0, references=r, columns=columns)
    q, q_labels, r, r_labels = q[some[0]], rows.labels[some[0]], r[some[1]], columns.labels[some[1]]
    share = (q_labels[:, None] == r_labels[None, :]).double().mean()
    assert abs(float(torch.sigmoid(10 * q @ r.T - b).mean() - share)) <= 1e-6


def centred(n: int, classes: int, seed: int = 4) -> tuple[Tensor, Rows]:
    """Unit rows around their class's own direction."""
    source = torch.Generator().manual_seed(seed)
    directions = torch.randn(classes, 16, generator=source, dtype=torch.float64)
    labels = torch.randint(0, classes, (n,), generator=source)
    x = directions[labels] + torch.randn(n, 16, generator=source, dtype=torch.float64)
    return sort_rows(torch.nn.functional.normalize(x), labels)


def test_gold_values() -> None:
    """At t = 10, pairs of a row with itself included."""
    t4 = torch.tensor([[1, 0], [0.6, 0.8], [0, 1], [-0.8, 0.6]], dtype=torch.float64)
    t5 = torch.tensor([[1, 0], [0.6, 0.8], [0.8, 0.6], [0, 1], [-0.8, 0.6]], dtype=torch.float64)
    four = solve_bias(t4, Rows(torch.tensor([0, 0, 1, 1])), 10.0)
    five = solve_bias(t5, Rows(torch.tensor([0, 0, 0, 1, 1])), 10.0)
    assert four == pytest.approx(5.7617734807, abs=1e-9)
    assert five == pytest.approx(6.1850708425, abs=1e-9)


@pytest.mark.parametrize("include_self", [True, False])
@pytest.mark.parametrize("n", [0, 1])
def test_nothing_to_solve_still_gives_a_number(n: int, include_self: bool) -> None:
    x, rows = torch.ones(n, 2), Rows(torch.zeros(n, dtype=torch.long))
    assert math.isfinite(solve_bias(x, rows, 10.0, include_self=include_self))
    none = Rows(torch.zeros(0, dtype=torch.long))
    apart = solve_bias(x, rows, 10.0, references=torch.ones(0, 2), columns=none)
    assert math.isfinite(apart)
    assert math.isfinite(solve_listed_bias(torch.zeros(0), torch.zeros(0, dtype=torch.bool)))


def test_its_memory_does_not_grow_with_the_batch() -> None:
    x, rows = centred(5000, 10)
    with Largest() as watch:
        solve_bias(x, rows, 10.0)
    assert watch.most <= 1024 * 1024
