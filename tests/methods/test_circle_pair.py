import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pytorch_metric_learning.losses import CircleLoss
from pytorch_metric_learning.reducers import MeanReducer
from torch import Tensor

from scs_supcon.errors import UserError
from scs_supcon.methods.circle_pair import CirclePair, Reduction
from small_batches import T4, Vectors, batches, check_slopes, double


def reference(
    s: Vectors,
    labels: list[int],
    m: float,
    gamma: float,
    reduction: str,
    frozen: Vectors | None = None,
) -> float:
    """softplus(log Σ_n exp(γ α_n (s_n − m)) + log Σ_p exp(−γ α_p (s_p − 1 + m))); α from `frozen`.

    Sun et al. (2020), Eq. 6: all unordered pairs at once ("batch"), or per row and averaged.
    """
    alpha = s if frozen is None else frozen
    n = len(labels)
    if reduction == "batch":
        groups = [[(i, j) for i in range(n) for j in range(i + 1, n)]]
    else:
        groups = [[(i, j) for j in range(n) if j != i] for i in range(n)]
    total = 0.0
    for pairs in groups:
        push, pull = [], []
        for i, j in pairs:
            if labels[i] == labels[j]:
                pull.append(-gamma * max(1 + m - alpha[i][j], 0.0) * (s[i][j] - (1 - m)))
            else:
                push.append(gamma * max(alpha[i][j] + m, 0.0) * (s[i][j] - m))
        if push and pull:
            x = sum(
                max(logits) + math.log(math.fsum(math.exp(v - max(logits)) for v in logits))
                for logits in (push, pull)
            )
            total += max(x, 0.0) + math.log1p(math.exp(-abs(x)))
    return total / len(groups) if groups else 0.0


def cosines(z: Vectors) -> Vectors:
    length = [math.hypot(*x) for x in z]
    return [
        [
            math.fsum(a * b for a, b in zip(x, y, strict=True)) / p / q if p and q else 0.0
            for y, q in zip(z, length, strict=True)
        ]
        for x, p in zip(z, length, strict=True)
    ]


IDEAL = double([[1, 0], [1, 0], [0, 1], [0, 1]]), torch.tensor([0, 0, 1, 1])


@pytest.mark.parametrize(
    ("batch", "reduction", "margin", "gamma", "expected"),
    [
        (T4, "anchor", 0.25, 1.0, 1.2649015548),
        (T4, "anchor", 0.25, 32.0, 12.4425421108),
        (T4, "anchor", 0.25, 256.0, 98.8800000563),
        (T4, "batch", 0.25, 1.0, 2.4226204942),
        (T4, "batch", 0.25, 32.0, 22.2931471925),
        (T4, "batch", 0.25, 256.0, 173.4931471806),
        (T4, "batch", 0.4, 80.0, 39.0931471806),
        (IDEAL, "batch", 0.25, 1.0, 2.0869104822),
    ],
)
def test_gold_values(
    batch: tuple[Tensor, Tensor],
    reduction: Reduction,
    margin: float,
    gamma: float,
    expected: float,
) -> None:
    loss = CirclePair(margin=margin, gamma=gamma, reduction=reduction)
    assert loss(*batch).item() == pytest.approx(expected, abs=1e-9)


def test_the_value_at_the_optimum() -> None:
    """Positives at 1, negatives at 0: softplus(ln(P N) − 2 m² γ)."""
    value = CirclePair(reduction="batch")(*IDEAL).item()
    assert value == pytest.approx(math.log1p(2 * 4 * math.exp(-32)), rel=1e-9)
    assert value == pytest.approx(1.0131e-13, rel=1e-4)


@given(
    batches(),
    st.sampled_from(["anchor", "batch"]),
    st.sampled_from([1.0, 80.0, 256.0]),
    st.sampled_from([0.0, 0.25]),
)
def test_the_loss_equals_the_reference(
    batch: tuple[Tensor, Tensor], reduction: Reduction, gamma: float, margin: float
) -> None:
    z, labels = batch
    z.requires_grad_()
    value = CirclePair(margin=margin, gamma=gamma, reduction=reduction)(z, labels)
    expected = reference(cosines(z.tolist()), labels.tolist(), margin, gamma, reduction)
    assert value.item() == pytest.approx(expected, rel=1e-10, abs=1e-13)
    value.backward()
    assert z.grad is not None and z.grad.isfinite().all()


@settings(max_examples=20)
@given(st.integers(2, 4), st.integers(2, 4), st.integers(0, 1 << 20))
def test_the_loss_per_anchor_equals_pytorch_metric_learning(
    classes: int, each: int, seed: int
) -> None:
    source = torch.Generator().manual_seed(seed)
    labels = torch.arange(classes).repeat(each)
    z = torch.randn(len(labels), 5, generator=source, dtype=torch.float64)
    peer = CircleLoss(m=0.4, gamma=80, reducer=MeanReducer())(z, labels)
    torch.testing.assert_close(CirclePair(margin=0.4, gamma=80)(z, labels), peer)


@pytest.mark.parametrize("reduction", ["anchor", "batch"])
def test_the_weights_have_no_gradient(reduction: Reduction) -> None:
    """Compare with central differences of the formula with constant α."""
    source = torch.Generator().manual_seed(1)
    z = torch.randn(5, 3, generator=source, dtype=torch.float64, requires_grad=True)
    labels = torch.tensor([0, 1, 0, 1, 1])
    CirclePair(gamma=8.0, reduction=reduction)(z, labels).backward()
    frozen = cosines(z.tolist())

    def formula(near: Vectors) -> float:
        return reference(cosines(near), labels.tolist(), 0.25, 8.0, reduction, frozen)

    check_slopes(formula, z, 1e-7)


def test_many_rows_in_float32_stay_finite() -> None:
    z = torch.randn(64, 16, requires_grad=True)
    value = CirclePair()(z, torch.arange(64) % 4)
    value.backward()
    assert 10 < value.item() < 1000 and z.grad is not None and z.grad.isfinite().all()


@pytest.mark.parametrize(
    "options", [{"gamma": -1.0}, {"margin": 1.0}, {"reduction": "mean"}], ids=str
)
def test_options_are_checked(options: dict[str, Any]) -> None:
    with pytest.raises(UserError):
        CirclePair(**options)
    assert not CirclePair.adapted
