"""A memory of past rows around pair losses.

Run by pytest this file starts itself as `test_memory_bank.py RANK WORLD FOLDER`, one per rank.
"""

import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from scs_supcon import CSSupCon, MemoryBank, SCSSupCon, SimCLR, SupCon
from scs_supcon.errors import UserError
from scs_supcon.methods import Batch, Network
from scs_supcon.methods.baseline import Baseline

Vectors = list[list[float]]
Past = list[tuple[list[float], int]]


def unit(row: list[float]) -> list[float]:
    length = math.hypot(*row)
    return [x / length for x in row]


def dot(x: list[float], y: list[float]) -> float:
    return math.fsum(p * q for p, q in zip(x, y, strict=True))


def sigmoid_reference(
    z: Vectors, labels: list[int], past: Past, b: float, negatives: str, include_self: bool
) -> float:
    """The contrast with t = 10, divided by the number of positive pairs, by loops."""
    rows = [unit(row) for row in z]
    right = [*zip(rows, labels, strict=True), *((unit(row), label) for row, label in past)]
    cost, positives = 0.0, 0
    for u, x in enumerate(rows):
        for v, (y, label) in enumerate(right):
            same = labels[u] == label
            if u == v and not include_self:
                continue
            if not same and v < len(rows) and negatives == "memory":
                continue
            a = 10 * dot(x, y) - b
            a = -a if same else a
            cost += max(a, 0) + math.log1p(math.exp(-abs(a)))
            positives += same
    return cost / max(positives, 1)


def softmax_reference(
    z: Vectors, labels: list[int], past: Past, negatives: str, temperature: float = 0.1
) -> float:
    """SupCon by loops: the mean over all rows, 0 for rows without positives."""
    rows = [unit(row) for row in z]
    right = [*zip(rows, labels, strict=True), *((unit(row), label) for row, label in past)]
    values = []
    for u, x in enumerate(rows):
        kept = [
            (dot(x, y) / temperature, label == labels[u])
            for v, (y, label) in enumerate(right)
            if u != v and (label == labels[u] or v >= len(rows) or negatives != "memory")
        ]
        positives = [logit for logit, same in kept if same]
        if positives:
            log_sum = math.log(math.fsum(math.exp(logit) for logit, _ in kept))
            values.append(log_sum - math.fsum(positives) / len(positives))
    return math.fsum(values) / max(len(rows), 1)


def rows_of(labels: list[int], seed: int, width: int = 4) -> tuple[Tensor, Tensor]:
    source = torch.Generator().manual_seed(seed)
    z = torch.randn(len(labels), width, generator=source, dtype=torch.float64)
    return z, torch.tensor(labels, dtype=torch.long)


@given(
    st.lists(st.lists(st.integers(0, 2), max_size=6), min_size=1, max_size=4),
    st.integers(1, 9),
    st.sampled_from(["batch and memory", "memory"]),
    st.booleans(),
    st.sampled_from([2.0, None]),
)
def test_rows_are_compared_with_past_rows(
    steps: list[list[int]], size: int, negatives: Any, include_self: bool, b: float | None
) -> None:
    fixed: dict[str, Any] = {} if b is None else {"bias": "fixed", "b0": b}
    sigmoid = SCSSupCon(4, include_self=include_self, **fixed)
    bank = MemoryBank(sigmoid, size, negatives=negatives)
    softmax = MemoryBank(SupCon(), size, negatives=negatives)
    past: Past = []
    for number, labels in enumerate(steps):
        z, y = rows_of(labels, number)
        value, expected = bank(z, y).item(), z.tolist()
        reference = sigmoid_reference(
            expected, labels, past, sigmoid.b.item(), negatives, include_self
        )
        assert value == pytest.approx(reference, rel=1e-9)
        reference = softmax_reference(expected, labels, past, negatives)
        assert softmax(z, y).item() == pytest.approx(reference, rel=1e-9, abs=1e-12)
        past = [*past, *zip(expected, labels, strict=True)][-size:]


