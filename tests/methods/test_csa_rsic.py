import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from scs_supcon import SupCon
from scs_supcon.errors import UserError
from scs_supcon.methods import Batch, Network
from scs_supcon.methods.csa_rsic import CSARSIC
from scs_supcon.nn.head import unit

Vectors = list[list[float]]


def reference(
    first: Vectors, second: Vectors, labels: list[int], tau: float, weight: float
) -> float:
    """L_SupCon over both views' rows + λ (1/B) Σ_i ‖z_i¹ − z_i²‖²; rows of unit length."""

    def dot(x: list[float], y: list[float]) -> float:
        return math.fsum(a * b for a, b in zip(x, y, strict=True))

    rows, classes = first + second, labels + labels
    contrast = 0.0
    for i in range(len(rows)):
        others = [a for a in range(len(rows)) if a != i]
        positives = [a for a in others if classes[a] == classes[i]]
        log_z = math.log(math.fsum(math.exp(dot(rows[i], rows[a]) / tau) for a in others))
        logs = math.fsum(log_z - dot(rows[i], rows[p]) / tau for p in positives)
        contrast += logs / len(positives)
    distance = math.fsum(math.dist(x, y) ** 2 for x, y in zip(first, second, strict=True))
    return contrast / len(rows) + weight * distance / len(first)


def rows(images: int, seed: int) -> Tensor:
    source = torch.Generator().manual_seed(seed)
    return 2 * torch.randn(images, 2, 4, generator=source, dtype=torch.float64)


@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=6),
    st.sampled_from([0.05, 0.5]),
    st.sampled_from([0.0, 0.1, 2.0]),
    st.integers(0, 1 << 20),
)
def test_the_loss_equals_the_reference(
    labels: list[int], temperature: float, weight: float, seed: int
) -> None:
    z = rows(len(labels), seed)
    value = CSARSIC(temperature, weight=weight)(z, torch.tensor(labels))
    first, second = unit(z[:, 0]).tolist(), unit(z[:, 1]).tolist()
    expected = reference(first, second, labels, temperature, weight)
    assert value.item() == pytest.approx(expected, rel=1e-10, abs=1e-13)


def test_consistency_of_same_and_orthogonal_views() -> None:
    x = torch.tensor([[2.0, 0.0], [0.0, 3.0]], dtype=torch.float64)
    labels = torch.tensor([0, 1])
    same = CSARSIC(weight=1.0).loss_terms(torch.stack([x, 5 * x], 1), labels)
    assert same["consistency"].item() == 0
    across = CSARSIC(weight=1.0).loss_terms(torch.stack([x, x.flip(1)], 1), labels)
    assert across["consistency"].item() == 2


def test_with_weight_zero_the_loss_is_supcon() -> None:
    z, labels = rows(6, 0), torch.tensor([0, 1, 1, 2, 0, 0])
    torch.testing.assert_close(CSARSIC(weight=0.0)(z, labels), SupCon(0.1)(z, labels))
    assert CSARSIC(weight=0.0).adapted


def test_gradcheck() -> None:
    labels = torch.tensor([0, 1, 1, 2])
    z = rows(4, 1).requires_grad_()
    assert torch.autograd.gradcheck(lambda z: CSARSIC(0.5, weight=0.3)(z, labels), (z,))


def test_training_pairs_the_views_of_an_image() -> None:
    network = Network(nn.Linear(6, 5), nn.Linear(5, 4)).double()
    images, labels = torch.randn(8, 6).double(), torch.tensor([0, 1, 2, 1])
    terms = CSARSIC().training_step(Batch(images, labels, torch.arange(4)), network)
    z = network(images).embeddings
    expected = CSARSIC().loss_terms(torch.stack(z.chunk(2), 1), labels)
    for name in ("contrast", "consistency"):
        torch.testing.assert_close(terms[name], expected[name])


def test_errors_say_what_is_wrong() -> None:
    with pytest.raises(UserError, match=r"CSARSIC compares the views.*pass \(B, V, D\)"):
        CSARSIC()(torch.randn(4, 3), torch.arange(4))
    with pytest.raises(UserError, match=r"compares two views, got 3"):
        CSARSIC()(torch.randn(4, 3, 3), torch.arange(4))
    with pytest.raises(UserError, match=r"weight must be .*, got -1"):
        CSARSIC(weight=-1.0)
