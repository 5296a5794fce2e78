"""Pairs of every kind: the three losses against plain loops."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain
from random import Random
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from pair_batches import (
    LargestTensor,
    Rows,
    Vectors,
    check_second_derivatives,
    labelled_rows,
    scalar,
)
from scs_supcon.kernels import Pairs, Sides, mean_distance, sigmoid_pairs, softmax_pairs
from scs_supcon.kernels import distances as distances_module
from scs_supcon.kernels import pairs as pairs_module
from scs_supcon.kernels.pairs import pair_weights

CPU = torch.device("cpu")
KINDS = ["labels", "soft labels", "sets", "matrix", "mask", "listed"]
SIDES = ["rows", "references", "rows and references"]


class Case(NamedTuple):
    x: Tensor
    references: Tensor | None
    pairs: Pairs
    q: Vectors  # targets of all pairs
    w: Vectors  # weights of all pairs
    row_weights: list[float]

    @property
    def sides(self) -> Sides:
        return Sides(self.x, self.references)

    @property
    def right(self) -> Vectors:
        own = self.x.tolist() if self.pairs.contains_self else []
        return own + ([] if self.references is None else self.references.tolist())

    def is_self(self, u: int, v: int) -> bool:
        return self.pairs.contains_self and u == v


def matrix(values: list[list[Any]], shape: tuple[int, int], dtype: Any = torch.float64) -> Tensor:
    return torch.tensor(values, dtype=dtype).reshape(shape)


def jaccard(a: list[int], b: list[int]) -> float:
    either = sum(x or y for x, y in zip(a, b, strict=True))
    return sum(x and y for x, y in zip(a, b, strict=True)) / (either or 1)


def dot(x: list[float], y: list[float]) -> float:
    return math.fsum(a * b for a, b in zip(x, y, strict=True))


def soft_label(source: Random) -> list[float]:
    """Probabilities of three classes, as MixUp makes them; some are one-hot."""
    share = source.choice([1.0, source.random()])
    p = [0.0, 0.0, 0.0]
    p[source.randrange(3)] += share
    p[source.randrange(3)] += 1 - share
    return p


DRAWN: dict[str, Callable[[Random], Any]] = {
    "labels": lambda source: source.randrange(3),
    "soft labels": soft_label,
    "sets": lambda source: [source.randrange(2) for _ in range(3)],
}
TARGETS: dict[str, Callable[[Any, Any], float]] = {
    "labels": lambda a, b: float(a == b),
    "soft labels": dot,
    "sets": jaccard,
}
MAKERS: dict[str, tuple[Callable[..., Pairs], Any]] = {
    "labels": (Pairs.of, torch.long),
    "soft labels": (Pairs.of_soft, torch.float64),
    "sets": (Pairs.of_sets, torch.long),
}


def make_pairs(
    kind: str, n: int, m: int, source: Random, options: dict[str, Any]
) -> tuple[Pairs, Vectors, Vectors]:
    """Return pairs of a kind, their targets, and 1 for each pair that counts."""
    own = options["references"] is None or options["with_rows"]
    columns = n * own + m
    shape = n, columns
    count = [[1.0] * columns for _ in range(n)]
    if kind in MAKERS:
        left, others = ([DRAWN[kind](source) for _ in range(k)] for k in (n, m))
        right = left * own + others
        q = [[TARGETS[kind](a, b) for b in right] for a in left]
        make, dtype = MAKERS[kind]
        size = () if kind == "labels" else (3,)
        rows, other_rows = (torch.tensor(x, dtype=dtype).reshape(-1, *size) for x in (left, others))
        reference_labels = None if options["references"] is None else other_rows
        return make(rows, reference_labels, **options), q, count
    if kind in ("matrix", "mask"):
        draw = source.random if kind == "matrix" else lambda: float(source.randrange(2))
        q = [[draw() for _ in range(columns)] for _ in range(n)]
        dtype = torch.bool if kind == "mask" else torch.float64
        return Pairs.of_matrix(matrix(q, shape, dtype), **options), q, count
    lists = [
        [(source.randrange(n), source.randrange(columns)) for _ in range(k)] if n * columns else []
        for k in (5, 8)
    ]
    q = [[float((u, v) in lists[0]) for v in range(columns)] for u in range(n)]
    listed = [[float((u, v) in lists[0] + lists[1]) for v in range(columns)] for u in range(n)]
    for u in range(n if own else 0):
        q[u][u] = listed[u][u] = 1.0
    positives, negatives = (torch.tensor(x).long().reshape(-1, 2).unbind(1) for x in lists)
    return Pairs.listed(n, positives, negatives, **options), q, listed


@st.composite
def cases(draw: st.DrawFn, least: int = 0, kinds: Any = KINDS) -> Case:
    """Pairs of any kind, with any settings."""
    kind, sides = draw(st.sampled_from(kinds)), draw(st.sampled_from(SIDES))
    n = draw(st.integers(least, 6))
    m = 0 if sides == "rows" else draw(st.integers(least, 4))
    source = Random(draw(st.integers(0, 1 << 20)))
    rows = [[source.gauss(0, 1) for _ in range(2)] for _ in range(n + m)]
    x = matrix(rows[:n], (n, 2))
    references = None if sides == "rows" else matrix(rows[n:], (m, 2))
    options = {
        "references": references,
        "with_rows": sides == "rows and references",
        "self_weight": draw(st.sampled_from([1.0, 0.0, 0.3])),
        "divide_by": draw(st.sampled_from(["all", "balanced", "positives"])),
        "anchors": draw(st.sampled_from(["all", "with positives"])),
        "per_row": draw(st.booleans()),
    }
    pairs, q, w = make_pairs(kind, n, m, source, options)
    shape = pairs.shape
    dtype = draw(st.sampled_from([None, torch.bool, torch.float64]))
    if dtype is not None and kind != "listed":
        w = [[source.choice([0.0, 1.0, 1.0]) for _ in range(shape[1])] for _ in range(n)]
        if dtype == torch.float64:
            w = [[value * source.random() for value in row] for row in w]
        factors = matrix(w, shape, dtype)
        pairs.weight = lambda part: factors[part]
    row_weights = [1.0] * n
    if draw(st.booleans()):
        row_weights = [source.choice([0.0, 1.0, source.random()]) for _ in range(n)]
        pairs.row_weights = torch.tensor(row_weights, dtype=torch.float64)
    case = Case(x, references, pairs, q, w, row_weights)
    for u in range(n):
        for v in range(shape[1]):
            inside = pairs.contains_self and v < n
            w[u][v] *= row_weights[u] * (row_weights[v] if inside else 1)
            w[u][v] *= pairs.self_weight if case.is_self(u, v) else 1
    return case


# Values of each row, whose mean is the loss


def totals(case: Case) -> tuple[float, float]:
    w, q = list(chain(*case.w)), list(chain(*case.q))
    return math.fsum(w), math.fsum(x * y for x, y in zip(w, q, strict=True))


def softplus(x: float) -> float:
    return max(x, 0) + math.log1p(math.exp(-abs(x)))


def sigmoid_reference(case: Case, t: float = 1.3, b: float = 0.4) -> list[float]:
    total, positive = totals(case)
    by = case.pairs.divide_by
    attract = repel = 1 / ((total if by == "all" else positive) or 1)
    if by == "balanced":
        attract, repel = 0.5 / (positive or 1), 0.5 / ((total - positive) or 1)
    values = []
    for u, row in enumerate(case.x.tolist()):
        costs = []
        for v, other in enumerate(case.right):
            a, q = t * dot(row, other) - b, case.q[u][v]
            cost = attract * q * softplus(-a) + repel * (1 - q) * softplus(a)
            costs.append(case.w[u][v] * cost)
        values.append(len(case.x) * math.fsum(costs))
    return values


def averaged(case: Case, values: list[float], shares: list[float]) -> list[float]:
    """Weight the values of rows, such that their mean is the mean over anchors."""
    counted = [
        weight
        for weight, share in zip(case.row_weights, shares, strict=True)
        if case.pairs.anchors == "all" or share
    ]
    factor = len(values) / (math.fsum(counted) or 1)
    return [weight * value * factor for weight, value in zip(case.row_weights, values, strict=True)]


def positive_shares(case: Case, u: int) -> tuple[float, dict[int, float]]:
    """Return Σ w q of a row without pairs (u, u), and the shares of the positives."""
    products = {v: w * q for v, (w, q) in enumerate(zip(case.w[u], case.q[u], strict=True))}
    products = {v: p for v, p in products.items() if p and not case.is_self(u, v)}
    total = math.fsum(products.values())
    return total, {v: p / total for v, p in products.items()}


def softmax_reference(case: Case, temperature: float = 0.5) -> list[float]:
    values, shares = [], []
    for u, row in enumerate(case.x.tolist()):
        logits = {
            v: dot(row, other) / temperature
            for v, other in enumerate(case.right)
            if case.w[u][v] and not case.is_self(u, v)
        }
        total, share = positive_shares(case, u)
        value = 0.0
        if share:
            log_z = math.log(math.fsum(math.exp(x) for x in logits.values()))
            value = math.fsum(p * (log_z - logits[v]) for v, p in share.items())
        values.append(value)
        shares.append(total)
    return averaged(case, values, shares)


def distance_reference(case: Case) -> list[float]:
    values, shares = [], []
    for u, row in enumerate(case.x.tolist()):
        total, share = positive_shares(case, u)
        values.append(math.fsum(p * math.dist(row, case.right[v]) for v, p in share.items()))
        shares.append(total)
    return averaged(case, values, shares)


def sigmoid(c: Sides, pairs: Pairs, t: float | Tensor = 1.3, b: float | Tensor = 0.4) -> Tensor:
    t, b = (x if isinstance(x, Tensor) else scalar(x) for x in (t, b))
    return sigmoid_pairs(c, pairs, t, b)[0]


def softmax(c: Sides, pairs: Pairs) -> Tensor:
    return softmax_pairs(c, pairs, 0.5)


LOSSES: dict[str, tuple[Callable[..., Tensor], Callable[[Case], list[float]]]] = {
    "sigmoid": (sigmoid, sigmoid_reference),
    "softmax": (softmax, softmax_reference),
    "distance": (mean_distance, distance_reference),
}
each_loss = pytest.mark.parametrize("name", LOSSES)


@each_loss
@settings(max_examples=200)
@given(case=cases())
def test_values(name: str, case: Case) -> None:
    compute, reference = LOSSES[name]
    value, expected = compute(case.sides, case.pairs), reference(case)
    if case.pairs.per_row:
        assert value.tolist() == pytest.approx(expected, rel=1e-10, abs=1e-14)
    else:
        mean = math.fsum(expected) / max(len(expected), 1)
        assert value.item() == pytest.approx(mean, rel=1e-10, abs=1e-14)


@each_loss
@given(case=cases(least=1))
def test_gradients(name: str, case: Case) -> None:
    compute, _ = LOSSES[name]
    leaves = [case.x.requires_grad_()]
    if case.references is not None:
        leaves.append(case.references.requires_grad_())
    scalars = [scalar(1.3, True), scalar(0.4, True)] if name == "sigmoid" else []

    def loss(*inputs: Tensor) -> Tensor:
        fields = inputs[: len(leaves)]
        return compute(Sides(*fields), case.pairs, *inputs[len(leaves) :])

    assert torch.autograd.gradcheck(loss, (*leaves, *scalars))


@contextmanager
def bands_of(pairs: int) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pairs_module, "BAND", pairs)
        yield


def with_gradients(compute: Callable[..., Tensor], case: Case, *scalars: Tensor) -> list[Tensor]:
    """Return the value, and the gradients of the sum of values weighted by 1, 2, ..."""
    x = case.x.detach().clone().requires_grad_()
    leaves = [x, *scalars]
    references = case.references
    if references is not None:
        references = references.detach().clone().requires_grad_()
        leaves.append(references)
    value = compute(Sides(x, references), case.pairs, *scalars)
    weights = torch.arange(1.0, value.numel() + 1, dtype=torch.float64).view_as(value)
    return [value.detach(), *torch.autograd.grad((value * weights).sum(), leaves)]


@each_loss
@pytest.mark.parametrize("listed", [1 << 22, 0])
@given(case=cases(least=2, kinds=KINDS[1:]), band=st.integers(1, 15))
def test_several_bands_equal_one(name: str, case: Case, band: int, listed: int) -> None:
    compute, _ = LOSSES[name]
    scalars = [scalar(1.3, True), scalar(0.4, True)] if name == "sigmoid" else []
    one = with_gradients(compute, case, *scalars)
    with bands_of(band), pytest.MonkeyPatch.context() as patch:
        patch.setattr(distances_module, "LISTED_IN_BANDS", listed)
        assert len(list(case.pairs.bands())) > 1 or case.pairs.rows * case.pairs.shape[1] <= band
        several = with_gradients(compute, case, *scalars)
    for x, y in zip(one, several, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-11, atol=1e-14)


@given(st.integers(0, 30), st.integers(0, 9), st.integers(1, 40))
def test_bands_hold_every_row_once(n: int, m: int, band: int) -> None:
    pairs = Pairs(n, references=torch.zeros(m, 1))
    with bands_of(band):
        bands = list(pairs.bands())
    assert [u for part in bands for u in range(part.start, part.stop)] == list(range(n))
    assert all((part.stop - part.start) * m <= max(band, m) for part in bands)
    assert len(bands) > 0


@settings(max_examples=100)
@given(cases(), st.sampled_from([1, 7, 1 << 21]))
def test_totals_and_targets(case: Case, band: int) -> None:
    pairs, n = case.pairs, len(case.x)
    assert pairs.shape == (n, len(case.right))
    with bands_of(band):
        sums = [float(x) for x in pairs.totals(CPU)]
    assert sums == pytest.approx(totals(case), rel=1e-12, abs=1e-14)
    part = torch.arange(n).flip(0)[: n - 1]  # indices instead of a slice
    q, w = pairs.targets(part)
    shape = len(part), len(case.right)
    torch.testing.assert_close(q.double(), matrix(case.q, pairs.shape)[part], rtol=1e-12, atol=0)
    weights = torch.ones(shape, dtype=torch.float64) if w is None else w.double()
    torch.testing.assert_close(weights, matrix(case.w, pairs.shape)[part], rtol=1e-12, atol=0)


@pytest.mark.parametrize("tensors", [False, True])
@pytest.mark.parametrize(
    ("total", "positive", "divide_by", "expected"),
    [
        (10, 4, "all", (1 / 10, 1 / 10)),
        (10, 4, "positives", (1 / 4, 1 / 4)),
        (10, 4, "balanced", (1 / 8, 1 / 12)),
        (2.5, 0.5, "balanced", (1.0, 1 / 4)),
        (0, 0, "all", (1, 1)),
        (10, 0, "positives", (1, 1)),
        (10, 0, "balanced", (1 / 2, 1 / 20)),
        (10, 10, "balanced", (1 / 20, 1 / 2)),
    ],
)
def test_pair_weights(
    total: float, positive: float, divide_by: Any, expected: tuple[float, float], tensors: bool
) -> None:
    arguments = (torch.tensor(x) if tensors else x for x in (total, positive))
    assert [float(w) for w in pair_weights(*arguments, divide_by)] == pytest.approx(expected)


@given(cases(kinds=["labels"]))
def test_the_number_of_anchors(case: Case) -> None:
    pairs, n = case.pairs, len(case.x)
    anchors = [
        u
        for u in range(n)
        if pairs.anchors == "all"
        or any(q and not case.is_self(u, v) for v, q in enumerate(case.q[u]))
    ]
    assert pairs.anchor_count() == max(len(anchors), 1)


def test_listed_pairs_count_once_and_are_positive_if_they_are_in_both_lists() -> None:
    positives = torch.tensor([0, 0, 0]), torch.tensor([1, 1, 2])
    negatives = torch.tensor([0, 1, 1]), torch.tensor([1, 2, 2])
    q, w = Pairs.listed(3, positives, negatives, self_weight=0.0).targets(slice(None))
    assert w is not None
    assert q.int().tolist() == [[1, 1, 1], [0, 1, 0], [0, 0, 1]]
    assert w.int().tolist() == [[0, 1, 1], [0, 0, 1], [0, 0, 0]]


def test_two_empty_sets_are_a_negative_pair() -> None:
    q, _ = Pairs.of_sets(torch.tensor([[0, 0], [0, 0], [1, 1], [1, 0]])).targets(slice(None))
    assert q.tolist() == [[0, 0, 0, 0], [0, 0, 0, 0], [0, 0, 1, 0.5], [0, 0, 0.5, 1]]


@each_loss
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("weighted", [False, True])
def test_the_value_has_the_type_of_the_rows(name: str, kind: str, weighted: bool) -> None:
    """Targets and weights in float64 do not change it; the value agrees with float64."""
    source = Random(1)
    options = {"references": None, "with_rows": False}
    pairs, *_ = make_pairs(kind, 20, 0, source, options)
    if weighted:
        pairs.row_weights = torch.linspace(0, 1, 20, dtype=torch.float64)
    x = torch.randn(20, 2, dtype=torch.float64)
    compute, _ = LOSSES[name]
    value = compute(Sides(x.float()), pairs)
    assert value.dtype == torch.float32
    assert value.item() == pytest.approx(compute(Sides(x), pairs).item(), rel=1e-5)


@each_loss
def test_the_order_of_the_rows_does_not_matter(name: str) -> None:
    compute, _ = LOSSES[name]
    x, q, w = (torch.rand(20, k, dtype=torch.float64) for k in (3, 20, 20))
    order = torch.randperm(20)
    results = []
    for rows in (torch.arange(20), order):
        targets, weights = (y[rows][:, rows] for y in (q, w))
        pairs = Pairs.of_matrix(targets, weight=lambda part, weights=weights: weights[part])
        results.append(compute(Sides(x[rows]), pairs).item())
    assert results[0] == pytest.approx(results[1], rel=1e-12)


@each_loss
def test_rows_of_weight_0_do_not_matter(name: str) -> None:
    compute, _ = LOSSES[name]
    x = torch.randn(12, 3, dtype=torch.float64)
    labels = torch.arange(12) % 3
    weights = torch.ones(12, dtype=torch.float64)
    weights[8:] = 0
    rows = x.clone().requires_grad_()
    value = compute(Sides(rows), Pairs.of(labels, row_weights=weights))
    value.backward()
    alone = x[:8].clone().requires_grad_()
    expected = compute(Sides(alone), Pairs.of(labels[:8]))
    expected.backward()
    torch.testing.assert_close(value, expected)
    assert rows.grad is not None
    torch.testing.assert_close(rows.grad[:8], alone.grad)
    assert not rows.grad[8:].any()


@each_loss
def test_autocast_is_ignored(name: str) -> None:
    compute, _ = LOSSES[name]
    pairs, *_ = make_pairs("matrix", 9, 0, Random(1), {"references": None, "with_rows": False})
    x = torch.randn(9, 4)
    plain = compute(Sides(x), pairs)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(compute(Sides(x), pairs), plain)


@each_loss
@pytest.mark.parametrize("band", [7, 1 << 21])
def test_second_derivatives(name: str, band: int) -> None:
    compute, _ = LOSSES[name]
    pairs, *_ = make_pairs("matrix", 4, 0, Random(1), {"references": None, "with_rows": False})
    x = torch.randn(4, 2, dtype=torch.float64)
    with bands_of(band):
        check_second_derivatives(lambda x: compute(Sides(x), pairs), x)


def test_memory_is_bounded() -> None:
    """Positive pairs are listed by two indices."""
    x = torch.randn(400, 4, requires_grad=True)
    p = torch.rand(400, 5).softmax(1)
    for compute, most in ((sigmoid, 8000), (softmax, 8000), (mean_distance, 16000)):
        with bands_of(8000), pytest.MonkeyPatch.context() as patch, LargestTensor() as largest:
            patch.setattr(distances_module, "LISTED_IN_BANDS", 8000)
            compute(Sides(x), Pairs.of_soft(p)).backward()
        assert 1600 < largest.numel <= most


# The solved bias


@settings(max_examples=100)
@given(cases(least=1))
def test_the_mean_probability_is_the_mean_target(case: Case) -> None:
    _, b = sigmoid_pairs(case.sides, case.pairs, scalar(10.0), None)
    total, positive = totals(case)
    if not total:
        assert b.isfinite()
        return
    probabilities = [
        case.w[u][v] / (1 + math.exp(min(b.item() - 10 * dot(row, other), 700)))
        for u, row in enumerate(case.x.tolist())
        for v, other in enumerate(case.right)
    ]
    # The share is kept half a pair away from 0 and 1.
    number = sum(w > 0 for row in case.w for w in row)
    share = min(max(positive / total * number, 0.5), number - 0.5) / number
    assert math.fsum(probabilities) / total == pytest.approx(share, abs=2e-6)


@pytest.mark.parametrize("self_weight", [1.0, 0.0])
@pytest.mark.parametrize("sides", SIDES)
def test_the_bias_of_many_rows_is_solved_on_some_of_them(self_weight: float, sides: str) -> None:
    source = torch.Generator().manual_seed(3)
    x = F.normalize(torch.randn(1500, 8, generator=source).double())
    p = mixed(1500, 20, 3)
    references = None if sides == "rows" else x[:900].flip(0)
    pairs = Pairs.of_soft(
        p,
        None if sides == "rows" else p[:900].flip(0),
        references=references,
        with_rows=sides == "rows and references",
        self_weight=self_weight,
    )
    _, b = sigmoid_pairs(Sides(x, references), pairs, scalar(10.0), None)
    probability = torch.sigmoid(10 * x @ pairs.join(x, references).T - b)
    if pairs.contains_self and not self_weight:
        probability.fill_diagonal_(0)
    assert probability.sum().item() == pytest.approx(float(pairs.totals(CPU)[1]), rel=0.03)


def test_the_bias_of_few_listed_pairs() -> None:
    """Most pairs have weight 0."""
    x = F.normalize(torch.randn(200, 8, dtype=torch.float64))
    positives = torch.tensor([0, 3]), torch.tensor([1, 5])
    negatives = torch.tensor([0, 3, 7]), torch.tensor([9, 11, 13])
    pairs = Pairs.listed(200, positives, negatives, self_weight=0.0)
    loss, b = sigmoid_pairs(Sides(x), pairs, scalar(10.0), None)
    logits = [
        10 * dot(x[u].tolist(), x[v].tolist()) - b.item()
        for us, vs in (positives, negatives)
        for u, v in zip(us.tolist(), vs.tolist(), strict=True)
    ]
    assert sum(1 / (1 + math.exp(-a)) for a in logits) == pytest.approx(2, abs=1e-5)
    costs = [softplus(-a) for a in logits[:2]] + [softplus(a) for a in logits[2:]]
    assert loss.item() == pytest.approx(sum(costs) / 5, rel=1e-10)


# Soft labels


def mixed(n: int, classes: int, seed: int) -> Tensor:
    """Soft labels as MixUp makes them, some of them one-hot."""
    source = torch.Generator().manual_seed(seed)
    first, second = (
        F.one_hot(torch.randint(0, classes, (n,), generator=source), classes) for _ in range(2)
    )
    share = torch.rand(n, 1, generator=source, dtype=torch.float64)
    share[::3] = 1
    return share * first + (1 - share) * second


@given(
    labelled_rows(),
    st.sampled_from([0.1, 10.0, 100.0]),
    st.sampled_from([-3.0, 0.0, 50.0]),
    st.sampled_from(["all", "balanced", "positives"]),
    st.booleans(),
    st.sampled_from([1, 7, 1 << 22]),
)
def test_soft_labels_with_any_t_and_b(
    batch: Rows, t: float, b: float, divide_by: Any, include_self: bool, band: int
) -> None:
    x, labels = batch
    p = mixed(len(x), 3, int(labels.sum()) % 1000)
    pairs = Pairs.of_soft(p, self_weight=float(include_self), divide_by=divide_by)
    bias = scalar(b)
    with bands_of(band):
        loss, same_b = sigmoid_pairs(Sides(x), pairs, scalar(t), bias)
    assert same_b.item() == b
    q = [[dot(u, v) for v in p.tolist()] for u in p.tolist()]
    w = [[float(include_self or u != v) for v in range(len(x))] for u in range(len(x))]
    values = sigmoid_reference(Case(x, None, pairs, q, w, [1.0] * len(x)), t, b)
    expected = math.fsum(values) / max(len(x), 1)
    assert loss.item() == pytest.approx(expected, rel=1e-10, abs=1e-300)


@given(
    labelled_rows(1, 40),
    st.sampled_from(["all", "balanced", "positives"]),
    st.booleans(),
    st.sampled_from([2.0, None]),
)
def test_one_hot_labels_give_the_loss_of_hard_labels(
    batch: Rows, divide_by: Any, include_self: bool, b: float | None
) -> None:
    x, labels = batch
    p = F.one_hot(torch.unique(labels, return_inverse=True)[1]).double()
    options = {"divide_by": divide_by, "self_weight": float(include_self)}
    results = []
    for pairs in (Pairs.of_soft(p, **options), Pairs.of(labels, **options)):
        rows, t = x.clone().requires_grad_(), scalar(10.0, True)
        bias = None if b is None else scalar(b, True)
        value, solved = sigmoid_pairs(Sides(rows), pairs, t, bias)
        value.backward()
        leaves = (rows.grad, t.grad) if bias is None else (rows.grad, t.grad, bias.grad)
        results.append([value.detach(), solved.detach(), *leaves])
    for soft, hard in zip(*results, strict=True):
        torch.testing.assert_close(soft, hard, rtol=1e-6 if b is None else 1e-10, atol=1e-11)


@given(labelled_rows(1, 40))
def test_one_hot_distances_are_those_of_hard_labels(batch: Rows) -> None:
    s, labels = batch
    s.requires_grad_()
    p = F.one_hot(torch.unique(labels, return_inverse=True)[1]).double()
    soft, hard = (mean_distance(Sides(s), pairs) for pairs in (Pairs.of_soft(p), Pairs.of(labels)))
    torch.testing.assert_close(soft, hard, rtol=1e-11, atol=1e-14)
    by_soft, by_hard = (torch.autograd.grad(value, s)[0] for value in (soft, hard))
    torch.testing.assert_close(by_soft, by_hard, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", ["soft labels", "weights"])
def test_a_tiny_loss_has_full_relative_precision(dtype: torch.dtype, kind: str) -> None:
    labels = torch.arange(24) % 4
    x = F.normalize(torch.eye(4, 6)[labels] + 0.01 * torch.randn(24, 6))
    pairs = Pairs.of_soft(F.one_hot(labels).to(dtype))
    if kind == "weights":
        pairs = Pairs.of(labels, row_weights=torch.ones(24, dtype=dtype))
    found, _ = sigmoid_pairs(Sides(x.to(dtype)), pairs, scalar(100), scalar(50))
    exact, _ = sigmoid_pairs(Sides(x.double()), Pairs.of(labels), scalar(100), scalar(50))
    assert 0 < exact < 1e-15
    assert found.item() == pytest.approx(exact.item(), rel=600 * torch.finfo(dtype).eps, abs=0)


@pytest.mark.parametrize("n", [0, 1])
@pytest.mark.parametrize("include_self", [True, False])
def test_few_rows(n: int, include_self: bool) -> None:
    x = torch.ones(n, 2, dtype=torch.float64, requires_grad=True)
    p = torch.full((n, 2), 0.5, dtype=torch.float64)
    pairs = Pairs.of_soft(p, self_weight=float(include_self))
    value, b = sigmoid_pairs(Sides(x), pairs, scalar(10), None)
    distance, entropy = mean_distance(Sides(x), pairs), softmax_pairs(Sides(x), pairs, 0.1)
    (value + distance + entropy).backward()
    assert value.isfinite() and b.isfinite() and distance == 0 and entropy == 0
    assert x.grad is not None and x.grad.isfinite().all()
    if not n or not include_self:
        assert value == 0
