"""Statistics of the pairs in a batch."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from pair_batches import Rows, labelled_rows
from scs_supcon.kernels import Pairs
from scs_supcon.methods.shared.pair_scalars import batch_statistics


def reference(x: list[list[float]], q: list[list[float]]) -> tuple[float, float]:
    """Mean cosines of pairs u ≠ v, weighted by q and by 1 − q; NaN without such pairs."""
    totals, weights = [0.0, 0.0], [0.0, 0.0]
    for u in range(len(x)):
        for v in range(len(x)):
            if u != v:
                lengths = math.hypot(*x[u]) * math.hypot(*x[v])
                inner = math.fsum(a * b for a, b in zip(x[u], x[v], strict=True))
                for k, weight in enumerate((q[u][v], 1 - q[u][v])):
                    totals[k] += weight * inner / (lengths or 1)
                    weights[k] += weight
    positive, negative = (
        total / weight if weight > 1e-9 else math.nan
        for total, weight in zip(totals, weights, strict=True)
    )
    return positive, negative


def cosines(pairs: Pairs, x: Tensor) -> tuple[float, float]:
    values = batch_statistics(pairs, x)
    return values.get("positive_cosine", math.nan), values.get("negative_cosine", math.nan)


@given(labelled_rows())
def test_cosines_of_labels(batch: Rows) -> None:
    x, labels = batch
    expected = reference(x.tolist(), (labels[:, None] == labels).double().tolist())
    assert cosines(Pairs.of(labels), x) == pytest.approx(expected, abs=1e-12, nan_ok=True)


@given(labelled_rows(1), st.integers(0, 99))
def test_cosines_of_soft_labels(batch: Rows, seed: int) -> None:
    x = batch[0]
    p = torch.randn(len(x), 3, generator=torch.Generator().manual_seed(seed)).double().softmax(1)
    expected = reference(x.tolist(), (p @ p.T).tolist())
    assert cosines(Pairs.of_soft(p), x) == pytest.approx(expected, abs=1e-12, nan_ok=True)
