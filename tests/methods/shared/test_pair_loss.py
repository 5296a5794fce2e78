"""Ignored labels, weights, targets of pairs and single values, against plain loops."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from scs_supcon import CSSupCon, SCSSupCon, SimCLR, SupCon
from scs_supcon.errors import UserError
from scs_supcon.kernels import pairs as pairs_module
from scs_supcon.methods import Method

Matrix = list[list[float]]
CLASSES = [0, 1, 0, 2, 1, 0, 2, 0]


def batch(seed: int = 0, n: int = 8) -> tuple[Tensor, Tensor]:
    source = torch.Generator().manual_seed(seed)
    z = torch.randn(n, 6, generator=source, dtype=torch.float64)
    return z, torch.tensor(CLASSES[:n])


def unit(x: list[float]) -> list[float]:
    return [v / math.hypot(*x) for v in x]


def dot(x: list[float], y: list[float]) -> float:
    return math.fsum(a * b for a, b in zip(x, y, strict=True))


def scs_reference(
    z: Matrix, q: Matrix, w: Matrix, omega: list[float], t: float, b: float, **options: Any
) -> list[float]:
    """Values of the rows of SCS-SupCon with 4 common columns; their mean is the loss.

    n Σ_v w_uv (q_uv log(1 + e^(b − t (r − m))) + (1 − q_uv) log(1 + e^(t r − b))) / divisor
    − β n ω_u / Σ ω · Σ_v w_uv q_uv ‖s_u − s_v‖ / Σ_v w_uv q_uv, v ≠ u
    """
    n, beta = len(z), options.get("beta", 1e-3)
    c, s = [unit(row[:4]) for row in z], [unit(row[4:]) for row in z]
    pairs = [(u, v) for u in range(n) for v in range(n)]
    all_ = math.fsum(w[u][v] for u, v in pairs)
    same = math.fsum(w[u][v] * q[u][v] for u, v in pairs)
    divisors = {
        "all": (all_, all_),
        "positives": (same, same),
        "balanced": (2 * same, 2 * (all_ - same)),
    }[options.get("pairs", "all")]
    values = []
    for u in range(n):
        cost = 0.0
        for v in range(n):
            r = dot(c[u], c[v])
            pull, push = b - t * r, t * r - b
            cost += w[u][v] * q[u][v] * math.log1p(math.exp(pull)) / divisors[0]
            cost += w[u][v] * (1 - q[u][v]) * math.log1p(math.exp(push)) / divisors[1]
        others = [(w[u][v] * q[u][v], v) for v in range(n) if v != u]
        share = math.fsum(x for x, _ in others)
        distance = math.fsum(x * math.dist(s[u], s[v]) for x, v in others) / share if share else 0
        values.append(n * cost - beta * n * omega[u] / math.fsum(omega) * distance)
    return values


def supcon_reference(z: Matrix, q: Matrix, w: Matrix, omega: list[float]) -> list[float]:
    """Values of the rows of SupCon with τ = 0.1; pairs (u, u) never count."""
    n, x = len(z), [unit(row) for row in z]
    values = []
    for u in range(n):
        logits = {v: dot(x[u], x[v]) / 0.1 for v in range(n) if v != u and w[u][v]}
        share = math.fsum(w[u][v] * q[u][v] for v in logits)
        if not share:
            values.append(0.0)
            continue
        log_z = math.log(math.fsum(math.exp(x) for x in logits.values()))
        mean = math.fsum(w[u][v] * q[u][v] * logits[v] for v in logits) / share
        values.append((log_z - mean) * n * omega[u] / math.fsum(omega))
    return values


def from_labels(labels: list[int]) -> Matrix:
    return [[float(a == b) for b in labels] for a in labels]


def products(omega: list[float]) -> Matrix:
    return [[a * b for b in omega] for a in omega]


OMEGA = [1.0, 0.5, 2.0, 0.0, 1.5, 1.0, 3.0, 0.25]
ONES = [1.0] * 8
SOFT = [[((3 * min(u, v) + max(u, v)) % 5) / 4 for v in range(8)] for u in range(8)]
MASK = [[float((u + v) % 3 > 0 or u == v) for v in range(8)] for u in range(8)]
MULTI_HOT = [[1, 0, 0], [1, 1, 0], [0, 1, 1], [0, 0, 0], [1, 1, 1], [0, 1, 0], [1, 0, 1], [0, 0, 1]]


def jaccard(sets: list[list[int]]) -> Matrix:
    def index(x: list[int], y: list[int]) -> float:
        union = sum(a or b for a, b in zip(x, y, strict=True))
        return sum(a and b for a, b in zip(x, y, strict=True)) / union if union else 0.0

    return [[index(x, y) for y in sets] for x in sets]


CASES: dict[str, tuple[dict[str, Any], dict[str, Any], Matrix, Matrix, list[float]]] = {
    "none": ({"reduction": "none"}, {}, from_labels(CLASSES), products(ONES), ONES),
    "samples": (
        {},
        {"sample_weights": torch.tensor(OMEGA)},
        from_labels(CLASSES),
        products(OMEGA),
        OMEGA,
    ),
    "classes": (
        {"class_weights": [1.0, 0.5, 2.0]},
        {},
        from_labels(CLASSES),
        products([[1.0, 0.5, 2.0][k] for k in CLASSES]),
        [[1.0, 0.5, 2.0][k] for k in CLASSES],
    ),
    "mask": (
        {},
        {"pair_weights": torch.tensor(MASK) > 0},
        from_labels(CLASSES),
        MASK,
        ONES,
    ),
    "targets": (
        {},
        {"labels": None, "pair_targets": torch.tensor(SOFT, dtype=torch.float64)},
        SOFT,
        products(ONES),
        ONES,
    ),
    "multi-label": (
        {},
        {"labels": torch.tensor(MULTI_HOT)},
        jaccard(MULTI_HOT),
        products(ONES),
        ONES,
    ),
}
cases = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


@cases
@pytest.mark.parametrize("pairs", ["all", "balanced", "positives"])
@pytest.mark.parametrize("options", [{}, {"beta": 0.1}], ids=["plain", "style"])
def test_scs_supcon(case: Any, pairs: Any, options: dict[str, Any]) -> None:
    construction, call, q, w, omega = case
    options = {"pairs": pairs} | options
    loss = SCSSupCon(4, preset="learned", t0=4.0, b0=1.0, **construction, **options)
    check(
        lambda z: loss(z, **({"labels": batch()[1]} | call)),
        lambda z: scs_reference(z, q, w, omega, 4.0, 1.0, **options),
    )


@cases
def test_supcon(case: Any) -> None:
    construction, call, q, w, omega = case
    loss = SupCon(**construction)
    check(
        lambda z: loss(z, **({"labels": batch()[1]} | call)),
        lambda z: supcon_reference(z, q, w, omega),
    )


def check(loss: Callable[[Tensor], Tensor], reference: Callable[[Matrix], list[float]]) -> None:
    """Compare values with the reference, and the gradient with central differences."""
    z = batch()[0].requires_grad_()
    value = loss(z)
    expected = reference(z.tolist())
    mean = math.fsum(expected) / len(expected)
    if value.dim():
        assert value.tolist() == pytest.approx(expected, rel=1e-10)
        value = value.mean()
    assert value.item() == pytest.approx(mean, rel=1e-10)
    (gradient,) = torch.autograd.grad(value, z)
    for u, k in ((0, 0), (2, 5), (7, 3)):
        ends = []
        for step in (1e-6, -1e-6):
            near = z.tolist()
            near[u][k] += step
            ends.append(math.fsum(reference(near)) / len(near))
        slope = (ends[0] - ends[1]) / 2e-6
        assert gradient[u, k].item() == pytest.approx(slope, abs=2e-9, rel=1e-6)


LOSSES: dict[str, Callable[..., Method]] = {
    "solved": SCSSupCon,
    "learned": lambda **options: SCSSupCon(preset="learned", **options),
    "without self": lambda **options: SCSSupCon(include_self=False, **options),
    "supcon": SupCon,
    "cs_supcon": CSSupCon,
}
losses = pytest.mark.parametrize("make", LOSSES.values(), ids=LOSSES)


@losses
def test_one_value_per_row_has_the_loss_as_its_mean(make: Callable[..., Method]) -> None:
    z, labels = batch()
    values, expected = make(reduction="none")(z, labels), make()(z, labels)
    assert values.shape == (8,)
    torch.testing.assert_close(values.mean(), expected, rtol=1e-6, atol=0)
    views = torch.stack([z, z.flip(0)], 1)
    values, expected = make(reduction="none")(views, labels), make()(views, labels)
    assert values.shape == (8, 2)
    torch.testing.assert_close(values.mean(), expected, rtol=1e-6, atol=0)


@losses
def test_ignored_rows_are_left_out(make: Callable[..., Method]) -> None:
    z, labels = batch()
    labels[[1, 5]] = -1
    kept = labels >= 0
    expected = make()(z[kept], labels[kept])
    assert torch.equal(make(ignore_index=-1)(z, labels), expected)
    rows = make(ignore_index=-1, reduction="none")(z, labels)
    assert rows[~kept].tolist() == [0, 0]
    torch.testing.assert_close(rows.mean(), expected, rtol=1e-6, atol=0)
    weights = torch.arange(8.0)
    torch.testing.assert_close(
        make(ignore_index=-1)(z, labels, sample_weights=weights),
        make()(z[kept], labels[kept], sample_weights=weights[kept]),
    )


@losses
def test_a_negative_label_is_an_error(make: Callable[..., Method]) -> None:
    z, labels = batch()
    labels[3] = -1
    with pytest.raises(UserError, match=r"at least 0, got -1: .*use ignore_index=-1"):
        make()(z, labels)
    labels[4] = -7
    with pytest.raises(UserError, match=r"at least 0, got -7: .*use ignore_index=-7"):
        make(ignore_index=-1)(z, labels)


def test_image_ids_may_be_negative() -> None:
    z, _ = batch()
    ids = torch.tensor([-1, -1, 5, 5, 2, 2, -9, -9])
    assert SimCLR()(z, ids).isfinite()


def test_a_row_of_weight_two_counts_like_two_rows() -> None:
    z, labels = batch()
    twice = [0, 1, 1, 2, 3, 3, 4, 5, 6, 7]
    weights = torch.tensor([1, 2, 1, 2, 1, 1, 1, 1])
    for pairs in ("all", "balanced", "positives"):
        loss = SCSSupCon(6, preset="learned", pairs=pairs)
        torch.testing.assert_close(
            loss(z, labels, sample_weights=weights), loss(z[twice], labels[twice])
        )


@losses
def test_equal_weights_and_targets_from_labels_change_nothing(
    make: Callable[..., Method], monkeypatch: pytest.MonkeyPatch
) -> None:
    z, labels = batch()
    expected = make()(z, labels)
    q = labels[:, None] == labels
    for band in (pairs_module.BAND, 17):
        monkeypatch.setattr(pairs_module, "BAND", band)
        for options in (
            {"sample_weights": torch.full((8,), 0.3)},
            {"pair_weights": torch.full((8, 8), 5.0)},
            {"pair_targets": q},
            {"pair_targets": q.double()},
        ):
            torch.testing.assert_close(make()(z, labels, **options), expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sample_weights": torch.ones(7)}, r"sample_weights must be .* \(8,\), got \(7,\)"),
        ({"sample_weights": -torch.ones(8)}, "sample_weights must be finite and at least 0"),
        ({"pair_targets": torch.ones(8, 7)}, r"pair_targets .* \(8, 8\), got \(8, 7\)"),
        ({"pair_targets": 2 * torch.ones(8, 8)}, "pair_targets must be between 0 and 1, got 2"),
        ({"labels": torch.ones(8, 3)}, "at least 0 and sum to 1"),
        ({"references": torch.ones(4, 5)}, "references have 5 columns but embeddings have 6"),
        ({"references": torch.ones(4, 6)}, "reference_labels are missing"),
        ({"labels": torch.full((8, 3), 2)}, "must be 0 or 1"),
    ],
)
def test_errors_say_what_is_expected(options: dict[str, Any], message: str) -> None:
    z, labels = batch()
    with pytest.raises(UserError, match=message):
        SCSSupCon()(z, **({"labels": labels} | options))
    with pytest.raises(UserError, match=message):
        SupCon()(z, **({"labels": labels} | options))


def test_unsupported_combinations_are_errors() -> None:
    z, labels = batch()
    with pytest.raises(UserError, match="class_weights has 2 numbers, but a label is 2"):
        SCSSupCon(class_weights=[1.0, 1.0])(z, labels)
    with pytest.raises(UserError, match="labels are missing: pass labels or pair_targets"):
        SCSSupCon(reduction="none")(z)


def test_no_rows() -> None:
    for loss in (SCSSupCon(), SupCon(), CSSupCon()):
        z = torch.zeros(0, 6, requires_grad=True)
        value = loss(z, torch.zeros(0, dtype=torch.long), sample_weights=torch.zeros(0))
        value.backward()
        assert value.item() == 0


def siglip(images: Tensor, texts: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
    """The loss of two towers as SigLIP defines it: −Σ log σ(±(scale x·y + bias)) / n."""
    x, y = (z / z.norm(dim=1, keepdim=True) for z in (images, texts))
    logits = scale * (x @ y.T) + bias
    signs = 2 * torch.eye(len(x), dtype=x.dtype) - 1
    return -torch.nn.functional.logsigmoid(signs * logits).sum() / len(x)


@pytest.mark.parametrize("n", [1, 5, 37])
def test_two_towers_are_siglip(n: int) -> None:
    source = torch.Generator().manual_seed(n)
    towers = torch.randn(2, n, 6, generator=source, dtype=torch.float64).requires_grad_()
    ids = torch.randperm(n, generator=source)
    loss = SCSSupCon(6, preset="learned", pairs="positives", t0=7.0, b0=3.0)
    value = loss(towers[0], ids, references=towers[1], reference_labels=ids)
    (by_towers,) = torch.autograd.grad(value, towers, retain_graph=True)
    by_log_t, by_b = torch.autograd.grad(value, (loss.log_t, loss.b))
    scale = torch.tensor(7.0, dtype=torch.float64, requires_grad=True)
    bias = torch.tensor(-3.0, dtype=torch.float64, requires_grad=True)
    expected = siglip(towers[0], towers[1], scale, bias)
    by_towers_2, by_scale, by_bias = torch.autograd.grad(expected, (towers, scale, bias))
    torch.testing.assert_close(value, expected)
    torch.testing.assert_close(by_towers, by_towers_2)
    torch.testing.assert_close(by_log_t[0], 7 * by_scale)
    torch.testing.assert_close(by_b[0], -by_bias)


@pytest.mark.parametrize("make", [lambda **o: SCSSupCon(4, **o), SupCon])
@pytest.mark.parametrize("kind", ["integers", "soft", "sets"])
def test_references_in_place_of_the_rows(make: Callable[..., Method], kind: str) -> None:
    """Rows as references are the batch itself, but for pairs (u, u), which count here."""
    z, labels = batch()
    soft = torch.eye(3, dtype=torch.float64)[labels]
    given = {"integers": labels, "soft": soft, "sets": soft.long()}[kind]
    loss = make()
    mask = torch.ones(8, 8, dtype=torch.bool)
    if isinstance(loss, SupCon):
        mask.fill_diagonal_(False)
    terms = loss.loss_terms(z, given, references=z, reference_labels=given, pair_weights=mask)
    torch.testing.assert_close(terms["contrast"], loss.loss_terms(z, labels)["contrast"])


def test_ignored_references_have_no_column() -> None:
    z, labels = batch()
    others, other_labels = batch(1)
    other_labels[[1, 4]] = -1
    source = torch.Generator().manual_seed(3)
    w = torch.rand(8, 8, generator=source, dtype=torch.float64)
    for make in (SCSSupCon, SupCon):
        loss = make(ignore_index=-1)
        value = loss(z, labels, references=others, reference_labels=other_labels, pair_weights=w)
        kept = other_labels >= 0
        expected = make()(
            z,
            labels,
            references=others[kept],
            reference_labels=other_labels[kept],
            pair_weights=w[:, kept],
        )
        torch.testing.assert_close(value, expected)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"references": torch.randn(4, 6)}, "reference_labels"),
        ({"references": torch.randn(4, 5), "reference_labels": torch.zeros(4).long()}, "columns"),
        ({"references": torch.randn(4, 6), "reference_labels": torch.zeros(3).long()}, "number"),
        ({"references": torch.randn(4, 6), "reference_labels": torch.ones(4, 1)}, "same kind"),
    ],
)
def test_wrong_references_are_errors(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        SCSSupCon()(*batch(), **options)
