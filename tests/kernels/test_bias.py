import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from pair_batches import (
    LargestTensor,
    Rows,
    Vectors,
    by_label,
    labelled_rows,
    same_width,
    scalar,
)
from scs_supcon.kernels import Pairs, Sides, sigmoid_pairs, solve_bias
from scs_supcon.kernels.bias import (
    solve_bias_of_rows,
    solve_bias_on_device,
    solve_sorted_bias,
)


def solved(x: Tensor, labels: Tensor, t: float, *, include_self: bool = True, **to: Any) -> float:
    """Return b; the solver for GPUs, which runs without reading a number, gives the same."""
    sides, pairs = by_label(x, labels, **to)
    arguments = *pairs.layout.arrange(*sides), pairs.layout, scalar(t)
    b = float(solve_sorted_bias(*arguments, include_self=include_self))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("scs_supcon.kernels.bias.reads_are_free", lambda _: False)
        on_device = float(solve_sorted_bias(*arguments, include_self=include_self))
    assert on_device == pytest.approx(b, abs=2e-5 if x.dtype == torch.float64 else 1e-3)
    return b


def reference(
    q: Vectors,
    q_labels: list[int],
    t: float,
    b: float,
    include_self: bool = True,
    r: Vectors | None = None,
    r_labels: list[int] | None = None,
    with_rows: bool = False,
) -> tuple[float, float]:
    """(mean of σ(t q_u·r_v − b) over the pairs, share of positive pairs kept off 0 and 1).

    With `with_rows`, r is joined to q.
    """
    right, right_labels = (q, q_labels) if r is None else (r, r_labels)
    assert right_labels is not None
    if with_rows:
        right, right_labels = q + right, q_labels + right_labels
    pairs, positive, total = 0, 0, 0.0
    for u in range(len(q)):
        for v in range(len(right)):
            if (r is None or with_rows) and u == v and not include_self:
                continue
            same = q_labels[u] == right_labels[v]
            similarity = math.fsum(x * y for x, y in zip(q[u], right[v], strict=True))
            a = t * similarity - b
            total += 1 / (1 + math.exp(-a)) if a > 0 else math.exp(a) / (1 + math.exp(a))
            pairs += 1
            positive += same
    return total / pairs, min(max(positive, 0.5), pairs - 0.5) / pairs


temperatures = st.sampled_from([0.1, 1.0, 10.0, 100.0])


@given(labelled_rows(2, 14), temperatures, st.booleans())
def test_the_mean_probability_is_the_share_of_positive_pairs(
    batch: Rows, t: float, include_self: bool
) -> None:
    x, labels = batch
    b = solved(x, labels, t, include_self=include_self)
    mean, share = reference(x.tolist(), labels.tolist(), t, b, include_self)
    assert abs(mean - share) <= 1e-6


@given(labelled_rows(2, 14), labelled_rows(2, 14), st.booleans())
def test_rows_and_references_together(batch: Rows, others: Rows, include_self: bool) -> None:
    q, r = same_width(batch[0], others[0])
    options = {"include_self": include_self, "with_rows": True}
    b = solved(q, batch[1], 10.0, references=r, reference_labels=others[1], **options)
    mean, share = reference(
        q.tolist(),
        batch[1].tolist(),
        10.0,
        b,
        r=r.tolist(),
        r_labels=others[1].tolist(),
        **options,
    )
    assert abs(mean - share) <= 1e-6


@given(labelled_rows(2, 14), labelled_rows(2, 14), temperatures)
def test_references(batch: Rows, others: Rows, t: float) -> None:
    q, r = same_width(batch[0], others[0])
    b = solved(q, batch[1], t, references=r, reference_labels=others[1])
    mean, share = reference(
        q.tolist(), batch[1].tolist(), t, b, True, r.tolist(), others[1].tolist()
    )
    assert abs(mean - share) <= 1e-6


