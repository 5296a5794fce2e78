"""SCS-SupCon with a memory bank."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from scs_supcon import SCSSupCon
from scs_supcon.errors import UserError
from scs_supcon.methods import Batch, Network, TaskInfo

Vectors = list[list[float]]


def unit(row: list[float]) -> list[float]:
    length = math.hypot(*row)
    return [x / length for x in row] if length else row


def reference(
    z: Vectors,
    labels: list[int],
    past: list[tuple[list[float], int]],
    t: float,
    b: float,
    pairs: str,
    include_self: bool,
) -> float:
    """The contrast of rows with each other and with past rows, by loops."""
    rows = [unit(row) for row in z]
    right = [*zip(rows, labels, strict=True), *past]
    costs: dict[bool, list[float]] = {True: [], False: []}
    for u, x in enumerate(rows):
        for v, (y, label) in enumerate(right):
            if u == v and not include_self:
                continue
            a = t * math.fsum(p * q for p, q in zip(x, y, strict=True)) - b
            same = labels[u] == label
            a = -a if same else a
            costs[same].append(max(a, 0) + math.log1p(math.exp(-abs(a))))
    positive, negative = math.fsum(costs[True]), math.fsum(costs[False])
    n_positive, n_negative = len(costs[True]), len(costs[False])
    return {
        "all": (positive + negative) / max(n_positive + n_negative, 1),
        "positives": (positive + negative) / max(n_positive, 1),
        "balanced": positive / max(n_positive, 1) / 2 + negative / max(n_negative, 1) / 2,
    }[pairs]


def network() -> Network:
    """The embeddings are the images."""
    return Network(nn.Identity(), nn.Identity()).double()


def set_up(method: SCSSupCon, width: int = 4, classes: int = 3) -> SCSSupCon:
    labels = torch.arange(classes)
    net = Network(nn.Identity(), nn.Linear(width, width).double())
    method.setup(TaskInfo(net, labels, classes, width, width, epochs=1))
    return method


def batch(labels: Tensor, seed: int, views: int = 2) -> Batch:
    source = torch.Generator().manual_seed(seed)
    images = torch.randn(views * len(labels), 4, generator=source, dtype=torch.float64)
    return Batch(images, labels, torch.arange(len(labels)))


@given(
    st.lists(st.lists(st.integers(0, 2), max_size=5), min_size=1, max_size=4),
    st.integers(1, 5),
    st.sampled_from(["all", "balanced", "positives"]),
    st.booleans(),
    st.sampled_from([2.0, None]),
)
def test_rows_are_compared_with_the_past_rows_of_each_class(
    steps: list[list[int]], memory: int, pairs: Any, include_self: bool, b: float | None
) -> None:
    fixed = {} if b is None else {"bias": "fixed", "b0": b}
    options = {"memory": memory, "pairs": pairs, "include_self": include_self, "beta": 0.0}
    method = set_up(SCSSupCon(4, **options, **fixed))  # type: ignore[arg-type]
    past: dict[int, Vectors] = {}
    for number, labels in enumerate(steps):
        example = batch(torch.tensor(labels, dtype=torch.long), number)
        terms = method.training_step(example, network())
        stored = [(row, label) for label, rows in past.items() for row in rows]
        expected = reference(
            example.images.tolist(), labels * 2, stored, 10.0, method.b.item(), pairs, include_self
        )
        assert terms["contrast"].item() == pytest.approx(expected, rel=1e-9)
        method.after_step(nn.Identity(), 0.0)
        for row, label in zip(example.images.tolist(), labels * 2, strict=True):
            past[label] = [*past.get(label, []), unit(row)][-memory:]


def test_gradcheck() -> None:
    method = set_up(SCSSupCon(3, preset="siglip", memory=2, beta=0.2))
    labels = torch.tensor([0, 1, 1])
    method.training_step(batch(labels, 0), network())
    method.after_step(nn.Identity(), 0.0)

    def loss(z: Tensor, *_: Tensor) -> Tensor:
        return method(z, labels.repeat(2))

    leaves = (batch(labels, 1).images.requires_grad_(), method.log_t, method.b)
    assert torch.autograd.gradcheck(loss, leaves)


def test_without_past_rows_the_loss_is_that_of_the_batch() -> None:
    labels = torch.tensor([0, 1, 1, 2])
    example = batch(labels, 0)
    plain = SCSSupCon(3).training_step(example, network())
    terms = set_up(SCSSupCon(3, memory=2)).training_step(example, network())
    assert terms.keys() == plain.keys()
    for name, value in plain.items():
        torch.testing.assert_close(terms[name], value, rtol=1e-6, atol=0)


def test_evaluation_neither_uses_nor_fills_the_bank() -> None:
    labels = torch.tensor([0, 1, 1, 2])
    method = set_up(SCSSupCon(3, memory=2))
    method.training_step(batch(labels, 0), network())
    method.after_step(nn.Identity(), 0.0)
    before = {key: value.clone() for key, value in method.state_dict().items()}
    method.eval()
    example = batch(labels, 1)
    assert torch.equal(
        method(example.images, labels.repeat(2)), SCSSupCon(3)(example.images, labels.repeat(2))
    )
    method.after_step(nn.Identity(), 0.0)
    assert all(torch.equal(value, before[key]) for key, value in method.state_dict().items())


def test_a_restored_copy_continues_identically() -> None:
    labels = torch.tensor([0, 1, 1, 2])
    method, restored = (set_up(SCSSupCon(3, memory=3)) for _ in range(2))
    for step in range(3):
        method.training_step(batch(labels, step), network())
        method.after_step(nn.Identity(), 0.0)
    restored.load_state_dict(method.state_dict())
    for step in range(3, 6):
        terms = [m.training_step(batch(labels, step), network()) for m in (method, restored)]
        for name, value in terms[0].items():
            assert torch.equal(value, terms[1][name])
        for m in (method, restored):
            m.after_step(nn.Identity(), 0.0)
    for key, value in method.state_dict().items():
        assert torch.equal(value, restored.state_dict()[key])


def test_errors_say_what_to_do() -> None:
    example = batch(torch.tensor([0, 5]), 0)
    with pytest.raises(UserError, match="SCSSupCon has not been set up"):
        SCSSupCon(3, memory=2).training_step(example, network())
    with pytest.raises(UserError, match=r"labels must be between 0 and 2 .*, got 0 to 5"):
        set_up(SCSSupCon(3, memory=2)).training_step(example, network())
    soft = Batch(example.images, example.labels, example.indices, torch.eye(2))
    with pytest.raises(UserError, match="memory = 2 cannot be combined with soft labels"):
        set_up(SCSSupCon(3, memory=2)).training_step(soft, network())
