import copy
import warnings

import pytest
import torch
from torch import Tensor

from scs_supcon import SCSSupCon
from scs_supcon.pml import MetricLearningLoss


def batch(seed: int) -> tuple[Tensor, Tensor]:
    source = torch.Generator().manual_seed(seed)
    return torch.randn(8, 8, generator=source, requires_grad=True), torch.arange(8) % 3


def steps(loss: torch.nn.Module, count: int, *optimisers: torch.optim.Optimizer) -> list[str]:
    """Texts of the warnings that `count` steps raise."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for k in range(count):
            loss(*batch(seed=k)).backward()
            for optimiser in optimisers:
                optimiser.step()
    return [str(w.message) for w in caught]


learners = pytest.mark.parametrize("learn", [("t", "b"), ("t",), ("b",)])


@learners
def test_forgotten_parameters_are_named_once_after_50_backward_passes(
    learn: tuple[str, ...],
) -> None:
    loss = SCSSupCon(preset="siglip", learn=learn)
    assert steps(loss, 49) == []
    (text,) = steps(loss, 1)
    assert "50 backward passes" in text and "param_groups" in text
    assert steps(loss, 120) == []


@learners
def test_an_optimiser_that_has_them_silences_the_warning(learn: tuple[str, ...]) -> None:
    loss = SCSSupCon(preset="siglip", learn=learn)
    assert steps(loss, 120, torch.optim.SGD(loss.param_groups(lr=1e-3))) == []


@pytest.mark.parametrize("forgotten", ["log_t", "b"])
def test_one_of_the_two_forgotten(forgotten: str) -> None:
    loss = SCSSupCon(preset="siglip")
    given = [p for name, p in loss.named_parameters() if name != forgotten]
    assert len(steps(loss, 120, torch.optim.SGD(given, lr=1e-3))) == 1


def test_nothing_learnt_nothing_said() -> None:
    assert steps(SCSSupCon(), 60) == []
    fixed = SCSSupCon(preset="paper", learn=())
    assert steps(fixed, 60) == []


def test_a_copy_watches_its_own_parameters() -> None:
    loss = SCSSupCon(preset="siglip")
    twin = copy.deepcopy(loss)
    assert steps(twin, 120, torch.optim.SGD(twin.param_groups(lr=1e-3))) == []
    assert len(steps(loss, 60)) == 1


def test_only_training_counts() -> None:
    loss = SCSSupCon(preset="siglip").eval()
    assert steps(loss, 60) == []
    with torch.no_grad():
        for k in range(60):
            loss.train()(*batch(k))
    assert steps(loss, 49) == []


def test_listed_pairs_count_too() -> None:
    """A trainer with a miner that was not told of the loss's parameters."""
    anchors, others = torch.tensor([0, 1, 2]), torch.tensor([3, 4, 5])
    adapter = MetricLearningLoss(SCSSupCon(preset="siglip"))

    class Mined(torch.nn.Module):
        def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
            value: Tensor = adapter(embeddings, labels, (anchors, others, anchors, others + 1))
            return value

    assert len(steps(Mined(), 60)) == 1