@given(labelled_rows(2, 14), temperatures, st.integers(0, 99))
def test_listed_pairs(batch: Rows, t: float, seed: int) -> None:
    x, labels = batch
    source = torch.Generator().manual_seed(seed)
    u, v = torch.randint(0, len(x), (2, 20), generator=source)
    same = labels[u] == labels[v]
    logits = t * (x[u] * x[v]).sum(1)
    b = solve_bias(logits, int(same.sum()))
    probabilities = [1 / (1 + math.exp(min(b - a, 700))) for a in logits.tolist()]
    share = min(max(sum(same.tolist()), 0.5), 19.5) / 20
    assert abs(sum(probabilities) / 20 - share) <= 1e-6


def blobs(n: int, classes: int, seed: int = 4) -> Rows:
    """Unit rows around one direction per class."""
    source = torch.Generator().manual_seed(seed)
    directions = torch.randn(classes, 16, generator=source, dtype=torch.float64)
    labels = torch.randint(0, classes, (n,), generator=source)
    x = directions[labels] + torch.randn(n, 16, generator=source, dtype=torch.float64)
    return torch.nn.functional.normalize(x), labels


@pytest.mark.parametrize("t", [1.0, 10.0, 100.0])
@pytest.mark.parametrize("n", [200, 700, 1024])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_up_to_1024_rows_the_solution_is_exact(n: int, t: float, dtype: torch.dtype) -> None:
    x, labels = blobs(n, 20)
    b = solved(x.to(dtype), labels, t)
    same = labels[:, None] == labels
    mean = torch.sigmoid(t * x @ x.T - b).mean()
    assert abs(float(mean - same.double().mean())) <= 1e-6


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_tiny_share_is_met_with_a_small_relative_error(dtype: torch.dtype) -> None:
    """All different, no self pairs: half a pair of half a million counts as positive."""
    x, _ = blobs(700, 20)
    b = solved(x.to(dtype), torch.arange(700), 10.0, include_self=False)
    mean = torch.sigmoid(10 * x @ x.T - b).fill_diagonal_(0).sum() / (700 * 699)
    assert mean.item() == pytest.approx(0.5 / (700 * 699), rel=1e-4)


@pytest.mark.parametrize("include_self", [True, False])
@pytest.mark.parametrize(
    ("n", "classes"), [(1025, 37), (1500, 40), (4096, 37), (3000, 1500), (3000, 1)]
)
def test_more_rows_are_sampled_to_within_three_per_cent(
    n: int, classes: int, include_self: bool
) -> None:
    x, labels = blobs(n, classes)
    b = solved(x, labels, 10.0, include_self=include_self)
    same = (labels[:, None] == labels).double()
    probability = torch.sigmoid(10 * x @ x.T - b)
    if not include_self:
        same.fill_diagonal_(0)
        probability.fill_diagonal_(0)
    assert probability.sum().item() == pytest.approx(same.sum().item(), rel=0.03)


def test_many_references_are_sampled_to_within_three_per_cent() -> None:
    (q, labels), (r, r_labels) = blobs(1300, 12), blobs(1100, 12, seed=4)
    b = solved(q, labels, 10.0, references=r, reference_labels=r_labels)
    share = (labels[:, None] == r_labels).double().mean().item()
    assert torch.sigmoid(10 * q @ r.T - b).mean().item() == pytest.approx(share, rel=0.03)


@pytest.mark.parametrize("include_self", [True, False])
def test_many_rows_and_references_are_sampled_to_within_three_per_cent(include_self: bool) -> None:
    (q, labels), (r, r_labels) = blobs(300, 12), blobs(5000, 12, seed=4)
    options = {"references": r, "reference_labels": r_labels, "with_rows": True}
    b = solved(q, labels, 10.0, include_self=include_self, **options)
    same = (labels[:, None] == torch.cat([labels, r_labels])).double()
    probability = torch.sigmoid(10 * q @ torch.cat([q, r]).T - b)
    if not include_self:
        same.fill_diagonal_(0)
        probability.fill_diagonal_(0)
    assert probability.sum().item() == pytest.approx(same.sum().item(), rel=0.03)


