import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from scs_supcon import SCSSupCon
from scs_supcon.errors import UserError
from scs_supcon.methods import Batch, Network, TaskInfo, build_method, constructor_parameters
from scs_supcon.methods.scs_joint import SCSJoint

LABELS = torch.tensor([0, 2, 1, 1])


def set_up(**options: Any) -> tuple[SCSJoint, Network]:
    torch.manual_seed(0)
    network = Network(nn.Linear(6, 5), nn.Linear(5, 8)).double()
    method = SCSJoint(**options)
    return method.setup(TaskInfo(network, LABELS, 3, 5, 8, epochs=1)), network


def batch(seed: int = 0) -> Batch:
    images = torch.randn(8, 6, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return Batch(images, LABELS, torch.arange(4))


def reference(
    method: SCSJoint, network: Network, example: Batch, t: float, b: float
) -> tuple[float, float]:
    """(−(1/n) Σ_i Σ_k p_ik log softmax(W h_i + a)_k, mean cost of the pairs), by loops."""
    assert method.classifier is not None
    features, embeddings = network(example.images)
    w, a = method.classifier.weight.tolist(), method.classifier.bias.tolist()
    soft = example.label_probabilities
    p = (torch.eye(3)[example.labels] if soft is None else soft).repeat(2, 1).tolist()
    classify = 0.0
    for h, row in zip(features.tolist(), p, strict=True):
        logits = [
            math.fsum(x * y for x, y in zip(h, weights, strict=True)) + bias
            for weights, bias in zip(w, a, strict=True)
        ]
        log_z = math.log(math.fsum(map(math.exp, logits)))
        classify -= math.fsum(q * (x - log_z) for q, x in zip(row, logits, strict=True))
    commons = []
    for z in embeddings[:, :6].tolist():
        commons.append([x / math.hypot(*z) for x in z])
    contrast = 0.0
    for x, p_x in zip(commons, p, strict=True):
        for y, p_y in zip(commons, p, strict=True):
            q = math.fsum(u * v for u, v in zip(p_x, p_y, strict=True))
            logit = t * math.fsum(u * v for u, v in zip(x, y, strict=True)) - b
            contrast += q * math.log1p(math.exp(-logit)) + (1 - q) * math.log1p(math.exp(logit))
    return classify / len(p), contrast / len(p) ** 2


@pytest.mark.parametrize("soft", [False, True])
def test_the_terms_equal_the_reference(soft: bool) -> None:
    method, network = set_up(preset="learned", b0=2.0, eta=0.3)
    example = batch()
    if soft:
        p = torch.rand(4, 3, dtype=torch.float64).softmax(1)
        example = replace(example, label_probabilities=p)
    terms = method.training_step(example, network)
    classify, contrast = reference(method, network, example, 10.0, 2.0)
    assert terms["classify"].item() == pytest.approx(classify, rel=1e-10)
    assert terms["contrast"].item() == pytest.approx(0.3 * contrast, rel=1e-10)


def test_the_pair_terms_are_those_of_scs_supcon() -> None:
    method, network = set_up(beta=0.2, eta=0.5)
    alone = SCSSupCon(beta=0.2)
    for step in range(3):
        expected = alone.training_step(batch(step), network)
        terms = method.training_step(batch(step), network)
        assert terms.keys() == {*expected, "classify"}
        for name, value in expected.items():
            torch.testing.assert_close(terms[name], 0.5 * value, rtol=1e-12, atol=0)


@pytest.mark.parametrize("soft", [False, True])
def test_gradcheck(soft: bool) -> None:
    method, network = set_up(preset="learned", eta=0.5, beta=0.3)
    assert method.classifier is not None
    example = batch()
    p = torch.rand(4, 3, dtype=torch.float64).softmax(1) if soft else None

    def loss(images: Tensor, *_: Tensor) -> Tensor:
        step = Batch(images, example.labels, example.indices, p)
        return torch.stack(list(method.training_step(step, network).values())).sum()

    leaves = (example.images.requires_grad_(), method.classifier.weight, method.log_t, method.b)
    assert torch.autograd.gradcheck(loss, leaves)


def test_the_classifier_sees_the_features() -> None:
    method, network = set_up()
    features, embeddings = network(batch().images)
    logits = method.class_logits(features, embeddings)
    classifier = method.linear_classifier("features")
    assert logits is not None and classifier is not None
    torch.testing.assert_close(logits, features @ classifier[0].T + classifier[1])
    assert method.linear_classifier("common") is None
    assert SCSJoint().class_logits(features, embeddings) is None
    assert method.pair_parameters() is None


def test_only_the_classifier_has_weight_decay() -> None:
    method, _ = set_up(preset="learned")
    decay, none = method.param_groups(0.1, 0.01)
    assert method.classifier is not None
    assert decay["params"] == [method.classifier.weight] and decay["weight_decay"] == 0.01
    assert none["weight_decay"] == 0 and len(none["params"]) == 3


def test_options_are_those_of_scs_supcon_and_eta() -> None:
    assert constructor_parameters(SCSJoint).keys() == {*constructor_parameters(SCSSupCon), "eta"}
    assert build_method("scs_joint", "paper", eta=2.0).b.requires_grad  # type: ignore[union-attr]
    with pytest.raises(UserError, match="eta must be finite and at least 0, got -1"):
        SCSJoint(eta=-1)
    with pytest.raises(UserError, match="SCSJoint has not been set up"):
        SCSJoint().training_step(batch(), Network(nn.Identity(), nn.Identity()))