@pytest.mark.parametrize("negatives", ["batch and memory", "memory"])
@pytest.mark.parametrize(
    "make", [lambda: SCSSupCon(3, preset="learned", beta=0.2), SupCon, lambda: CSSupCon(3)]
)
def test_gradcheck(make: Callable[[], Any], negatives: Any) -> None:
    labels = [0, 1, 1, 2]

    def loss(z: Tensor, *_: Tensor) -> Tensor:
        bank = MemoryBank(method, 6, negatives=negatives)
        for seed in range(2):
            bank(*rows_of(labels, seed))
        return bank(z, torch.tensor(labels))

    method = make()
    z, _ = rows_of(labels, 2)
    assert torch.autograd.gradcheck(loss, (z.requires_grad_(), *method.parameters()))


def test_references_are_stored_as_the_keys_of_moco() -> None:
    """The loss of MoCo: one positive of another encoder, negatives from the memory."""
    bank, past = MemoryBank(SimCLR(0.2), 5, negatives="memory"), Vectors()
    for step in range(4):
        queries, ids = rows_of([0, 1, 2], step)
        keys, _ = rows_of([0, 1, 2], 100 + step)
        value = bank(queries, ids, references=keys, reference_labels=ids)
        expected = 0.0
        for q, k in zip(queries.tolist(), keys.tolist(), strict=True):
            logits = [dot(unit(q), unit(other)) / 0.2 for other in [k, *past]]
            expected += math.log(math.fsum(map(math.exp, logits))) - logits[0]
        assert value.item() == pytest.approx(expected / 3, rel=1e-9, abs=1e-12)
        past = [*past, *keys.tolist()][-5:]


def test_past_rows_of_a_loss_without_labels_are_negatives() -> None:
    """Views `(B, V, D)` have the ids 0, 1, … in every batch."""
    bank, past = MemoryBank(SimCLR(0.5), 4), Past()
    for step in range(3):
        z = rows_of([0] * 4, step)[0].view(2, 2, 4)
        flat = z.transpose(0, 1).flatten(0, 1).tolist()
        expected = softmax_reference(flat, [0, 1, 0, 1], past, "batch and memory", 0.5)
        assert bank(z).item() == pytest.approx(expected, rel=1e-9)
        past = [*past, *((row, -1) for row in flat)][-4:]


def fixed(**options: Any) -> MemoryBank:
    return MemoryBank(SCSSupCon(4, bias="fixed", b0=3.0, pairs="all", **options), 8)


def test_one_value_per_row_and_ignored_labels() -> None:
    plain, rows = fixed(ignore_index=-1), fixed(ignore_index=-1, reduction="none")
    without = fixed()
    kept = [0, 1, 3]
    for step in range(3):
        z, y = rows_of([0, 1, -1, 1], step)
        values = rows(z, y)
        assert values.shape == (4,) and values[2] == 0
        torch.testing.assert_close(values.mean(), plain(z, y))
        torch.testing.assert_close(values.mean(), without(z[kept], y[kept]))


def test_weights_of_rows_and_pairs() -> None:
    """Past rows have weight 1, and so have all pairs with them."""
    labels, weights = [0, 1, 1], [2.0, 0.5, 1.0]
    mask = [[True, False, True], [True, True, True], [False, True, True]]
    bank = fixed()
    past, past_labels = rows_of([0, 2, 1, 1], 0)
    bank(past, past_labels)
    z, y = rows_of(labels, 1)
    value = bank(z, y, sample_weights=torch.tensor(weights), pair_weights=torch.tensor(mask))
    cost = total = 0.0
    for u in range(3):
        for v in range(7):
            other = z[v] if v < 3 else past[v - 3]
            label = labels[v] if v < 3 else int(past_labels[v - 3])
            w = weights[u] * (weights[v] * mask[u][v] if v < 3 else 1.0)
            a = 10 * dot(unit(z[u].tolist()), unit(other.tolist())) - 3
            cost += w * math.log1p(math.exp(-a if label == labels[u] else a))
            total += w
    assert value.item() == pytest.approx(cost / total, rel=1e-9)


def test_evaluation_neither_uses_nor_fills_the_memory() -> None:
    bank = MemoryBank(SCSSupCon(3), 8)
    bank(*rows_of([0, 1, 1, 2], 0))
    before = {key: value.clone() for key, value in bank.state_dict().items()}
    z, y = rows_of([0, 1, 1, 2], 1)
    assert torch.equal(bank.eval()(z, y), SCSSupCon(3).eval()(z, y))
    assert all(torch.equal(value, before[key]) for key, value in bank.state_dict().items())