def test_a_weighted_mean() -> None:
    logits = torch.tensor([3.0, 0.0, -2.0], dtype=torch.float64)
    weights = torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64)
    b = solve_bias(logits, 10, 40, weights)
    assert float(torch.sigmoid(logits - b) @ weights) == pytest.approx(0.25, abs=1e-9)


def test_gold_values() -> None:
    """At t = 10, pairs of a row with itself included."""
    t4 = torch.tensor([[1, 0], [0.6, 0.8], [0, 1], [-0.8, 0.6]], dtype=torch.float64)
    t5 = torch.tensor([[1, 0], [0.6, 0.8], [0.8, 0.6], [0, 1], [-0.8, 0.6]], dtype=torch.float64)
    four = solved(t4, torch.tensor([0, 0, 1, 1]), 10.0)
    five = solved(t5, torch.tensor([0, 0, 0, 1, 1]), 10.0)
    assert four == pytest.approx(5.7617734807, abs=1e-9)
    assert five == pytest.approx(6.1850708425, abs=1e-9)


@pytest.mark.parametrize("include_self", [True, False])
@pytest.mark.parametrize("n", [0, 1])
def test_without_pairs_the_bias_is_a_finite_number(n: int, include_self: bool) -> None:
    x, labels = torch.ones(n, 2), torch.zeros(n, dtype=torch.long)
    assert math.isfinite(solved(x, labels, 10.0, include_self=include_self))
    none = {"references": torch.ones(0, 2), "reference_labels": torch.zeros(0, dtype=torch.long)}
    assert math.isfinite(solved(x, labels, 10.0, **none))
    assert solve_bias(torch.zeros(0), 0) == 0


def test_memory_does_not_grow_with_the_batch() -> None:
    x, labels = blobs(5000, 10)
    with LargestTensor() as largest:
        solved(x, labels, 10.0)
    assert largest.numel <= 1024 * 1024


# A start, and the solver for GPUs


STARTS = [0.0, 1.0, -1.0, 30.0, -30.0, 1e3, -1e3, 1e30, math.inf, -math.inf, math.nan]


def check_starts(logits: Tensor, positive: float, weights: Tensor | None = None) -> None:
    """Check that the solution does not depend on the start; it is exact to about 1e-6."""
    total = logits.numel()
    cold = solve_bias(logits, positive, total, weights)
    tolerance = 2e-6 if logits.dtype == torch.float64 else 2e-5 * max(abs(cold), 1)
    for start in (*STARTS, cold, -cold, cold + 1e-3, cold + 1, cold - 5):
        warm = solve_bias(logits, positive, total, weights, start)
        assert warm == pytest.approx(cold, abs=tolerance), start


@given(labelled_rows(2, 14), temperatures, st.integers(0, 200))
def test_the_start_does_not_change_the_solution_of_a_tiny_batch(
    batch: Rows, t: float, positive: int
) -> None:
    logits = t * batch[0] @ batch[0].T
    number = logits.numel()
    check_starts(logits, min(positive, number))
    weights = torch.linspace(0, 1, number, dtype=torch.float64)
    check_starts(logits, min(positive, number), weights / weights.sum())


SHARES = [0.0, 1e-5, 0.01, 0.3, 0.5, 0.99, 1 - 1e-5, 1.0]


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("n", [3, 100, 700])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_start_does_not_change_the_solution(n: int, share: float, dtype: torch.dtype) -> None:
    x = blobs(n, 20)[0]
    check_starts((10 * x @ x.T).to(dtype), share * n * n)


