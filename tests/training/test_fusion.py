"""The fused similarity and what is chosen on held-out images, against plain loops."""

import math

import pytest
import torch
from torch import Tensor

from scs_supcon.inference.decision import fit_pairs
from scs_supcon.nn.head import Projection, ProjectionHeads
from scs_supcon.nn.whitening import fit_whitenings
from scs_supcon.training.fusion import (
    HeldOut,
    choose_fusion,
    held_out_similarities,
    join_held_out,
)

WIDTH, CLASSES = 6, 3


def images(n: int, seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(n) % CLASSES
    return torch.eye(WIDTH)[labels] + 0.4 * torch.randn(n, WIDTH, generator=generator), labels


def unit(row: list[float]) -> list[float]:
    length = math.hypot(*row)
    return [v / length for v in row]


def dot(a: list[float], b: list[float]) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))


def cosines_to_means(train: Tensor, labels: Tensor, rows: Tensor) -> list[list[float]]:
    """Return the cosine of each row with the mean of the unit rows of each class."""
    means = []
    for c in range(CLASSES):
        own = [unit(row) for row, y in zip(train.tolist(), labels.tolist(), strict=True) if y == c]
        means.append([sum(column) / len(own) for column in zip(*own, strict=True)])
    return [[dot(unit(row), unit(mean)) for mean in means] for row in rows.tolist()]


@pytest.mark.parametrize("probe_input", ["common", "embeddings", "features"])
def test_similarities_to_class_means_and_of_pairs(probe_input) -> None:
    heads = ProjectionHeads(Projection(WIDTH, 5).double() for _ in range(2)).eval()
    train, held_out = images(12, 0), images(7, 1)
    features = train[0].double(), held_out[0].double()
    whitenings = fit_whitenings(*train, [0.2, 0.6], 100)
    result = held_out_similarities(
        whitenings,
        heads,
        probe_input,
        4,
        (features[0], train[1]),
        (features[1], held_out[1]),
        CLASSES,
    )
    pairs = [(i, j) for i in range(7) for j in range(i + 1, 7)]
    for index, whitening in enumerate(whitenings):
        rows = [whitening(part) for part in features]
        expected = torch.tensor(cosines_to_means(rows[0], train[1], rows[1]), dtype=torch.double)
        torch.testing.assert_close(result.whitened[index], expected, rtol=0, atol=1e-12)
        products = [dot(rows[1][i].tolist(), rows[1][j].tolist()) for i, j in pairs]
        assert result.whitened_pairs[index].tolist() == pytest.approx(products, abs=1e-12)
    with torch.no_grad():
        learned = [learned_field(heads(part), part, probe_input) for part in features]
    expected = torch.tensor(cosines_to_means(learned[0], train[1], learned[1]), dtype=torch.double)
    torch.testing.assert_close(result.learned, expected, rtol=0, atol=1e-6)
    assert result.same.tolist() == [bool(held_out[1][i] == held_out[1][j]) for i, j in pairs]
    assert torch.equal(result.labels, held_out[1])


def test_more_held_out_images_only_form_pairs() -> None:
    heads = Projection(WIDTH, 5).eval()
    train, held_out, more = images(12, 0), images(4, 1), images(3, 2)
    whitenings = fit_whitenings(*train, [0.2], 100)
    arguments = whitenings, heads, "common", 4, train
    alone = held_out_similarities(*arguments, held_out, CLASSES)
    paired = held_out_similarities(*arguments, held_out, CLASSES, more)
    assert torch.equal(paired.labels, held_out[1])
    torch.testing.assert_close(paired.learned, alone.learned)
    torch.testing.assert_close(paired.whitened, alone.whitened)
    joined = tuple(torch.cat(parts) for parts in zip(held_out, more, strict=True))
    together = held_out_similarities(*arguments, joined, CLASSES)
    assert len(paired.same) == 7 * 6 / 2
    assert torch.equal(paired.same, together.same)
    torch.testing.assert_close(paired.learned_pairs, together.learned_pairs)
    torch.testing.assert_close(paired.whitened_pairs, together.whitened_pairs)


