import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pair_batches import Rows, labelled_rows
from scs_supcon.kernels import mean_cosines


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


@given(labelled_rows())
def test_hard_labels(batch: Rows) -> None:
    x, labels = batch
    q = (labels[:, None] == labels).double()
    expected = reference(x.tolist(), q.tolist())
    assert mean_cosines(x, labels) == pytest.approx(expected, abs=1e-12, nan_ok=True)


@given(labelled_rows(1), st.integers(0, 99))
def test_soft_labels(batch: Rows, seed: int) -> None:
    x = batch[0]
    p = torch.randn(len(x), 3, generator=torch.Generator().manual_seed(seed)).double().softmax(1)
    expected = reference(x.tolist(), (p @ p.T).tolist())
    assert mean_cosines(x, p) == pytest.approx(expected, abs=1e-12, nan_ok=True)


def test_one_hot_labels_give_the_cosines_of_hard_labels() -> None:
    x, labels = torch.randn(9, 4), torch.arange(9) % 3
    one_hot = torch.nn.functional.one_hot(labels)
    assert mean_cosines(x, one_hot.float()) == pytest.approx(mean_cosines(x, labels), abs=1e-12)
