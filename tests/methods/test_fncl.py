import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from scs_supcon import SimCLR, SupCon
from scs_supcon.errors import UserError
from scs_supcon.methods import Batch, Network, TaskInfo
from scs_supcon.methods.fncl import FNCL
from scs_supcon.nn.head import unit

Vectors = list[list[float]]


def reference(
    views: list[Vectors], labels: list[int], tau: float, attract: int = 0, threshold: float = 0.7
) -> float:
    """(1/n) Σ_i [log Σ_{a∈Q∪N} exp(z_i·z_a/τ) − (1/|Q|) Σ_{q∈Q} z_i·z_q/τ]; z of unit length.

    Q: the other views of the image, and of the other images of its class the `attract` rows most
    similar to any of its views, above the threshold. N: rows of other classes.
    """

    def dot(x: list[float], y: list[float]) -> float:
        return math.fsum(a * b for a, b in zip(x, y, strict=True))

    rows = [(image, z) for view in views for image, z in enumerate(view)]
    total = 0.0
    for i, (image, z) in enumerate(rows):
        score = {
            j: max(dot(view[image], other) for view in views)
            for j, (other_image, other) in enumerate(rows)
            if other_image != image and labels[other_image] == labels[image]
        }
        best = sorted(score, key=lambda j: -score[j])[:attract]
        pulled = [j for j, (other_image, _) in enumerate(rows) if other_image == image and j != i]
        pulled += [j for j in best if score[j] > threshold]
        pushed = [
            j for j, (other_image, _) in enumerate(rows) if labels[other_image] != labels[image]
        ]
        log_z = math.log(math.fsum(math.exp(dot(z, rows[a][1]) / tau) for a in pulled + pushed))
        total += log_z - math.fsum(dot(z, rows[q][1]) / tau for q in pulled) / len(pulled)
    return total / len(rows)


@st.composite
def batches(draw: st.DrawFn) -> tuple[Tensor, Tensor]:
    """Return `(B, V, D)` embeddings and labels; classes of one or more images."""
    labels = draw(st.lists(st.integers(0, 2), min_size=1, max_size=5))
    source = torch.Generator().manual_seed(draw(st.integers(0, 1 << 20)))
    views = draw(st.integers(2, 3))
    z = torch.randn(len(labels), views, 3, generator=source, dtype=torch.float64)
    return z, torch.tensor(labels)


temperatures = st.sampled_from([0.05, 0.5, 3.0])


@given(batches(), temperatures, st.sampled_from([0, 1, 2, 100]), st.sampled_from([-1.0, 0.3, 0.7]))
def test_the_loss_equals_the_reference(
    batch: tuple[Tensor, Tensor], temperature: float, attract: int, threshold: float
) -> None:
    z, labels = batch
    value = FNCL(temperature, attract=attract, threshold=threshold)(z, labels)
    views = [unit(z[:, v]).tolist() for v in range(z.shape[1])]
    expected = reference(views, labels.tolist(), temperature, attract, threshold)
    assert value.item() == pytest.approx(expected, rel=1e-10, abs=1e-13)


@given(batches(), temperatures)
def test_special_cases_are_simclr_and_supcon(
    batch: tuple[Tensor, Tensor], temperature: float
) -> None:
    z, labels = batch
    close: dict[str, Any] = {"rtol": 1e-10, "atol": 1e-12}
    plain = SimCLR(temperature)(z)
    unique = torch.arange(len(z))
    torch.testing.assert_close(FNCL(temperature)(z, unique), plain, **close)
    if z.shape[1] == 2:  # with one positive per row, fewer negatives can only lower the loss
        assert FNCL(temperature)(z, labels) <= plain + 1e-12
    all_attracted = FNCL(temperature, attract=100, threshold=-1.0)(z, labels)
    torch.testing.assert_close(all_attracted, SupCon(temperature)(z, labels), **close)


@pytest.mark.parametrize("attract", [0, 2])
def test_gradcheck(attract: int) -> None:
    source = torch.Generator().manual_seed(0)
    z = torch.randn(4, 2, 3, generator=source, dtype=torch.float64, requires_grad=True)
    labels = torch.tensor([0, 1, 0, 0])
    loss = FNCL(0.5, attract=attract, threshold=0.1)
    assert torch.autograd.gradcheck(lambda z: loss(z, labels), (z,))


def test_a_single_class_has_no_negatives() -> None:
    z = torch.randn(3, 2, 4, requires_grad=True)
    value = FNCL()(z, torch.zeros(3).long())
    value.backward()
    assert value.item() == pytest.approx(0, abs=1e-6)
    assert z.grad is not None and z.grad.isfinite().all()


def set_up(**options: float) -> tuple[FNCL, Network]:
    network = Network(nn.Linear(6, 5), nn.Linear(5, 4)).double()
    return FNCL(**options).setup(
        TaskInfo(network, torch.arange(3).repeat(5), 3, 5, 4, epochs=3)
    ), network  # type: ignore[arg-type]


def test_training_pairs_the_views_of_an_image() -> None:
    method, network = set_up()
    images, labels = torch.randn(8, 6).double(), torch.tensor([0, 1, 2, 1])
    terms = method.training_step(Batch(images, labels, torch.arange(4)), network)
    z = network(images).embeddings
    assert list(terms) == ["contrast"] and method.adapted
    torch.testing.assert_close(terms["contrast"], method(torch.stack(z.chunk(2), 1), labels))
    assert method.class_logits(z, z) is None and not list(method.parameters())


def test_a_classifier_weight_adds_cross_entropy() -> None:
    method, network = set_up(classifier_weight=0.5)
    images, labels = torch.randn(8, 6).double(), torch.tensor([0, 1, 2, 1])
    terms = method.training_step(Batch(images, labels, torch.arange(4)), network)
    features, embeddings = network(images)
    logits = method.class_logits(features, embeddings)
    assert logits is not None
    expected = 0.5 * nn.functional.cross_entropy(logits, labels.repeat(2))
    torch.testing.assert_close(terms["classify"], expected)


def test_errors_say_what_is_wrong() -> None:
    with pytest.raises(UserError, match=r"FNCL compares the views.*pass \(B, V, D\)"):
        FNCL()(torch.randn(4, 3), torch.arange(4))
    for options in ({"threshold": 2.0}, {"attract": -1}, {"classifier_weight": -1.0}):
        with pytest.raises(UserError, match=f"{next(iter(options))} must be"):
            FNCL(**options)  # type: ignore[arg-type]
