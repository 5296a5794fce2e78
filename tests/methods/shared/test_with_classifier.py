"""A classifier of the features, trained together with a method."""

import math

import pytest
import torch
from torch import Tensor, nn

from scs_supcon.errors import UserError
from scs_supcon.methods import Batch, Method, TaskInfo, build_method
from scs_supcon.methods.shared.heads import HeadEnsemble
from scs_supcon.methods.shared.with_classifier import WithClassifier
from scs_supcon.nn.head import Projection, ProjectionHeads
from scs_supcon.nn.network import Network

LABELS = torch.tensor([0, 2, 1, 1])
SHARE = 0.7


def build(name: str = "scs_supcon", heads: int = 1) -> tuple[WithClassifier, Method, Network]:
    """Return the method with a classifier, the same method alone, and a network."""
    torch.manual_seed(0)
    projections = [Projection(5, 8, centre=True) for _ in range(heads)]
    projection = projections[0] if heads == 1 else ProjectionHeads(projections)
    network = Network(nn.Linear(6, 5), projection).double()
    options = {"common_dim": 6} if name == "scs_supcon" else {}

    def make() -> Method:
        members = [build_method(name, **options) for _ in range(heads)]
        return members[0] if heads == 1 else HeadEnsemble(members)

    task = TaskInfo(network, LABELS, 3, 5, 8, epochs=1)
    both = WithClassifier(make(), SHARE).setup(task)
    return both, make().setup(task), network


def batch(seed: int = 0, soft: Tensor | None = None) -> Batch:
    images = torch.randn(8, 6, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return Batch(images, LABELS, torch.arange(4), soft)


def cross_entropy(method: WithClassifier, features: Tensor, p: Tensor) -> float:
    """−(1/n) Σ_i Σ_k p_ik log softmax(W h_i + a)_k, by loops."""
    assert method.classifier is not None
    w, a = method.classifier.weight.tolist(), method.classifier.bias.tolist()
    loss = 0.0
    for h, row in zip(features.tolist(), p.tolist(), strict=True):
        logits = [
            math.fsum(x * y for x, y in zip(h, weights, strict=True)) + bias
            for weights, bias in zip(w, a, strict=True)
        ]
        log_z = math.log(math.fsum(map(math.exp, logits)))
        loss -= math.fsum(q * (x - log_z) for q, x in zip(row, logits, strict=True))
    return loss / len(p)


@pytest.mark.parametrize("soft", [False, True])
@pytest.mark.parametrize("heads", [1, 3])
def test_the_loss_is_that_of_the_method_and_cross_entropy(heads: int, soft: bool) -> None:
    both, alone, network = build(heads=heads)
    p = torch.rand(4, 3, dtype=torch.float64).softmax(1) if soft else None
    example = batch(soft=p) if heads == 1 else batch()
    terms = both.training_step(example, network)
    expected = alone.training_step(example, network)
    assert terms.keys() == {*expected, "classify"}
    for name, value in expected.items():
        torch.testing.assert_close(terms[name], (1 - SHARE) * value)
    targets = torch.eye(3)[LABELS] if example.label_probabilities is None else p
    assert targets is not None
    loss = cross_entropy(both, network(example.images).features, targets.repeat(2, 1))
    assert terms["classify"].item() == pytest.approx(SHARE * loss, rel=1e-10)


def test_gradcheck() -> None:
    both, _, network = build()
    assert both.classifier is not None

    def loss(images: Tensor, *_: Tensor) -> Tensor:
        step = Batch(images, LABELS, torch.arange(4))
        return torch.stack(list(both.training_step(step, network).values())).sum()

    both.eval()  # b is solved without a gradient, so only the classifier is checked
    leaves = (both.classifier.weight, both.classifier.bias)
    assert torch.autograd.gradcheck(lambda *_: loss(batch().images), leaves)


@pytest.mark.parametrize("heads", [1, 3])
def test_the_network_is_applied_once(heads: int) -> None:
    both, _, network = build("supcon", heads)
    calls: list[int] = []
    network.register_forward_hook(lambda *_: calls.append(1))
    both.training_step(batch(), network)
    assert len(calls) == 1


def test_it_passes_on_what_the_method_knows() -> None:
    both, alone, network = build()
    both.training_step(batch(), network)
    alone.training_step(batch(), network)
    assert both.scalars() == pytest.approx(alone.scalars())
    assert both.pair_parameters() == pytest.approx(alone.pair_parameters())
    assert (both.views, both.probe_input) == (alone.views, alone.probe_input)
    assert both.supports_soft_labels


def test_the_classifier_sees_the_features_and_has_weight_decay() -> None:
    both, _, network = build()
    features, embeddings = network(batch().images)
    classifier, logits = both.linear_classifier("features"), both.class_logits(features, embeddings)
    assert classifier is not None and logits is not None and both.classifier is not None
    torch.testing.assert_close(logits, features @ classifier[0].T + classifier[1])
    assert both.linear_classifier("common") is None
    decayed = [g["params"] for g in both.param_groups(0.1, 0.01) if g["weight_decay"]]
    assert decayed == [[both.classifier.weight]]
    listed = {p for group in both.param_groups(0.1) for p in group["params"]}
    assert listed == {p for p in both.parameters() if p.requires_grad}


@pytest.mark.parametrize("name", ["baseline", "scs_joint", "selfcon"])
def test_a_method_with_its_own_classifier_or_taps_is_an_error(name: str) -> None:
    with pytest.raises(UserError, match=r"pretrain.cross_entropy = 0.5 cannot be used with"):
        WithClassifier(build_method(name), 0.5)
    with pytest.raises(UserError, match="cannot be used with"):
        WithClassifier(HeadEnsemble([build_method(name), build_method(name)]), 0.5)
