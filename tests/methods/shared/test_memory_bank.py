import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from scs_supcon.methods.shared.memory_bank import MemoryBank


def bank(classes: int = 3, size: int = 2) -> MemoryBank:
    return MemoryBank(classes, size, 1, torch.zeros(0, dtype=torch.float64))


def stored(memory: MemoryBank) -> dict[int, list[float]]:
    """Return the sorted values of each class."""
    rows, labels = memory.contents()
    result: dict[int, list[float]] = {}
    for value, label in zip(rows[:, 0].tolist(), labels.tolist(), strict=True):
        result.setdefault(label, []).append(value)
    return {label: sorted(values) for label, values in result.items()}


@given(st.lists(st.lists(st.integers(0, 2), max_size=7), max_size=5), st.integers(1, 4))
def test_the_last_rows_of_each_class_are_kept(pushes: list[list[int]], size: int) -> None:
    memory, expected, number = bank(size=size), {}, 0.0
    for labels in pushes:
        rows = []
        for label in labels:
            rows.append([number])
            expected[label] = [*expected.get(label, []), number][-size:]
            number += 1
        memory.push(torch.tensor(rows).view(-1, 1), torch.tensor(labels, dtype=torch.long))
        assert stored(memory) == {label: sorted(values) for label, values in expected.items()}


def test_an_empty_bank_has_no_rows() -> None:
    rows, labels = bank().contents()
    assert rows.shape == (0, 1) and labels.shape == (0,)
    assert rows.dtype == torch.float64 and labels.dtype == torch.long


def test_labels_are_sorted_and_rows_have_no_gradient() -> None:
    memory = bank()
    memory.push(torch.ones(3, 1, requires_grad=True) * 2, torch.tensor([2, 0, 2]))
    rows, labels = memory.contents()
    assert labels.tolist() == [0, 2, 2]
    assert not rows.requires_grad and rows.tolist() == [[2], [2], [2]]


def test_a_restored_bank_continues_identically() -> None:
    memory, restored = bank(), bank()

    def push(to: MemoryBank, values: list[float]) -> Tensor:
        to.push(torch.tensor(values)[:, None], torch.zeros(len(values), dtype=torch.long))
        return to.contents()[0]

    push(memory, [1, 2, 3])
    restored.load_state_dict(copy.deepcopy(memory.state_dict()))
    assert torch.equal(push(memory, [4]), push(restored, [4]))
    assert stored(restored) == {0: [3, 4]}


@pytest.mark.parametrize("size", [0, 1])
def test_a_bank_may_be_tiny(size: int) -> None:
    memory = bank(size=size)
    memory.push(torch.tensor([[1.0], [2.0]]), torch.tensor([1, 1]))
    assert stored(memory) == ({1: [2.0]} if size else {})
