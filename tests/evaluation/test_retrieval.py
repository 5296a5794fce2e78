"""P@1 and MAP@R against loops and against pytorch-metric-learning."""

import pytest
import torch
from pytorch_metric_learning.distances import CosineSimilarity
from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator
from pytorch_metric_learning.utils.inference import CustomKNN

from scs_supcon.evaluation import metrics
from scs_supcon.evaluation.retrieval import retrieval
from scs_supcon.nn.head import unit


def rows(n: int = 120, classes: int = 6, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, classes, (n,), generator=draw)
    centres = torch.randn(classes, 8, generator=draw, dtype=torch.float64)
    noise = torch.randn(n, 8, generator=draw, dtype=torch.float64)
    return unit(centres[labels] + 1.2 * noise), labels


def reference(vectors: list[list[float]], labels: list[int]) -> tuple[float, float]:
    """Section 3.2 of Musgrave et al., image by image."""
    firsts, averages = [], []
    for query, label in enumerate(labels):
        others = [i for i in range(len(labels)) if i != query]
        r = sum(labels[i] == label for i in others)
        if r == 0:
            continue
        similarity = {
            i: sum(a * b for a, b in zip(vectors[query], vectors[i], strict=True)) for i in others
        }
        others.sort(key=lambda i: -similarity[i])
        firsts.append(labels[others[0]] == label)
        total = 0.0
        for place in range(1, r + 1):
            if labels[others[place - 1]] == label:
                total += sum(labels[i] == label for i in others[:place]) / place
        averages.append(total / r)
    return sum(firsts) / len(firsts), sum(averages) / len(averages)


def test_it_is_the_definition_and_the_peers_number(monkeypatch: pytest.MonkeyPatch) -> None:
    vectors, labels = rows()
    found = retrieval(vectors, labels)
    first, precision = reference(vectors.tolist(), labels.tolist())
    assert found["p_at_1"] == pytest.approx(first, abs=1e-12)
    assert found["map_at_r"] == pytest.approx(precision, abs=1e-12)
    peer = AccuracyCalculator(
        include=("precision_at_1", "mean_average_precision_at_r"),
        k="max_bin_count",
        device=torch.device("cpu"),
        knn_func=CustomKNN(CosineSimilarity()),
    ).get_accuracy(vectors, labels)
    assert found["p_at_1"] == pytest.approx(peer["precision_at_1"], abs=1e-9)
    assert found["map_at_r"] == pytest.approx(peer["mean_average_precision_at_r"], abs=1e-9)
    monkeypatch.setattr(metrics, "CHUNK", 7 * 120)
    assert retrieval(vectors, labels) == pytest.approx(found, abs=1e-12)


def test_a_image_alone_in_its_class_asks_nothing_but_can_be_found() -> None:
    vectors, labels = rows(30, 3)
    labels[4] = 9
    found = retrieval(vectors, labels)
    first, precision = reference(vectors.tolist(), labels.tolist())
    assert found == pytest.approx({"p_at_1": first, "map_at_r": precision})
    assert retrieval(vectors[:3], torch.tensor([0, 1, 2])) == {"p_at_1": None, "map_at_r": None}


def test_many_images_are_asked_in_part() -> None:
    vectors, labels = rows(400)
    all_of_them, some = retrieval(vectors, labels), retrieval(vectors, labels, queries=200)
    assert some != all_of_them
    assert some["map_at_r"] == pytest.approx(all_of_them["map_at_r"], abs=0.05)


def test_classes_apart_are_found_whole() -> None:
    labels = torch.arange(12) % 3
    assert retrieval(torch.eye(3).double()[labels], labels) == {"p_at_1": 1.0, "map_at_r": 1.0}