def learned_field(embeddings: Tensor, features: Tensor, probe_input: str) -> Tensor:
    if probe_input == "features":
        return features
    width = 4 if probe_input == "common" else 5
    rows = [[unit(head[:width]) for head in row] for row in embeddings.tolist()]
    return torch.tensor([[v for head in row for v in head] for row in rows], dtype=torch.double)


def scores(n: int, quality: float, seed: int) -> Tensor:
    """Similarities that are higher for the right class by `quality`."""
    generator = torch.Generator().manual_seed(seed)
    noise = 0.3 * torch.randn(n, CLASSES, generator=generator, dtype=torch.float64)
    return noise + quality * torch.eye(CLASSES)[torch.arange(n) % CLASSES]


def held(whitened: list[float], learned: float, n: int = 90) -> HeldOut:
    labels = torch.arange(n) % CLASSES
    first, second = torch.triu_indices(n, n, 1)
    same = labels[first] == labels[second]
    noise = 0.2 * torch.randn(len(whitened) + 1, len(same), dtype=torch.float64)
    return HeldOut(
        labels,
        torch.stack([scores(n, quality, seed) for seed, quality in enumerate(whitened)]),
        scores(n, learned, 99),
        same,
        noise[1:] + 0.5 * same,
        noise[0] + 0.5 * same,
    )


def log_likelihood(similarities: Tensor, labels: Tensor, temperature: float) -> float:
    total = 0.0
    for row, label in zip(similarities.tolist(), labels.tolist(), strict=True):
        exponentials = [math.exp(value / temperature) for value in row]
        total += math.log(exponentials[label] / sum(exponentials))
    return total / len(labels)


def test_the_most_likely_whitening_is_chosen() -> None:
    held_out = held([0.1, 0.6, 0.3], 0.4)
    assert choose_fusion(held_out, [0.5]).whitening == 1


def test_the_first_omega_is_kept_unless_another_is_clearly_better() -> None:
    equal = choose_fusion(held([0.4], 0.4), [0.5, 0.0, 0.25, 0.75, 1.0])
    assert equal.omega == 0.5
    assert choose_fusion(held([0.0], 1.0), [0.5, 0.0, 1.0]).omega == 0.0
    assert choose_fusion(held([1.0], 0.0), [0.5, 0.0, 1.0]).omega == 1.0


def test_omega_is_not_changed_by_a_single_image() -> None:
    assert choose_fusion(held([1.0], 0.0, n=1), [0.5, 1.0]).omega == 0.5


def test_temperature_and_pairs_belong_to_the_fused_similarity() -> None:
    held_out = held([0.4, 0.2], 0.5)
    fusion = choose_fusion(held_out, [0.25])
    similarities = 0.25 * held_out.whitened[0] + 0.75 * held_out.learned
    torch.testing.assert_close(fusion.similarities, similarities)
    best = log_likelihood(similarities, held_out.labels, fusion.temperature)
    for factor in (0.8, 1.25):
        other = log_likelihood(similarities, held_out.labels, factor * fusion.temperature)
        assert other < best
    pairs = 0.25 * held_out.whitened_pairs[0] + 0.75 * held_out.learned_pairs
    assert (fusion.t, fusion.b) == pytest.approx(fit_pairs(pairs, held_out.same))


def test_folds_are_joined_image_by_image() -> None:
    first, second = held([0.3, 0.2], 0.5, n=9), held([0.3, 0.2], 0.5, n=6)
    joined = join_held_out([first, second])
    assert joined.whitened.shape == (2, 15, CLASSES)
    assert torch.equal(joined.whitened[:, 9:], second.whitened)
    assert torch.equal(joined.learned[:9], first.learned)
    assert len(joined.same) == joined.whitened_pairs.shape[1] == 36 + 15