class Passes(TorchDispatchMode):
    """Count the passes over the logits."""

    number = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.number += func.overloadpacket is torch.ops.aten.sigmoid_
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("share", SHARES)
def test_the_solution_as_the_start_needs_one_pass(share: float) -> None:
    x = blobs(100, 20)[0]
    logits = 10 * x @ x.T
    with Passes() as cold:
        b = solve_bias(logits, share * 10_000)
    with Passes() as warm:
        solve_bias(logits, share * 10_000, start=b)
    assert warm.number == 1 < cold.number


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("n", [3, 100, 700])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("t", [0.1, 10.0, 100.0])
def test_the_solver_for_gpus_gives_the_same(n: int, share: float, weighted: bool, t: float) -> None:
    x = blobs(n, 20)[0]
    logits, weights = t * x @ x.T, None
    if weighted:
        weights = torch.rand(n * n, dtype=torch.float64)
        weights[::7] = 0
        weights /= weights.sum()
    number = scalar(n * n)
    on_device = solve_bias_on_device(logits, share * number, number, weights)
    expected = solve_bias(logits, share * n * n, n * n, weights)
    assert on_device.item() == pytest.approx(expected, abs=2e-5)


@pytest.mark.parametrize("kind", ["whole", "tiles", "sample", "bands", "heads"])
@pytest.mark.parametrize("start", [0.0, 1e3, -1e3, math.nan])
def test_the_start_of_a_loss_does_not_change_it(kind: str, start: float) -> None:
    n = {"tiles": 600, "sample": 1100}.get(kind, 90)
    x, labels = blobs(n, 7)
    weights = torch.linspace(0, 2, n, dtype=torch.float64) if kind == "bands" else None
    rows = x.view(2, n // 2, -1) if kind == "heads" else x
    labels = labels[: n // 2] if kind == "heads" else labels
    pairs = Pairs.of(labels, row_weights=weights)
    cold, cold_b = sigmoid_pairs(Sides(rows), pairs, scalar(10.0), None)
    warm, b = sigmoid_pairs(Sides(rows), pairs, scalar(10.0), None, start=scalar(start))
    torch.testing.assert_close(b, cold_b, rtol=0, atol=2e-6)
    torch.testing.assert_close(warm, cold, rtol=1e-9, atol=0)


@pytest.mark.parametrize("kept", [[1, 3], [1, 3, 39_999], []])
def test_few_pairs_with_a_weight(kept: list[int]) -> None:
    """The pairs that give the first guess can all have weight 0."""
    source = torch.Generator().manual_seed(1)
    logits = torch.randn(40_000, generator=source, dtype=torch.float64)
    weights = torch.zeros(40_000, dtype=torch.float64)
    weights[kept] = 1 / max(len(kept), 1)
    b = solve_bias(logits, 1, 3, weights)
    assert math.isfinite(b)
    if kept:
        assert float(torch.sigmoid(logits - b) @ weights) == pytest.approx(1 / 3, abs=1e-6)


@pytest.mark.parametrize("size", [1e3, 1e8, 1e13, 1e16, 1e30])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_huge_logits(size: float, dtype: torch.dtype) -> None:
    """Any b between the two logits solves this; b has to be found in finite time."""
    logits = torch.tensor([-size, size], dtype=dtype)
    for start in (None, 0.0, 3 * size):
        b = solve_bias(logits, 1, 2, start=start)
        assert -size <= b <= size


@pytest.mark.parametrize("n", [60, 1200])
def test_the_bias_of_rows_leaves_out_pairs_of_a_row_with_itself(n: int) -> None:
    x, labels = blobs(n, 7)
    order = torch.randperm(n)
    b = solve_bias_of_rows(x[order], labels[order], 10.0)
    assert b == pytest.approx(solved(x, labels, 10.0, include_self=False), abs=0.05)
    same = (labels[:, None] == labels).double().fill_diagonal_(0)
    mean = torch.sigmoid(10 * x @ x.T - b).fill_diagonal_(0)
    assert mean.sum().item() == pytest.approx(same.sum().item(), rel=1e-6 if n < 1000 else 0.03)