def test_the_loss_alone_does_not_use_the_memory() -> None:
    loss = SCSSupCon(3)
    bank = MemoryBank(loss, 8)
    bank(*rows_of([0, 1, 1, 2], 0))
    z, y = rows_of([0, 1, 1, 2], 1)
    assert torch.equal(loss(z, y), SCSSupCon(3)(z, y))
    with pytest.raises(UserError):
        bank(z, y[:2])  # an error leaves no trace either
    assert torch.equal(loss(z, y), SCSSupCon(3)(z, y))


def test_a_restored_copy_continues_identically() -> None:
    bank, restored = (MemoryBank(SCSSupCon(3), 7) for _ in range(2))
    for step in range(3):
        bank(*rows_of([0, 1, 1, 2], step))
    restored.load_state_dict(bank.state_dict())
    for step in range(3, 6):
        assert torch.equal(*(m(*rows_of([0, 1, 1, 2], step)) for m in (bank, restored)))
    for key, value in bank.state_dict().items():
        assert torch.equal(value, restored.state_dict()[key])


def test_a_training_step_uses_the_memory() -> None:
    network = Network(nn.Identity(), nn.Identity())
    bank, by_hand = (MemoryBank(SCSSupCon(3), 8) for _ in range(2))
    for step in range(3):
        images, _ = rows_of([0] * 6, step)
        labels = torch.tensor([0, 1, 1])
        terms = bank.training_step(Batch(images, labels, torch.arange(3)), network)
        expected = by_hand.loss_terms(images, labels.repeat(2))
        assert terms.keys() == expected.keys() == {"contrast", "style"}
        assert all(torch.equal(terms[name], expected[name]) for name in terms)
    assert bank.scalars()["t"] == pytest.approx(10.0)


def test_errors_say_what_to_do() -> None:
    with pytest.raises(UserError, match="Baseline"):
        MemoryBank(Baseline(), 8)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="size"):
        MemoryBank(SupCon(), 0)
    with pytest.raises(UserError, match="negatives"):
        MemoryBank(SupCon(), 8, negatives="all")  # type: ignore[arg-type]
    with pytest.raises(UserError, match="integer label"):
        MemoryBank(SupCon(), 8)(torch.randn(2, 3), torch.eye(2))


LOSSES: dict[str, Callable[[bool], MemoryBank]] = {
    "sigmoid": lambda g: MemoryBank(SCSSupCon(3, preset="learned", gather_across_devices=g), 9),
    "solved": lambda g: MemoryBank(SCSSupCon(3, gather_across_devices=g), 9),
    "softmax": lambda g: MemoryBank(SupCon(gather_across_devices=g), 9, negatives="memory"),
}


def values_and_gradients(bank: MemoryBank, part: slice, world: int) -> list[np.ndarray]:
    """Return values, gradients of the rows of one process, and those of t and b."""
    results = []
    for step in range(3):
        z, y = rows_of([0, 1, 1, 2, 0, 2], step)
        z = z[part].requires_grad_()
        bank.zero_grad()
        value = bank(z, y[part])
        value.backward()
        scalars = [p.grad for p in bank.parameters() if p.grad is not None]
        results += [value.detach(), z.grad / world, *scalars]  # the loop averages gradients
    return [x.numpy() for x in results]


def test_several_processes_have_the_memory_of_one(
    on_ranks: Callable[[str, int], list[dict[str, np.ndarray]]],
) -> None:
    ranks = on_ranks(__file__, 2)
    for name, make in LOSSES.items():
        whole = values_and_gradients(make(False), slice(0, 6), 1)
        for k, expected in enumerate(whole):
            parts = [rank[f"{name} {k}"] for rank in ranks]
            if expected.ndim == 2:
                np.testing.assert_allclose(np.concatenate(parts), expected, rtol=1e-9, atol=1e-14)
            else:
                for part in parts:
                    np.testing.assert_allclose(part, expected, rtol=1e-9)


def run_rank(rank: int, world: int, folder: Path) -> None:
    store = f"file://{folder}/store"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=world)
    part = slice(0, 2) if rank == 0 else slice(2, 6)
    arrays = {
        f"{name} {k}": x
        for name, make in LOSSES.items()
        for k, x in enumerate(values_and_gradients(make(True), part, world))
    }
    np.savez(folder / f"{rank}.npz", **arrays)
    dist.destroy_process_group()


if __name__ == "__main__":
    run_rank(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
