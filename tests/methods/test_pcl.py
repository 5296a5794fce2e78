import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import small_batches
from scs_supcon import SupCon
from scs_supcon.errors import UserError
from scs_supcon.methods import Batch, Network, Output, TaskInfo
from scs_supcon.methods.pcl import (
    PCL,
    Clustering,
    concentrations,
    prototype_loss,
    spherical_kmeans,
)
from scs_supcon.methods.shared.momentum import momentum_encoder
from scs_supcon.nn.head import unit
from small_batches import double

Vectors = list[list[float]]


def reference(z: Vectors, cluster: list[int], centres: Vectors, phi: list[float], m: int) -> float:
    """Σ_i −log [exp(z_i·c_s/φ_s) / Σ_{j∈{s}∪O} exp(z_i·c_j/φ_j)]: Li et al. (2021), Eq. 11.

    O: clusters of other classes (cluster j is of class j // m) that have members (φ > 0).
    """
    total = 0.0
    for row, s in zip(z, cluster, strict=True):
        logits = {
            j: math.fsum(a * b for a, b in zip(row, c, strict=True)) / phi[j]
            for j, c in enumerate(centres)
            if j == s or (j // m != s // m and phi[j] > 0)
        }
        top = max(logits.values())
        total += top + math.log(math.fsum(math.exp(x - top) for x in logits.values())) - logits[s]
    return total


def reference_phi(
    distances: list[float], member: list[int], clusters: int, tau: float
) -> list[float]:
    """Eq. 12 with α = 10, then the rules of the official code: largest φ, percentiles, mean τ."""
    raw: list[float | None] = []
    for k in range(clusters):
        members = [d for d, c in zip(distances, member, strict=True) if c == k]
        if not members:
            raw.append(None)
        elif len(members) == 1 or not any(members):
            raw.append(-1.0)
        else:
            raw.append(math.fsum(members) / (len(members) * math.log(len(members) + 10)))
    spreads = [x for x in raw if x is not None and x > 0]
    if not spreads:
        return [0.0 if x is None else tau for x in raw]
    filled = [x if x is None or x > 0 else max(spreads) for x in raw]
    ordered = sorted(x for x in filled if x is not None)

    def percentile(share: float) -> float:
        position = share * (len(ordered) - 1)
        low = math.floor(position)
        high = min(low + 1, len(ordered) - 1)
        return ordered[low] + (position - low) * (ordered[high] - ordered[low])

    clamped = [x if x is None else min(max(x, percentile(0.1)), percentile(0.9)) for x in filled]
    mean = math.fsum(x for x in clamped if x is not None) / len(ordered)
    return [0.0 if x is None else tau * x / mean for x in clamped]


T4, _ = small_batches.T4


@pytest.mark.parametrize(
    ("phi", "expected"), [([0.2, 0.2], 0.0513817415), ([0.2, 0.4], 0.1856442310)]
)
def test_gold_values(phi: list[float], expected: float) -> None:
    centres = unit(T4.view(2, 2, 2).mean(1))
    value = prototype_loss(T4, torch.tensor([0, 0, 1, 1]), centres, double(phi), 1) / 4
    assert value.item() == pytest.approx(expected, abs=1e-9)


@given(
    st.integers(1, 4),
    st.sampled_from([1, 2, 4]),
    st.integers(1, 7),
    st.integers(0, 1 << 20),
)
def test_the_loss_equals_the_reference(classes: int, m: int, n: int, seed: int) -> None:
    source = torch.Generator().manual_seed(seed)
    z = unit(torch.randn(n, 3, generator=source, dtype=torch.float64)).requires_grad_()
    centres = unit(torch.randn(classes * m, 3, generator=source, dtype=torch.float64))
    cluster = torch.randint(0, classes * m, (n,), generator=source)
    phi = torch.rand(classes * m, generator=source, dtype=torch.float64) + 0.05
    phi[torch.rand(classes * m, generator=source) < 0.3] = 0  # empty clusters
    phi[cluster] += 0.1
    value = prototype_loss(z, cluster, centres, phi, m)
    expected = reference(z.tolist(), cluster.tolist(), centres.tolist(), phi.tolist(), m)
    assert value.item() == pytest.approx(expected, rel=1e-10, abs=1e-12)
    value.backward()
    assert z.grad is not None and z.grad.isfinite().all()


def test_one_prototype_per_class_and_one_temperature_is_cross_entropy() -> None:
    source = torch.Generator().manual_seed(0)
    z, centres = (unit(torch.randn(k, 4, generator=source, dtype=torch.float64)) for k in (6, 3))
    labels = torch.tensor([0, 2, 1, 1, 0, 2])
    value = prototype_loss(z, labels, centres, double([0.1] * 3), 1) / 6
    expected = nn.functional.cross_entropy(z @ centres.T / 0.1, labels)
    torch.testing.assert_close(value, expected)


def test_gradcheck() -> None:
    source = torch.Generator().manual_seed(0)
    z = torch.randn(5, 3, generator=source, dtype=torch.float64, requires_grad=True)
    centres = unit(torch.randn(6, 3, generator=source, dtype=torch.float64))
    phi, cluster = double([0.3, 0.2, 0.0, 0.5, 0.4, 0.0]), torch.tensor([0, 1, 3, 4, 4])
    assert torch.autograd.gradcheck(lambda z: prototype_loss(z, cluster, centres, phi, 2), (z,))


# Clusters.


def test_the_spread_of_a_cluster() -> None:
    """Distances 0.1, 0.2, 0.3: 0.2/ln 13. Two clusters are needed because the mean is fixed."""
    distances = double([0.1, 0.2, 0.3, 0.2, 0.2])
    low, high = 0.2 / math.log(13), 0.2 / math.log(12)
    assert low == pytest.approx(0.0779742491, abs=1e-10)
    phi = concentrations(distances, torch.tensor([0, 0, 0, 1, 1]), 2, 1.0)
    clamped = [low + 0.1 * (high - low), low + 0.9 * (high - low)]
    assert phi.tolist() == pytest.approx([2 * x / sum(clamped) for x in clamped])


@given(
    st.lists(st.tuples(st.sampled_from([0.0, 0.1, 0.25, 0.7, 1.3]), st.integers(0, 5)), max_size=14)
)
def test_concentrations_equal_the_reference(members: list[tuple[float, int]]) -> None:
    distances, member = [d for d, _ in members], [k for _, k in members]
    phi = concentrations(double(distances), torch.tensor(member, dtype=torch.long), 7, 0.1)
    assert phi.tolist() == pytest.approx(reference_phi(distances, member, 7, 0.1), rel=1e-10)


def test_k_means_finds_separated_clusters() -> None:
    source = torch.Generator().manual_seed(0)
    true = unit(double([[1, 0, 0], [0, 1, 0], [-1, 0.1, 0], [0, 0, 1]]))
    cluster = torch.arange(40) % 4
    noise = 0.05 * torch.randn(40, 3, generator=source, dtype=torch.float64)
    rows = unit(true[cluster] + noise)
    assigned, centres = spherical_kmeans(rows, 4)
    assert len({(int(a), int(b)) for a, b in zip(assigned, cluster, strict=True)}) == 4
    torch.testing.assert_close(torch.linalg.vector_norm(centres, dim=1), torch.ones(4).double())
    for k in range(4):
        torch.testing.assert_close(centres[k], unit(rows[assigned == k].sum(0)[None])[0])
    again, _ = spherical_kmeans(rows, 4)
    assert torch.equal(again, assigned)


def test_k_means_of_few_or_equal_rows() -> None:
    assigned, centres = spherical_kmeans(T4[:2], 4)
    assert sorted(assigned.tolist()) == [0, 1] and len(centres) == 2
    assigned, _ = spherical_kmeans(T4[[0, 0, 0]], 2)
    assert assigned.tolist() == [0, 0, 0]


@pytest.mark.parametrize("m", [1, 2, 4])
def test_clusters_lie_within_classes(m: int) -> None:
    """One class has a single image, one has none; the label −1 is not a class."""
    source = torch.Generator().manual_seed(0)
    rows = unit(torch.randn(9, 3, generator=source, dtype=torch.float64))
    labels = torch.tensor([0, 0, 0, 0, 0, 2, 3, 3, -1])
    clustering = Clustering(m, 4, 9, torch.zeros(4 * m, 3, dtype=torch.float64))
    clustering.fit(rows, labels, 0.1)
    member = clustering.member[:8]
    assert torch.equal(member // m, labels[:8]) and clustering.member[8] == -1
    filled = torch.bincount(member, minlength=4 * m) > 0
    assert torch.equal(clustering.phi > 0, filled)
    assert clustering.phi[filled].mean().item() == pytest.approx(0.1)
    for k in filled.nonzero()[:, 0].tolist():
        members = rows[:8][member == k]
        torch.testing.assert_close(clustering.centres[k], unit(members.sum(0)[None])[0])
    distances = []
    for row, k in zip(rows[:8], member.tolist(), strict=True):
        mean = rows[:8][member == k].mean(0).tolist()  # not of unit length
        distances.append(math.dist(row.tolist(), mean))
    phi = reference_phi(distances, member.tolist(), 4 * m, 0.1)
    assert clustering.phi.tolist() == pytest.approx(phi, rel=1e-9, abs=1e-12)
    value = clustering(rows, torch.arange(9)) * 9
    expected = reference(
        rows[:8].tolist(),
        member.tolist(),
        clustering.centres.tolist(),
        clustering.phi.tolist(),
        m,
    )
    assert value.item() == pytest.approx(expected, rel=1e-10)


# In training.

LABELS = torch.tensor([0, 1, 2, 1, 0, 0, 2, 1, 1, 2, 0, 0])


def set_up(**options: Any) -> tuple[PCL, Network, Callable[[nn.Module], Output]]:
    torch.manual_seed(0)
    network = Network(nn.Linear(6, 5), nn.Linear(5, 4)).double()
    method = PCL(**options).setup(TaskInfo(network, LABELS, 3, 5, 4, epochs=20))
    images = torch.randn(12, 6, dtype=torch.float64)

    def encode(network: nn.Module) -> Output:
        output: Output = network(images)
        return output

    return method, network, encode


def batch(indices: Tensor) -> Batch:
    source = torch.Generator().manual_seed(int(indices[0]))
    images = torch.randn(2 * len(indices), 6, generator=source, dtype=torch.float64)
    return Batch(images, LABELS[indices], indices)


def test_during_the_warm_up_the_loss_is_supcon() -> None:
    method, network, encode = set_up()
    for indices in torch.arange(12).split(4):
        method.on_epoch_start(1, encode)
        example = batch(indices)
        terms = method.training_step(example, network)
        z = network(example.images).embeddings
        torch.testing.assert_close(terms["contrast"], SupCon(0.1)(z, example.labels.repeat(2)))
        assert terms["prototype"] == 0


def test_after_the_warm_up_each_granularity_adds_its_mean() -> None:
    method, network, encode = set_up(granularities=(1, 2))
    assert method.clusterings is not None
    method.training_step(batch(torch.arange(12)), network)
    with torch.no_grad():
        momentum_encoder(method).network.get_parameter("encoder.weight").add_(0.3)
    method.on_epoch_start(2, encode)
    averages = unit(encode(momentum_encoder(method).network).embeddings)
    expected = 0.0
    example = batch(torch.arange(3, 8))
    z = unit(network(example.images).embeddings)
    for m, clustering in zip((1, 2), method.clusterings, strict=True):
        assert isinstance(clustering, Clustering)
        again = Clustering(m, 3, 12, torch.zeros(3 * m, 4, dtype=torch.float64))
        again.fit(averages, LABELS, 0.1)
        for name in ("centres", "phi", "member"):
            assert torch.equal(getattr(again, name), getattr(clustering, name))
        cluster = again.member[example.indices].repeat(2)
        expected += reference(
            z.tolist(), cluster.tolist(), again.centres.tolist(), again.phi.tolist(), m
        )
    terms = method.training_step(example, network)
    assert terms["prototype"].item() == pytest.approx(expected / 2 / 10, rel=1e-10)
    terms["prototype"].backward()
    assert all(p.grad is not None for p in network.parameters())
    assert not list(method.param_groups(0.1)) and method.adapted


def test_the_state_restores_the_clusters() -> None:
    method, network, encode = set_up()
    method.training_step(batch(torch.arange(12)), network)
    method.after_step(network, 0.1)
    method.on_epoch_start(5, encode)
    other, _, _ = set_up()
    other.load_state_dict(method.state_dict())
    example = batch(torch.arange(4))
    assert other.training_step(example, network) == method.training_step(example, network)


def test_forward_is_supcon() -> None:
    z, labels = torch.randn(6, 4), torch.tensor([0, 1, 1, 0, 2, 2])
    assert torch.equal(PCL()(z, labels), SupCon(0.1)(z, labels))


def test_errors_say_what_is_missing_or_wrong() -> None:
    method, network, _ = set_up()
    with pytest.raises(UserError, match="has not been set up"):
        PCL().training_step(batch(torch.arange(4)), network)
    example = batch(torch.arange(4))
    with pytest.raises(UserError, match=r"number of training images .12., got 12"):
        method.training_step(
            Batch(example.images, example.labels, torch.tensor([0, 1, 2, 12])), network
        )
    for options in ({"granularities": ()}, {"granularities": (0,)}, {"warmup": 2.0}):
        with pytest.raises(UserError, match=next(iter(options))):
            PCL(**options)
