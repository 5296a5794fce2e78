"""Momentum encoders, queues, classifiers, and resuming a run in the middle of an epoch."""

import copy
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from scs_supcon.errors import UserError
from scs_supcon.methods import Batch, Method, Network, Output, TaskInfo, build_method
from scs_supcon.methods.shared.classifier import check_labels, cross_entropy
from scs_supcon.methods.shared.momentum import MomentumEncoder
from scs_supcon.methods.shared.queue import Queue
from scs_supcon.nn.head import Projection


def network() -> Network:
    torch.manual_seed(0)
    encoder = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.ReLU())
    return Network(encoder, Projection(5, 4, centre=True))


def test_a_momentum_encoder_is_a_copy_without_gradients() -> None:
    original = network()
    average = MomentumEncoder(original)
    images = torch.randn(6, 6)
    assert torch.equal(average(images).embeddings, original(images).embeddings)
    assert not average(images).embeddings.requires_grad
    assert not any(p.requires_grad for p in average.parameters())
    assert all(p.requires_grad for p in original.parameters())
    pointers = {p.data_ptr() for p in average.parameters()}
    assert not pointers & {p.data_ptr() for p in original.parameters()}


@pytest.mark.parametrize("momentum", [0.0, 0.7, 1.0])
def test_a_momentum_encoder_is_a_moving_average(momentum: float) -> None:
    original = network()
    average = MomentumEncoder(original)
    before = copy.deepcopy(average.network)
    with torch.no_grad():
        for p in original.parameters():
            p.add_(torch.randn_like(p))
    original(torch.randn(9, 6))
    average.update(original, momentum)
    for new, old, target in zip(
        average.network.parameters(), before.parameters(), original.parameters(), strict=True
    ):
        torch.testing.assert_close(new, momentum * old + (1 - momentum) * target)
    for new, target in zip(average.network.buffers(), original.buffers(), strict=True):
        assert torch.equal(new, target)
    assert average.steps == 1


@given(st.integers(0, 6), st.lists(st.integers(0, 9), max_size=6))
def test_a_queue_holds_the_last_rows(size: int, pushes: list[int]) -> None:
    queue = Queue(size, 2, torch.zeros(0, dtype=torch.float64))
    expected: list[tuple[float, int]] = []
    number = 0
    for count in pushes:
        new = [(float(number + k), number + k) for k in range(count)]
        number += count
        queue.push(double([[x, -x] for x, _ in new]), torch.tensor([y for _, y in new]).long())
        expected = (expected + new)[-size:] if size else []
        rows, labels = queue.contents()
        contents = sorted(zip(rows.tolist(), labels.tolist(), strict=True))
        assert contents == [([x, -x], y) for x, y in expected]


def double(rows: list[list[float]]) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64).reshape(len(rows), 2)


def test_cross_entropy_of_no_rows_is_zero() -> None:
    assert cross_entropy(torch.zeros(0, 3), torch.zeros(0).long()) == 0
    check_labels(torch.zeros(0).long(), 3)
    with pytest.raises(UserError, match="got -1 to 2"):
        check_labels(torch.tensor([2, -1]), 3)


# Runs.

OPTIONS: dict[str, dict[str, Any]] = {
    "baseline": {},
    "byol": {"hidden": 8},
    "circle": {"gamma": 16.0},
    "cross_entropy_mlp": {},
    "cstcn": {"prototypes": 9, "queue": 10, "alternate": True},
    "dacl": {"rate": 0.1},
    "fncl": {"classifier_weight": 1.0},
    "oscs_supcon": {"preset": "paper"},
    "paco": {"queue": 10},
    "pcl": {"granularities": (1, 2)},
    "selfcon": {},
    "timescl": {},
}
EPOCHS, STEPS, IMAGES = 4, 3, 18
LABELS = torch.arange(IMAGES) % 3


class Run:
    """A small training run: network, method, optimiser and the number of steps."""

    def __init__(self, name: str) -> None:
        self.network = network()
        torch.manual_seed(1)
        self.method: Method = build_method(name, **OPTIONS[name]).setup(
            TaskInfo(self.network, LABELS, 3, 5, 4, EPOCHS)
        )
        groups = [{"params": list(self.network.parameters())}, *self.method.param_groups(0.05)]
        self.optimizer = torch.optim.SGD(groups, 0.05, momentum=0.9)
        self.step = 0

    def train(self, until: int) -> list[float]:
        """Train until the given step and return the losses."""
        values = []
        while self.step < until:
            epoch, k = divmod(self.step, STEPS)
            if k == 0:
                self.method.on_epoch_start(epoch, self.encode)
            value = torch.stack(
                list(self.method.training_step(self.batch(), self.network).values())
            ).sum()
            self.optimizer.zero_grad()
            value.backward()
            self.optimizer.step()
            self.step += 1
            self.method.after_step(self.network, self.step / EPOCHS / STEPS)
            values.append(value.item())
        return values

    def batch(self) -> Batch:
        indices = torch.arange(IMAGES).view(STEPS, -1)[self.step % STEPS]
        source = torch.Generator().manual_seed(self.step)
        images = all_images()[indices].repeat(self.method.views, 1)
        images = images + 0.1 * torch.randn(images.shape, generator=source)
        return Batch(images, LABELS[indices], indices)

    def encode(self, network: nn.Module) -> Output:
        training = network.training
        with torch.no_grad():
            output: Output = network.eval()(all_images())
        network.train(training)
        return output


def all_images() -> Tensor:
    source = torch.Generator().manual_seed(7)
    classes = torch.randn(3, 6, generator=source)
    return classes[LABELS] + 0.5 * torch.randn(IMAGES, 6, generator=source)


@pytest.mark.parametrize("stop", [1, 4, 7])
@pytest.mark.parametrize("name", OPTIONS)
def test_a_run_resumed_in_mid_epoch_continues_identically(name: str, stop: int) -> None:
    whole, first, second = Run(name), Run(name), Run(name)
    values = whole.train(EPOCHS * STEPS)
    assert first.train(stop) == values[:stop]
    second.network.load_state_dict(first.network.state_dict())
    second.method.load_state_dict(first.method.state_dict())
    second.optimizer.load_state_dict(first.optimizer.state_dict())
    second.step = stop
    assert second.train(EPOCHS * STEPS) == values[stop:]
    for expected, resumed in ((whole.network, second.network), (whole.method, second.method)):
        state = resumed.state_dict()
        assert all(torch.equal(v, state[k]) for k, v in expected.state_dict().items())


@pytest.mark.parametrize("name", OPTIONS)
def test_computing_a_loss_twice_changes_nothing(name: str) -> None:
    """Only `after_step` changes the state (keys in a queue, margins)."""
    run = Run(name)
    run.train(2 * STEPS)
    run.method.eval()
    run.network.eval()
    terms = run.method.training_step(run.batch(), run.network)
    state = copy.deepcopy(run.method.state_dict())
    assert run.method.training_step(run.batch(), run.network) == terms
    assert all(torch.equal(v, state[k]) for k, v in run.method.state_dict().items())
