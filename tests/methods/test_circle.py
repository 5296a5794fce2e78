import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from scs_supcon.errors import UserError
from scs_supcon.methods import Batch, Network, TaskInfo
from scs_supcon.methods.circle import Circle, class_circle, mean_softplus
from small_batches import Vectors, check_slopes


def reference(
    s: Vectors, labels: list[int], m: float, gamma: float, frozen: Vectors | None = None
) -> float:
    """(1/n) Σ_i softplus(log Σ_{j≠y} exp(γ α_j (s_j − m)) − γ α_y (s_y − 1 + m)); α from `frozen`.

    Sun et al. (2020), Eq. 6 with O_p = 1 + m, O_n = −m, Δ_p = 1 − m, Δ_n = m, pairs (row, class).
    """
    total = 0.0
    for i, y in enumerate(labels):
        alpha = s[i] if frozen is None else frozen[i]
        push = [gamma * max(alpha[j] + m, 0.0) * (s[i][j] - m) for j in range(len(s[i])) if j != y]
        if not push:
            continue
        pull = gamma * max(1 + m - alpha[y], 0.0) * (s[i][y] - (1 - m))
        top = max(push)
        x = top + math.log(math.fsum(math.exp(v - top) for v in push)) - pull
        total += max(x, 0.0) + math.log1p(math.exp(-abs(x)))
    return total / len(labels)


def cosines(x: Vectors, y: Vectors) -> Vectors:
    return [
        [
            math.fsum(a * b for a, b in zip(p, q, strict=True)) / math.hypot(*p) / math.hypot(*q)
            for q in y
        ]
        for p in x
    ]


def set_up(classes: int = 3, **options: float) -> Circle:
    network = Network(nn.Linear(6, 5), nn.Linear(5, 4)).double()
    return Circle(**options).setup(
        TaskInfo(network, torch.arange(classes), classes, 5, 4, epochs=3)
    )  # type: ignore[arg-type]


def directions(method: Circle) -> Tensor:
    assert method.directions is not None
    return method.directions


@given(
    st.integers(1, 8),
    st.integers(1, 5),
    st.sampled_from([1.0, 32.0, 256.0]),
    st.sampled_from([0.0, 0.25, 0.4]),
    st.integers(0, 1 << 20),
)
def test_the_loss_equals_the_reference(
    n: int, classes: int, gamma: float, margin: float, seed: int
) -> None:
    torch.manual_seed(seed)
    method = set_up(classes, gamma=gamma, margin=margin)
    z = 2 * torch.randn(n, 4, dtype=torch.float64)
    labels = torch.randint(0, classes, (n,))
    s = cosines(z.tolist(), directions(method).tolist())
    expected = reference(s, labels.tolist(), margin, gamma)
    assert method(z, labels).item() == pytest.approx(expected, rel=1e-10, abs=1e-13)


def test_the_value_at_the_optimum() -> None:
    """Similarity 1 to the correct class, 0 to the others: softplus(ln(C − 1) − 2 m² γ)."""
    s = torch.eye(3, dtype=torch.float64)
    value = class_circle(s, torch.arange(3), 0.25, 256.0).item()
    assert value == pytest.approx(math.log1p(2 * math.exp(-32)), rel=1e-9)
    assert value == pytest.approx(2.53e-14, rel=1e-2)


def test_without_weights_and_margins_the_loss_is_cross_entropy_with_scale_gamma() -> None:
    s, labels = torch.rand(7, 4, dtype=torch.float64), torch.tensor([0, 3, 2, 1, 1, 0, 2])
    target = nn.functional.one_hot(labels, 4).bool()
    value = mean_softplus((32 * s[~target].view(7, 3)).logsumexp(1) - 32 * s[target])
    torch.testing.assert_close(value, nn.functional.cross_entropy(32 * s, labels))


def test_the_weights_have_no_gradient() -> None:
    """Compare with central differences of the formula with constant α."""
    torch.manual_seed(1)
    s = (2 * torch.rand(5, 3, dtype=torch.float64) - 1).requires_grad_()
    labels = torch.tensor([0, 1, 2, 1, 0])
    class_circle(s, labels, 0.25, 8.0).backward()
    base = s.tolist()

    def formula(near: Vectors) -> float:
        return reference(near, labels.tolist(), 0.25, 8.0, frozen=base)

    check_slopes(formula, s, 1e-7)


def test_with_a_single_class_the_loss_is_zero() -> None:
    z = torch.randn(4, 4, dtype=torch.float64, requires_grad=True)
    value = set_up(1)(z, torch.zeros(4).long())
    value.backward()
    assert value.item() == 0 and z.grad is not None and not z.grad.any()


def test_the_nearest_direction_classifies() -> None:
    method = set_up(3)
    z = 3 * directions(method).detach()[[2, 0, 1]]
    logits = method.class_logits(torch.zeros(3, 5).double(), z)
    assert logits is not None and logits.argmax(1).tolist() == [2, 0, 1]
    assert logits.max(1).values.tolist() == pytest.approx([256.0] * 3)
    assert Circle().class_logits(z, z) is None


def test_the_loss_uses_both_views_and_trains_the_directions() -> None:
    method, network = set_up(3), Network(nn.Linear(6, 5), nn.Linear(5, 4)).double()
    images, labels = torch.randn(8, 6).double(), torch.tensor([0, 1, 2, 1])
    (value,) = method.training_step(Batch(images, labels, torch.arange(4)), network).values()
    torch.testing.assert_close(value, method(network(images).embeddings, labels.repeat(2)))
    value.backward()
    assert directions(method).grad is not None
    assert [p for g in method.param_groups(0.1) for p in g["params"]] == [directions(method)]
    assert method.adapted


def test_errors_say_what_is_missing_or_wrong() -> None:
    with pytest.raises(UserError, match="has not been set up"):
        Circle()(torch.randn(2, 4), torch.tensor([0, 1]))
    with pytest.raises(UserError, match="3 classes"):
        set_up(3)(torch.randn(2, 4).double(), torch.tensor([0, 3]))
    for options in ({"gamma": 0.0}, {"margin": 1.0}, {"margin": -0.1}):
        with pytest.raises(UserError):
            Circle(**options)  # type: ignore[arg-type]
