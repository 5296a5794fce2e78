import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from scs_supcon import CSSupCon, SupCon
from scs_supcon.errors import UserError
from small_batches import batches, double


def reference(
    z: list[list[float]],
    labels: list[int],
    *,
    common_dim: int,
    temperature: float,
    alpha: float,
    beta: float,
    overlap: int = 0,
    normalize: str = "separate",
) -> float:
    """(1/n) Σ_i (1/|P_i|) Σ_p {−log σ_c(i,p) + α log σ_s(i,p) − β ‖s_i − s_p‖}, Eq. 2 as a mean."""

    def unit(x: list[float]) -> list[float]:
        length = math.hypot(*x)
        return [v / length for v in x] if length else x

    def cut(row: list[float]) -> tuple[list[float], list[float]]:
        row = unit(row) if normalize == "joint" else row
        c, s = row[:common_dim], row[common_dim - overlap :]
        return (unit(c), unit(s)) if normalize == "separate" else (c, s)

    def log_softmax(x: list[list[float]], i: int, p: int) -> float:
        logits = {
            a: math.fsum(u * v for u, v in zip(x[i], x[a], strict=True)) / temperature
            for a in range(len(x))
            if a != i
        }
        top = max(logits.values())
        return logits[p] - top - math.log(math.fsum(math.exp(v - top) for v in logits.values()))

    rows = [cut(row) for row in z]
    common, style = [c for c, _ in rows], [s for _, s in rows]
    total = 0.0
    for i in range(len(z)):
        positives = [p for p in range(len(z)) if p != i and labels[p] == labels[i]]
        for p in positives:
            value = -log_softmax(common, i, p)
            if style[i]:
                value += alpha * log_softmax(style, i, p) - beta * math.dist(style[i], style[p])
            total += value / len(positives) / len(z)
    return total


GOLD = (
    double([[1, 0, 1, 0], [0.6, 0.8, 0, 1], [0, 1, 0.6, 0.8], [-0.8, 0.6, 0.8, 0.6]]),
    torch.tensor([0, 0, 1, 1]),
)


def test_gold_value() -> None:
    loss = CSSupCon(2, temperature=1.0, alpha=0.1, beta=1e-3)
    assert loss(*GOLD).item() == pytest.approx(0.6734827675, abs=1e-9)
    assert 4 * loss(*GOLD).item() == pytest.approx(2.6939310700, abs=1e-9)  # the printed sum


option_sets = st.fixed_dictionaries(
    {
        "common_dim": st.sampled_from([4, 6]),
        "temperature": st.sampled_from([0.05, 0.1, 1.0]),
        "alpha": st.sampled_from([0.0, 0.01, 0.5]),
        "beta": st.sampled_from([0.0, 1e-3, 0.5]),
        "overlap": st.sampled_from([0, 2]),
        "normalize": st.sampled_from(["separate", "joint", "none"]),
    }
)


@given(batches(6), option_sets)
def test_all_options_equal_the_reference(
    batch: tuple[Tensor, Tensor], options: dict[str, Any]
) -> None:
    z, labels = batch
    expected = reference(z.tolist(), labels.tolist(), **options)
    value = CSSupCon(**options)(z, labels).item()
    assert value == pytest.approx(expected, rel=1e-10, abs=1e-12)


@given(batches(6), st.sampled_from([0.05, 0.5]))
def test_without_style_terms_the_loss_is_supcon_on_the_common_field(
    batch: tuple[Tensor, Tensor], temperature: float
) -> None:
    z, labels = batch
    plain = CSSupCon(4, temperature=temperature, alpha=0, beta=0)
    supcon = SupCon(temperature)(z[:, :4], labels)
    torch.testing.assert_close(plain(z, labels), supcon, rtol=1e-12, atol=1e-14)
    z.requires_grad_()
    plain(z, labels).backward()
    assert z.grad is not None and not z.grad[:, 4:].any()


@pytest.mark.parametrize("normalize", ["separate", "joint", "none"])
def test_gradcheck(normalize: Any) -> None:
    z = torch.randn(6, 6, dtype=torch.float64, requires_grad=True)
    labels = torch.tensor([0, 1, 0, 2, 1, 1])
    loss = CSSupCon(4, temperature=0.5, alpha=0.3, beta=0.7, overlap=1, normalize=normalize)
    assert torch.autograd.gradcheck(lambda z: loss(z, labels), (z,))


@pytest.mark.parametrize(("normalize", "changed"), [("separate", False), ("joint", True)])
def test_style_terms_change_the_common_field_only_if_normalised_jointly(
    normalize: Any, changed: bool
) -> None:
    z = torch.randn(6, 6, dtype=torch.float64, requires_grad=True)
    labels = torch.tensor([0, 1, 0, 2, 1, 1])
    terms = CSSupCon(4, alpha=0.3, beta=0.7, normalize=normalize).loss_terms(z, labels)
    (terms["style_contrast"] + terms["style"]).backward()
    assert z.grad is not None
    assert bool(z.grad[:, :4].any()) is changed
    assert z.grad[:, 4:].any()


def test_the_terms_have_names_and_the_total_may_be_negative() -> None:
    z = torch.randn(8, 6, dtype=torch.float64)
    loss = CSSupCon(4, alpha=5.0)
    terms = loss.loss_terms(z, torch.arange(8) % 2)
    assert list(terms) == ["contrast", "style_contrast", "style"]
    assert loss(z, torch.arange(8) % 2).item() < 0


def test_the_temperature_must_be_positive() -> None:
    with pytest.raises(UserError, match=r"temperature must be .*, got 0"):
        CSSupCon(temperature=0)
