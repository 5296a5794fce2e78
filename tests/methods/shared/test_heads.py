"""Several heads side by side equal heads trained alone."""

import copy

import pytest
import torch
from torch import Tensor, nn

from scs_supcon.errors import UserError
from scs_supcon.methods import Batch, Method, TaskInfo, build_method
from scs_supcon.methods.scs_supcon import SCSSupCon
from scs_supcon.methods.shared.heads import HeadEnsemble
from scs_supcon.nn.head import Projection, ProjectionHeads
from scs_supcon.nn.network import Network

WIDTH, DIM, CLASSES, IMAGES = 10, 8, 3, 24
LABELS = torch.arange(IMAGES) % CLASSES
OPTIONS = {"scs_supcon": {"common_dim": 6}, "paco": {"queue": 12}}


def build(name: str, heads: int = 2) -> tuple[HeadEnsemble, Network]:
    network = Network(
        nn.Identity(), ProjectionHeads(Projection(WIDTH, DIM, centre=True) for _ in range(heads))
    ).double()
    method = HeadEnsemble([build_method(name, **OPTIONS.get(name, {})) for _ in range(heads)])
    method.setup(TaskInfo(network, LABELS, CLASSES, WIDTH, DIM, 2))
    return method.double(), network


def batch(step: int, views: int) -> Batch:
    indices = torch.arange(12) + 12 * (step % 2)
    generator = torch.Generator().manual_seed(step)
    images = torch.randn(views * 12, WIDTH, generator=generator, dtype=torch.float64)
    return Batch(images, LABELS[indices], indices)


def train(method: Method, network: Network, steps: int = 5) -> list[float]:
    parameters = [*network.parameters(), *method.parameters()]
    optimizer = torch.optim.SGD([p for p in parameters if p.requires_grad], lr=0.1, momentum=0.9)
    losses = []
    for step in range(steps):
        loss = torch.stack(list(method.training_step(batch(step, method.views), network).values()))
        optimizer.zero_grad()
        loss.sum().backward()
        optimizer.step()
        method.after_step(network, (step + 1) / steps)
        losses.append(float(loss.detach().sum()))
    return losses


@pytest.mark.parametrize("name", ["scs_supcon", "supcon", "paco", "byol"])
def test_heads_side_by_side_equal_heads_trained_alone(name: str) -> None:
    method, network = build(name)
    heads = network.projection
    assert isinstance(heads, ProjectionHeads)
    alone = [
        (copy.deepcopy(member), Network(nn.Identity(), copy.deepcopy(head)))  # type: ignore[arg-type]
        for member, head in zip(method.methods, heads.heads, strict=True)
    ]
    before = copy.deepcopy(heads.state_dict())
    losses = train(method, network)
    sums = [sum(values) for values in zip(*(train(*pair) for pair in alone), strict=True)]
    assert losses == pytest.approx(sums, rel=1e-10)
    for index, (member, single) in enumerate(alone):
        assert_equal_states(heads.heads[index], single.projection)
        assert_equal_states(method.methods[index], member)
    assert any(not torch.equal(value, before[key]) for key, value in heads.state_dict().items())


def assert_equal_states(first: nn.Module, second: nn.Module) -> None:
    expected = second.state_dict()
    for key, value in first.state_dict().items():
        torch.testing.assert_close(value, expected[key], rtol=1e-9, atol=1e-12, msg=key)


@pytest.mark.parametrize("name", ["supcon", "paco"])  # paco: to the first view
def test_the_network_is_applied_once_to_a_batch(name: str) -> None:
    method, network = build(name, heads=3)
    calls: list[int] = []
    network.register_forward_hook(lambda *_: calls.append(1))
    method.training_step(batch(0, method.views), network)
    assert len(calls) == 1


def test_the_loss_is_the_sum_over_heads() -> None:
    method, _ = build("scs_supcon")
    embeddings = torch.randn(12, 2, DIM, dtype=torch.float64)
    terms = method.loss_terms(embeddings, LABELS[:12])
    own = [m.loss_terms(embeddings[:, k], LABELS[:12]) for k, m in enumerate(method.methods)]
    for name, value in terms.items():
        torch.testing.assert_close(value, own[0][name] + own[1][name])


def test_scalars_and_pair_parameters_are_means() -> None:
    method = HeadEnsemble([SCSSupCon(6, preset="learned"), SCSSupCon(6, preset="learned")])
    with torch.no_grad():
        for index, member in enumerate(method.methods):
            assert isinstance(member, SCSSupCon)
            member.b.add_(index)
    first, second = (member.pair_parameters() for member in method.methods)
    assert first is not None and second is not None
    expected = [(a + b) / 2 for a, b in zip(first, second, strict=True)]
    assert method.pair_parameters() == pytest.approx(expected)
    scalars = [member.scalars() for member in method.methods]
    for name, value in method.scalars().items():
        assert value == pytest.approx((scalars[0][name] + scalars[1][name]) / 2)
    assert HeadEnsemble([build_method("supcon")] * 2).pair_parameters() is None


def test_class_probabilities_are_means() -> None:
    method, _ = build("paco")
    features = torch.randn(7, WIDTH, dtype=torch.float64)
    embeddings = torch.randn(7, 2, DIM, dtype=torch.float64)
    logits = method.class_logits(features, embeddings)
    assert logits is not None
    own: list[Tensor] = []
    for k, member in enumerate(method.methods):
        values = member.class_logits(features, embeddings[:, k])
        assert values is not None
        own.append(values.softmax(1))
    torch.testing.assert_close(logits.softmax(1), (own[0] + own[1]) / 2)
    without, _ = build("supcon")
    assert without.class_logits(features, embeddings) is None
    assert without.linear_classifier("features") is None


def test_the_mean_classifier_of_features() -> None:
    method, _ = build("baseline")
    classifier = method.linear_classifier("features")
    assert classifier is not None
    own = [member.linear_classifier("features") for member in method.methods]
    assert own[0] is not None and own[1] is not None
    torch.testing.assert_close(classifier[0], (own[0][0] + own[1][0]) / 2)
    torch.testing.assert_close(classifier[1], (own[0][1] + own[1][1]) / 2)


def test_methods_with_inner_layers_need_a_single_head() -> None:
    with pytest.raises(UserError, match="SelfCon cannot be used with several heads"):
        HeadEnsemble([build_method("selfcon"), build_method("selfcon")])
