import math
import textwrap
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from scs_supcon.errors import UserError
from scs_supcon.methods import (
    Batch,
    Method,
    Network,
    Output,
    TaskInfo,
    check_soft_labels,
    method_class,
    probe_input_for,
)
from scs_supcon.methods.shared.base import (
    check_not_negative,
    check_one_of,
    check_positive,
    check_share,
    flatten,
    flatten_soft_labels,
)
from scs_supcon.nn.head import Projection


class Sum(Method):
    """Two terms: the sum of the rows, and w times the sum of the labels."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor(2.0))
        self.fixed = nn.Parameter(torch.tensor(1.0), requires_grad=False)

    def loss_terms(self, embeddings: Tensor, labels: Tensor | None) -> dict[str, Tensor]:
        rows, labels = flatten(embeddings, labels)
        return {"rows": rows.sum(), "labels": self.w * labels.sum()}


def test_a_loss_is_the_sum_of_its_terms() -> None:
    value = Sum()(torch.ones(3, 2), torch.tensor([1, 2, 3]))
    assert value.item() == 6 + 2 * 6


def test_a_method_must_implement_loss_terms() -> None:
    with pytest.raises(NotImplementedError):
        Method()(torch.ones(3, 2), torch.arange(3))


def test_defaults_suit_a_method_of_two_views_and_two_stages() -> None:
    method = Sum()
    network = Network(nn.Linear(4, 3), Projection(3, 2))
    task = TaskInfo(network, torch.tensor([0, 1, 1]), 4, 3, 2, epochs=9)
    assert method.views == 2
    assert method.setup(task) is method
    features, embeddings = torch.ones(2, 3), torch.ones(2, 2)
    assert task.class_counts == (1, 2, 0, 0)
    assert probe_input_for(method, frozen=False) == "features"
    assert probe_input_for(method, frozen=True) == "embeddings"
    assert method.class_logits(features, embeddings) is None
    assert method.scalars() == {}
    assert method.pair_parameters() is None
    method.on_epoch_start(0, lambda net: Output(features, embeddings))
    method.after_step(network, 0.5)


def test_the_example_of_the_docstring_runs() -> None:
    code = textwrap.dedent((Method.__doc__ or "").partition("```python\n")[2].partition("```")[0])
    namespace: dict[str, Any] = {}
    exec(code, namespace)
    loss = namespace["CosineLoss"](margin=0.0)
    rows, labels = torch.tensor([[2.0, 0.0], [3.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 0, 1])
    assert loss(rows, labels).item() == 0
    assert loss(rows, labels.flip(0)).item() == pytest.approx(4 / 9)


def test_param_groups_contain_the_learnable_parameters() -> None:
    method = Sum()
    method.m = nn.Parameter(torch.zeros(2, 2))
    assert method.param_groups(0.1, 0.2) == [
        {"params": [method.m], "lr": 0.1, "weight_decay": 0.2},
        {"params": [method.w], "lr": 0.1, "weight_decay": 0.0},
    ]
    assert Method().param_groups(0.1) == []


def test_labels_are_repeated_for_every_view() -> None:
    """Rows are view-major: view 1 of every image, then view 2."""
    received: dict[str, Any] = {}

    class Recorder(Method):
        def loss_terms(self, embeddings: Tensor, labels: Tensor | None) -> dict[str, Tensor]:
            received.update(embeddings=embeddings, labels=labels)
            return {"nothing": embeddings.sum()}

    network = Network(nn.Identity(), nn.Flatten())
    images = torch.arange(6.0)[:, None]
    Recorder().training_step(Batch(images, torch.tensor([7, 8, 9]), torch.arange(3)), network)
    assert torch.equal(received["embeddings"], images)
    assert received["labels"].tolist() == [7, 8, 9, 7, 8, 9]


def test_a_function_is_applied_to_all_tensors_of_a_batch() -> None:
    hard = Batch(torch.ones(4, 1), torch.tensor([0, 1]), torch.tensor([5, 6]))
    assert hard.map(lambda x: x + 1).labels.tolist() == [1, 2]
    assert hard.map(lambda x: x + 1).label_probabilities is None
    soft = Batch(hard.images, hard.labels, hard.indices, torch.eye(2))
    half = soft.map(lambda x: x.to(torch.float16)).label_probabilities
    assert half is not None and half.dtype == torch.float16


def test_methods_without_soft_labels_name_those_with_them() -> None:
    with pytest.raises(UserError, match=r"Sum cannot use the soft labels .* baseline"):
        check_soft_labels(Sum())
    with pytest.raises(UserError, match="SupCon cannot use"):
        check_soft_labels(method_class("supcon"))
    check_soft_labels(method_class("baseline"))


def test_soft_labels_are_flattened_with_the_embeddings() -> None:
    x, soft = torch.arange(12.0).view(3, 2, 2), torch.tensor([[1.0, 0], [0.5, 0.5], [0.2, 0.8]])
    rows, probabilities = flatten_soft_labels(x.half(), soft)
    assert rows.dtype == probabilities.dtype == torch.float32
    assert rows.tolist() == [[0, 1], [4, 5], [8, 9], [2, 3], [6, 7], [10, 11]]
    assert torch.equal(probabilities, soft.repeat(2, 1))
    assert flatten_soft_labels(x[:0, 0], soft[:0])[1].shape == (0, 2)


@pytest.mark.parametrize(
    ("soft", "message"),
    [
        (torch.tensor([0, 1]), r"shape \(2, classes\), got \(2,\)"),
        (torch.eye(2).long(), "floating-point numbers, got torch.int64"),
        (torch.eye(3), r"\(3\) must equal that of the embeddings \(2\)"),
        (torch.tensor([[1.0, 0], [0.5, 0.4]]), r"sum to 1, got \[0.5, 0.4.*\] in row 1"),
        (torch.tensor([[1.5, -0.5], [0.5, 0.5]]), r"at least 0 .* row 0"),
        (torch.tensor([[1.0, 0], [math.nan, 0.5]]), "row 1"),
    ],
)
def test_wrong_soft_labels_are_explained(soft: Tensor, message: str) -> None:
    with pytest.raises(UserError, match=message):
        flatten_soft_labels(torch.ones(2, 3), soft)


def test_integer_embeddings_are_an_error() -> None:
    with pytest.raises(UserError, match=r"must be floating-point numbers, got torch\.int64"):
        flatten(torch.ones(2, 3, dtype=torch.int64), torch.arange(2))


def test_flatten_is_view_major_and_at_least_float32() -> None:
    x = torch.arange(12.0).view(3, 2, 2)
    rows, labels = flatten(x, torch.tensor([5, 6, 7]))
    assert rows.tolist() == [[0, 1], [4, 5], [8, 9], [2, 3], [6, 7], [10, 11]]
    assert labels.tolist() == [5, 6, 7, 5, 6, 7]
    assert flatten(x.double(), torch.arange(3))[0].dtype == torch.float64
    for half in (torch.float16, torch.bfloat16):
        assert flatten(x.to(half), torch.arange(3))[0].dtype == torch.float32
    for small in (torch.uint8, torch.int16, torch.int32):
        assert flatten(x, torch.arange(3, dtype=small))[1].dtype == torch.int64


@pytest.mark.parametrize("value", [0, -1, math.nan, math.inf])
def test_positive_rejects_other_numbers(value: float) -> None:
    check_positive(weight=1e-9)
    with pytest.raises(UserError, match=f"weight must be .*, got {value}"):
        check_positive(weight=value)


@pytest.mark.parametrize("value", [-1e-9, math.nan, math.inf])
def test_not_negative_rejects_other_numbers(value: float) -> None:
    check_not_negative(weight=0.0)
    with pytest.raises(UserError, match=f"weight must be .*, got {value}"):
        check_not_negative(weight=value)


@pytest.mark.parametrize("value", [-0.1, 1.1, math.nan])
def test_share_rejects_numbers_outside_0_to_1(value: float) -> None:
    check_share(momentum=0.0, warmup=1.0)
    with pytest.raises(UserError, match=f"momentum must be between 0 and 1, got {value}"):
        check_share(momentum=value)


def test_one_of_rejects_other_values() -> None:
    check_one_of("scale", "multiply", ("multiply", "divide"))
    with pytest.raises(UserError, match="scale must be one of 'multiply', 'divide', got 'add'"):
        check_one_of("scale", "add", ("multiply", "divide"))
