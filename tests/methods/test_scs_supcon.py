"""The formula of SCS-SupCon; its parameters and the solved bias are tested in other files."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from scs_supcon import SCSSupCon
from scs_supcon.kernels import scs_loss
from small_batches import T4, T5, batches, double

Vectors = list[list[float]]


def reference(
    z: Vectors,
    labels: list[int],
    t: float,
    b: float,
    *,
    common_dim: int,
    beta: float = 1e-3,
    pairs: str = "all",
    include_self: bool = True,
    overlap: int = 0,
    normalize: str = "separate",
    ref_z: Vectors | None = None,
    ref_labels: list[int] | None = None,
) -> tuple[float, float]:
    """Return (contrast, style) of Eq. 4 and its variants, from raw embeddings.

    contrast = Σ_uv w_uv log(1 + exp(z_uv (b − t c_u·c_v))), style = −β mean ‖s_i − s_p‖.
    """

    def unit(x: list[float]) -> list[float]:
        length = math.hypot(*x)
        return [v / length for v in x] if length else x

    def cut(row: list[float]) -> tuple[list[float], list[float]]:
        row = unit(row) if normalize == "joint" else row
        c, s = row[:common_dim], row[common_dim - overlap :]
        return (unit(c), unit(s)) if normalize == "separate" else (c, s)

    has_references = ref_z is not None
    right, right_labels = (ref_z, ref_labels) if has_references else (z, labels)
    assert right is not None and right_labels is not None
    left, right = [cut(row) for row in z], [cut(row) for row in right]
    costs: dict[bool, list[float]] = {True: [], False: []}
    style = 0.0
    for u, (c_u, s_u) in enumerate(left):
        distances = []
        for v, (c_v, s_v) in enumerate(right):
            same, itself = labels[u] == right_labels[v], not has_references and u == v
            if same and not itself:
                distances.append(math.dist(s_u, s_v))
            if itself and not include_self:
                continue
            a = t * math.fsum(x * y for x, y in zip(c_u, c_v, strict=True)) - b
            x = -a if same else a
            costs[same].append(max(x, 0) + math.log1p(math.exp(-abs(x))))
        if distances:
            style -= beta * math.fsum(distances) / len(distances) / len(left)
    positive, negative = math.fsum(costs[True]), math.fsum(costs[False])
    n_positive, n_negative = len(costs[True]), len(costs[False])
    contrast = {
        "all": (positive + negative) / max(n_positive + n_negative, 1),
        "positives": (positive + negative) / max(n_positive, 1),
        "balanced": positive / max(n_positive, 1) / 2 + negative / max(n_negative, 1) / 2,
    }[pairs]
    return contrast, style


def paper(**options: Any) -> SCSSupCon:
    return SCSSupCon(2, preset="paper", **options)


@pytest.mark.parametrize(
    ("batch", "t", "b", "options", "expected"),
    [
        (T4, 0.1, 0, {}, 0.6737719803),
        (T4, 0.1, 0, {"include_self": False}, 0.6835637537),
        (T4, 0.1, 0.05, {}, 0.6735844780),
        (T4, 0.1, 0.05, {"include_self": False}, 0.6752927547),
        (T4, 1, 0, {}, 0.5537493711),
        (T4, 1, 0, {"include_self": False}, 0.6339119323),
        (T4, 10, 0, {}, 1.1740009177),
        (T4, 10, 5, {}, 0.4627467976),
        (T4, 10, 10, {}, 1.1937016301),
        (T5, 0.1, 0, {}, 0.6732369735),
        (T5, 0.1, 0, {"include_self": False}, 0.6804470518),
        (T5, 0.1, 0, {"pairs": "balanced"}, 0.6741190808),
        (T5, 0.1, 0, {"pairs": "balanced", "include_self": False}, 0.6765158737),
        (T5, 10, 5, {}, 0.4062073918),
        (T5, 10, 5, {"include_self": False}, 0.5060804026),
        (T5, 10, 5, {"pairs": "balanced"}, 0.4186333360),
        (T5, 10, 5, {"pairs": "balanced", "include_self": False}, 0.4502800180),
    ],
)
def test_gold_values(
    batch: tuple[Tensor, Tensor], t: float, b: float, options: dict[str, Any], expected: float
) -> None:
    loss = paper(t0=t, b0=b, **options)(*batch)
    assert loss.item() == pytest.approx(expected, abs=1e-9)


def test_gold_value_with_references() -> None:
    z, labels = T5
    terms = paper(t0=10, b0=5).loss_terms(
        z[:2], labels[:2], references=z[2:], reference_labels=labels[2:]
    )
    assert terms["contrast"].item() == pytest.approx(0.5201015521, abs=1e-9)


def test_gold_gradients_of_t_and_b() -> None:
    loss = paper()
    loss(*T4).backward()
    assert loss.log_t.grad is not None and loss.b.grad is not None
    assert loss.log_t.grad.item() == pytest.approx(-0.0187508010, abs=1e-9)
    assert loss.b.grad.item() == pytest.approx(-0.0099936723, abs=1e-9)


def test_gold_value_with_style() -> None:
    styles = double([[0, 0], [3, 4], [1, 1], [1, 1]])
    loss = paper(normalize="none")
    terms = loss.loss_terms(torch.cat([T4[0], styles], 1), T4[1])
    assert terms["style"].item() == pytest.approx(-1e-3 * 2.5, abs=1e-12)
    assert sum(terms.values()).item() == pytest.approx(0.6712719803, abs=1e-9)


@pytest.mark.parametrize(
    ("t", "b", "contrast", "total"),
    [
        (0.1, 0, 0.6550913214, 0.6517579880),
        (10, 0, 0.0030098209, -0.0003235124),
        (10, 2, 0.0111129048, 0.0077795715),
    ],
)
def test_gold_values_computed_by_hand(t: float, b: float, contrast: float, total: float) -> None:
    """Commons at 0°, 60° and 180°, styles (0, 0), (3, 4) and (1, 1), labels 0, 0, 1."""
    commons = [[math.cos(x), math.sin(x)] for x in (0, math.pi / 3, math.pi)]
    z = torch.cat([double(commons), double([[0, 0], [3, 4], [1, 1]])], 1)
    labels = torch.tensor([0, 0, 1])
    loss = paper(t0=t, b0=b, normalize="none")
    terms = loss.loss_terms(z, labels)
    assert terms["contrast"].item() == pytest.approx(contrast, abs=1e-9)
    assert terms["style"].item() == pytest.approx(-0.0033333333, abs=1e-9)
    assert loss(z, labels).item() == pytest.approx(total, abs=1e-9)
    if (t, b) == (0.1, 0):
        without = paper(normalize="none", include_self=False).loss_terms(z, labels)
        assert without["contrast"].item() == pytest.approx(0.6604386520, abs=1e-9)


option_sets = st.fixed_dictionaries(
    {
        "pairs": st.sampled_from(["all", "balanced", "positives"]),
        "include_self": st.booleans(),
        "overlap": st.sampled_from([0, 2, 4]),
        "normalize": st.sampled_from(["separate", "joint", "none"]),
        "beta": st.sampled_from([0.0, 1e-3, 0.7]),
        "common_dim": st.sampled_from([4, 5, 6]),
    }
)
biases = st.sampled_from(["learn", "fixed", "solve"])
starts = st.sampled_from([(0.1, 0.0), (10.0, 5.0), (1.0, -2.0), (50.0, 20.0)])


@settings(max_examples=150)
@given(batches(6), option_sets, biases, starts)
def test_all_options_equal_the_reference(
    batch: tuple[Tensor, Tensor], options: dict[str, Any], bias: Any, start: tuple[float, float]
) -> None:
    z, labels = batch
    t, b = start
    loss = SCSSupCon(preset="paper", t0=t, b0=None if bias == "solve" else b, bias=bias, **options)
    terms = loss.loss_terms(z, labels)
    contrast, style = reference(z.tolist(), labels.tolist(), t, float(loss.b.detach()), **options)
    assert terms["contrast"].item() == pytest.approx(contrast, rel=1e-10, abs=0)
    assert terms["contrast"].item() >= 0
    if "style" in terms:
        assert terms["style"].item() == pytest.approx(style, rel=1e-10, abs=1e-300)
    else:
        assert options["beta"] == 0 or options["common_dim"] - options["overlap"] == 6
    assert loss(z, labels).item() == pytest.approx(contrast + style, rel=1e-10, abs=1e-15)


@settings(max_examples=80)
@given(batches(6), batches(6), option_sets, biases, starts)
def test_the_loss_with_references_equals_the_reference(
    batch: tuple[Tensor, Tensor],
    others: tuple[Tensor, Tensor],
    options: dict[str, Any],
    bias: Any,
    start: tuple[float, float],
) -> None:
    (z, labels), (ref_z, ref_labels) = batch, others
    t, b = start
    loss = SCSSupCon(preset="paper", t0=t, b0=None if bias == "solve" else b, bias=bias, **options)
    terms = loss.loss_terms(z, labels, references=ref_z, reference_labels=ref_labels)
    contrast, style = reference(
        z.tolist(),
        labels.tolist(),
        t,
        float(loss.b.detach()),
        **options,
        ref_z=ref_z.tolist(),
        ref_labels=ref_labels.tolist(),
    )
    assert terms["contrast"].item() == pytest.approx(contrast, rel=1e-10, abs=0)
    if "style" in terms:
        assert terms["style"].item() == pytest.approx(style, rel=1e-10, abs=1e-300)


def random_batch(n: int = 8, d: int = 6, seed: int = 0) -> tuple[Tensor, Tensor]:
    source = torch.Generator().manual_seed(seed)
    z = torch.randn(n, d, generator=source, dtype=torch.float64)
    return z, torch.arange(n) % 3


@pytest.mark.parametrize(
    "options",
    [
        {"preset": "paper", "beta": 0.5},
        {"preset": "learned", "beta": 0.5, "include_self": False},
        {"preset": "paper", "t0": 0.7, "pairs": "balanced"},
        {"preset": "paper", "normalize": "joint", "overlap": 2, "beta": 0.5},
        {"preset": "paper", "normalize": "none", "pairs": "positives"},
        {"preset": "learned", "pairs": "positives"},
        {"preset": "learned", "pairs": "balanced", "include_self": False, "beta": 0.0},
    ],
)
def test_gradcheck(options: dict[str, Any]) -> None:
    z, labels = random_batch()
    refs, ref_labels = random_batch(5, seed=1)
    loss = SCSSupCon(4, **options)
    leaves = (z.requires_grad_(), refs.requires_grad_(), loss.log_t, loss.b)

    def value(z: Tensor, refs: Tensor, *_: Tensor) -> Tensor:
        return loss(z, labels) + loss(z, labels, references=refs, reference_labels=ref_labels)

    assert torch.autograd.gradcheck(value, leaves, eps=1e-6, atol=1e-7)


def test_gradients_of_t_and_b_by_their_formulas() -> None:
    """∂L/∂b = mean z σ(z(b − a')), ∂L/∂t' = −mean z σ(z(b − a')) a' with a' = t r."""
    z, labels = random_batch()
    t, b = 1.7, 0.4
    loss = SCSSupCon(6, preset="paper", t0=t, b0=b)
    loss(z, labels).backward()
    rows = torch.nn.functional.normalize(z).tolist()
    by_b, by_log_t = [], []
    for u, x in enumerate(rows):
        for v, y in enumerate(rows):
            sign = 1 if labels[u] == labels[v] else -1
            a = t * math.fsum(p * q for p, q in zip(x, y, strict=True))
            slope = sign / (1 + math.exp(-sign * (b - a)))
            by_b.append(slope)
            by_log_t.append(-slope * a)
    assert loss.b.grad is not None and loss.log_t.grad is not None
    assert loss.b.grad.item() == pytest.approx(math.fsum(by_b) / 64, rel=1e-10)
    assert loss.log_t.grad.item() == pytest.approx(math.fsum(by_log_t) / 64, rel=1e-10)


@pytest.mark.parametrize(("t", "b", "spread"), [(0.1, 0, 1.0), (10, 5, 1.0), (100, 50, 0.01)])
def test_float32_from_raw_embeddings(t: float, b: float, spread: float) -> None:
    """Relative errors are within 8 eps (t + |b| + 1), even for losses of about 1e-19."""
    source = torch.Generator().manual_seed(0)
    centres = torch.eye(8)[torch.arange(160) % 5]
    z = 3 * (centres + spread * torch.randn(160, 8, generator=source))
    results = {}
    for dtype in (torch.float32, torch.float64):
        loss = SCSSupCon(8, preset="paper", t0=t, b0=b)
        x = z.to(dtype, copy=True).requires_grad_()
        value = loss(x, torch.arange(160) % 5)
        value.backward()
        leaves = (value, x.grad, loss.log_t.grad, loss.b.grad)
        results[dtype] = [v.detach().double() for v in leaves if v is not None]
    bound = 8 * torch.finfo(torch.float32).eps * (t + abs(b) + 1)
    for rough, exact in zip(results[torch.float32], results[torch.float64], strict=True):
        assert torch.linalg.vector_norm(rough - exact) <= bound * torch.linalg.vector_norm(exact)
    if t == 100:
        assert 0 < results[torch.float64][0] < 1e-15


@given(batches(6))
def test_the_first_value_lies_in_the_range_of_unit_vectors(batch: tuple[Tensor, Tensor]) -> None:
    """A value outside of it means that rows are not normalised, or that the scale is wrong."""
    z, labels = batch
    if len(z):
        assert 0.6443966 <= SCSSupCon(6, preset="paper")(z, labels).item() <= 0.7443967


def test_b_rises_at_first_if_negatives_outnumber_positives() -> None:
    loss = SCSSupCon(preset="paper")
    loss(*random_batch(30)).backward()
    assert loss.b.grad is not None and loss.b.grad.item() < 0


@pytest.mark.parametrize("normalize", ["separate", "none"])
def test_beta_zero_removes_every_dependence_on_style(normalize: Any) -> None:
    z, labels = random_batch()
    loss = SCSSupCon(4, preset="learned", beta=0, normalize=normalize)
    other = z.clone()
    other[:, 4:] = torch.randn(8, 2, dtype=torch.float64)
    assert torch.equal(loss(z, labels), loss(other, labels))
    z.requires_grad_()
    loss(z, labels).backward()
    assert z.grad is not None and not z.grad[:, 4:].any() and z.grad[:, :4].any()


@pytest.mark.parametrize("normalize", ["separate", "joint"])
def test_style_changes_the_common_field_only_if_normalised_jointly(
    normalize: Any,
) -> None:
    z, labels = random_batch()
    z.requires_grad_()
    SCSSupCon(4, beta=1.0, normalize=normalize).loss_terms(z, labels)["style"].backward()
    assert z.grad is not None
    assert z.grad[:, :4].any().item() is (normalize == "joint")


def test_rotating_every_common_field_changes_nothing() -> None:
    z, labels = random_batch()
    turn, _ = torch.linalg.qr(torch.randn(4, 4, dtype=torch.float64))
    turned = torch.cat([z[:, :4] @ turn, z[:, 4:]], 1)
    loss = SCSSupCon(4)
    torch.testing.assert_close(loss(turned, labels), loss(z, labels), rtol=1e-12, atol=0)


def test_rescaling_raw_embeddings_changes_nothing() -> None:
    z, labels = random_batch()
    long = z * torch.rand(8, 1, dtype=torch.float64) * 100
    torch.testing.assert_close(SCSSupCon(4)(long, labels), SCSSupCon(4)(z, labels))


def test_the_loss_is_twice_the_upper_triangle_plus_the_diagonal() -> None:
    z, labels = random_batch()
    loss = SCSSupCon(6, preset="learned")

    def contrast(u: slice, v: slice) -> Tensor:
        others = {"references": z[v], "reference_labels": labels[v]}
        return loss.loss_terms(z[u], labels[u], **others)["contrast"]

    first = slice(0, 1)
    upper = sum(contrast(slice(u, u + 1), slice(u + 1, 8)) * (7 - u) for u in range(7))
    expected = 2 * upper + 8 * contrast(first, first)
    torch.testing.assert_close(64 * loss(z, labels), expected)


def test_the_formula_on_one_screen_gives_the_same_number() -> None:
    z, labels = random_batch(40)
    loss = SCSSupCon(4, beta=0.5)
    value = loss(z, labels)
    same = labels[:, None] == labels
    terms = scs_loss(*loss.fields(z), same, loss.t, loss.b.item(), 0.5)
    assert value.item() == pytest.approx(sum(terms).item(), rel=1e-9)  # cdist rounds
