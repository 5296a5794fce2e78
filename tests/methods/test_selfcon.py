import math
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from scs_supcon import SimCLR, SupCon
from scs_supcon.errors import UserError
from scs_supcon.methods import Batch, Network, TaskInfo
from scs_supcon.methods.selfcon import SelfCon
from scs_supcon.nn.head import unit

Vectors = list[list[float]]


def reference(exits: list[Vectors], labels: list[int], tau: float) -> float:
    """SupCon over all exits of all images (Bae et al., Eq. 4, a mean); rows of unit length."""

    def dot(x: list[float], y: list[float]) -> float:
        return math.fsum(a * b for a, b in zip(x, y, strict=True))

    rows = [(z, y) for exit in exits for z, y in zip(exit, labels, strict=True)]
    total = 0.0
    for i, (z, y) in enumerate(rows):
        others = [row for k, row in enumerate(rows) if k != i]
        positives = [p for p, label in others if label == y]
        log_z = math.log(math.fsum(math.exp(dot(z, a) / tau) for a, _ in others))
        total += math.fsum(log_z - dot(z, p) / tau for p in positives) / max(len(positives), 1)
    return total / len(rows)


class Convolutions(nn.Sequential):
    """Two stages, tapped after the first."""

    taps = {"0": 5}  # noqa: RUF012

    def __init__(self) -> None:
        super().__init__(
            nn.Conv2d(3, 5, 3), nn.ReLU(), nn.Conv2d(5, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten()
        )


def set_up(encoder: nn.Module, features: int = 4) -> tuple[SelfCon, Network]:
    network = Network(encoder, nn.Linear(features, 3)).double()
    return SelfCon().setup(
        TaskInfo(network, torch.arange(3).repeat(5), 3, features, 3, epochs=3)
    ), network


def batch(*shape: int) -> Batch:
    source = torch.Generator().manual_seed(0)
    images = torch.randn(4, *shape, generator=source, dtype=torch.float64)
    return Batch(images, torch.tensor([0, 1, 2, 1]), torch.arange(4))


@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=5),
    st.integers(2, 3),
    st.sampled_from([0.05, 0.5]),
    st.integers(0, 1 << 20),
)
def test_the_loss_equals_the_reference(
    labels: list[int], exits: int, temperature: float, seed: int
) -> None:
    source = torch.Generator().manual_seed(seed)
    z = 2 * torch.randn(len(labels), exits, 4, generator=source, dtype=torch.float64)
    value = SelfCon(temperature)(z, torch.tensor(labels))
    expected = reference([unit(z[:, k]).tolist() for k in range(exits)], labels, temperature)
    assert value.item() == pytest.approx(expected, rel=1e-10, abs=1e-13)


def test_special_cases_are_supcon_and_simclr() -> None:
    source = torch.Generator().manual_seed(0)
    z = torch.randn(6, 3, generator=source, dtype=torch.float64)
    labels = torch.tensor([0, 1, 1, 2, 0, 0])
    doubled = SupCon(0.1)(torch.cat([z, z]), labels.repeat(2))
    torch.testing.assert_close(SelfCon()(torch.stack([z, z], 1), labels), doubled)
    torch.testing.assert_close(SelfCon()(z, labels), SupCon(0.1)(z, labels))
    exits = torch.randn(6, 2, 3, generator=source, dtype=torch.float64)
    torch.testing.assert_close(SelfCon()(exits, torch.arange(6)), SimCLR(0.1)(exits))


def test_gradcheck() -> None:
    z = torch.randn(4, 2, 3, dtype=torch.float64, requires_grad=True)
    labels = torch.tensor([0, 1, 2, 1])
    assert torch.autograd.gradcheck(lambda z: SelfCon(0.5)(z, labels), (z,))


def test_an_exit_follows_the_tap() -> None:
    method, network = set_up(Convolutions())
    assert method.views == 1 and method.exits is not None and not method.adapted
    example = batch(3, 7, 7)
    value = method.training_step(example, network)["contrast"]
    tap = network.encoder.get_submodule("0")(example.images).mean((2, 3))
    exits = [network(example.images).embeddings, method.exits[0](tap)]
    expected = reference([unit(z).tolist() for z in exits], example.labels.tolist(), 0.1)
    assert value.item() == pytest.approx(expected, rel=1e-10)
    value.backward()
    for module in (network, method):
        assert all(p.grad is not None and p.grad.any() for p in module.parameters())
    assert not network.encoder.get_submodule("0")._forward_hooks


def test_without_taps_the_exit_starts_from_the_features() -> None:
    """As with cached features, for which the encoder is an identity."""
    method, network = set_up(nn.Identity(), features=6)
    example = batch(6)
    assert method.exits is not None
    exits = [network(example.images).embeddings, method.exits[0](example.images)]
    expected = reference([unit(z).tolist() for z in exits], example.labels.tolist(), 0.1)
    assert method.training_step(example, network)["contrast"].item() == pytest.approx(
        expected, rel=1e-10
    )


def test_micro_batches_are_tapped_too() -> None:
    results = []
    for size in (0, 2):
        torch.manual_seed(0)
        method, network = set_up(Convolutions())
        network.micro_batch = size
        value = method.training_step(batch(3, 7, 7), network)["contrast"]
        value.backward()
        parameters = (*network.parameters(), *method.parameters())
        results.append([value.detach(), *(p.grad for p in parameters)])
    torch.testing.assert_close(results[1], results[0], rtol=1e-10, atol=1e-14)


@pytest.mark.slow
def test_a_frozen_run_learns_from_cached_taps(
    shapes: Path, weights: Path, train_small: Any, tmp_path: Path
) -> None:
    """The cache holds the taps; the model predicts from the features alone, as evaluated."""
    import pyarrow.parquet as pq

    from scs_supcon import load

    cache = tmp_path / "cache"
    options = {"encoder": "tiny", "weights": weights, "frozen": True, "cache": cache}
    train_small(shapes, tmp_path / "supcon", method="supcon", **options)
    without_taps = set(cache.iterdir())
    train_small(shapes, tmp_path / "run", method="selfcon", **options)
    (with_taps,) = set(cache.iterdir()) - without_taps
    assert with_taps.is_dir()
    rows = pq.read_table(tmp_path / "run" / "predictions.parquet").to_pylist()
    predictions = load(tmp_path / "run").predict([shapes / row["name"] for row in rows]).records
    assert [prediction.label for prediction in predictions] == [row["prediction"] for row in rows]
    assert [prediction.probability for prediction in predictions] == pytest.approx(
        [max(row["probabilities"]) for row in rows], abs=1e-6
    )


def test_errors_say_what_is_missing_or_wrong() -> None:
    _, network = set_up(nn.Identity(), features=6)
    with pytest.raises(UserError, match="has not been set up"):
        SelfCon().training_step(batch(6), network)
    with pytest.raises(UserError, match=r"temperature must be .*, got 0"):
        SelfCon(0.0)
