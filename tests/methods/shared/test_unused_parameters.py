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


def steps(loss: torch.nn.Module, count: int, *optimizers: torch.optim.Optimizer) -> list[str]:
    """Return the messages of the warnings of `count` steps."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for k in range(count):
            loss(*batch(seed=k)).backward()
            for optimiser in optimizers:
                optimiser.step()
    return [str(w.message) for w in caught]


learners = pytest.mark.parametrize("learn", [("t", "b"), ("t",), ("b",)])


@learners
def test_one_warning_after_50_gradients_without_a_change(
    learn: tuple[str, ...],
) -> None:
    loss = SCSSupCon(preset="siglip", learn=learn)
    assert steps(loss, 49) == []
    (text,) = steps(loss, 1)
    assert "received 50 gradients" in text and "param_groups" in text
    assert steps(loss, 120) == []


@learners
def test_no_warning_if_the_optimiser_has_the_parameters(learn: tuple[str, ...]) -> None:
    loss = SCSSupCon(preset="siglip", learn=learn)
    assert steps(loss, 120, torch.optim.SGD(loss.param_groups(lr=1e-3))) == []


@pytest.mark.parametrize("forgotten", ["bias_log_t", "bias_b"])
def test_one_missing_parameter_is_enough_for_a_warning(forgotten: str) -> None:
    loss = SCSSupCon(preset="siglip")
    others = [p for name, p in loss.named_parameters() if name != forgotten]
    assert len(steps(loss, 120, torch.optim.SGD(others, lr=1e-3))) == 1


def test_no_warning_without_learnable_parameters() -> None:
    assert steps(SCSSupCon(), 60) == []
    fixed = SCSSupCon(preset="paper", learn=())
    assert steps(fixed, 60) == []


def test_a_copy_counts_separately() -> None:
    loss = SCSSupCon(preset="siglip")
    other = copy.deepcopy(loss)
    assert steps(other, 120, torch.optim.SGD(other.param_groups(lr=1e-3))) == []
    assert len(steps(loss, 60)) == 1


def test_only_training_steps_count() -> None:
    loss = SCSSupCon(preset="siglip").eval()
    assert steps(loss, 60) == []
    with torch.no_grad():
        for k in range(60):
            loss.train()(*batch(k))
    assert steps(loss, 49) == []


def test_loss_on_pairs_counts_too() -> None:
    """The check also works with a miner."""
    anchors, others = torch.tensor([0, 1, 2]), torch.tensor([3, 4, 5])
    adapter = MetricLearningLoss(SCSSupCon(preset="siglip"))

    class Mined(torch.nn.Module):
        def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
            value: Tensor = adapter(embeddings, labels, (anchors, others, anchors, others + 1))
            return value

    assert len(steps(Mined(), 60)) == 1


def test_the_warning_names_the_cause() -> None:
    """Not in an optimiser, no learning rate, no step, steps that are rounded away."""
    loss = SCSSupCon(preset="siglip")
    (text,) = steps(loss, 50)
    assert "no optimiser has it" in text
    loss = SCSSupCon(preset="siglip")
    (text,) = steps(loss, 50, torch.optim.SGD(loss.parameters(), lr=0.0))
    assert "its learning rate is 0" in text
    loss = SCSSupCon(preset="siglip").float()
    (text,) = steps(loss, 50, torch.optim.SGD(loss.parameters(), lr=1e-12))
    assert "learning rate 1e-12" in text and "too small for float32" in text
