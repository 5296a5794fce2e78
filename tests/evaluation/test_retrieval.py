"""P@1 and MAP@R against loops and against pytorch-metric-learning."""

import pytest
import torch
from pytorch_metric_learning.distances import CosineSimilarity
from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator
from pytorch_metric_learning.utils.inference import CustomKNN

from scs_supcon.evaluation import metrics
from scs_supcon.evaluation.record import Retrieval
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
        for rank in range(1, r + 1):
            if labels[others[rank - 1]] == label:
                total += sum(labels[i] == label for i in others[:rank]) / rank
        averages.append(total / r)
    return sum(firsts) / len(firsts), sum(averages) / len(averages)


def test_values_agree_with_the_definition_and_pytorch_metric_learning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    vectors, labels = rows()
    result = retrieval(vectors, labels)
    first, precision = reference(vectors.tolist(), labels.tolist())
    assert result.precision_at_1 == pytest.approx(first, abs=1e-12)
    assert result.map_at_r == pytest.approx(precision, abs=1e-12)
    expected = AccuracyCalculator(
        include=("precision_at_1", "mean_average_precision_at_r"),
        k="max_bin_count",
        device=torch.device("cpu"),
        knn_func=CustomKNN(CosineSimilarity()),
    ).get_accuracy(vectors, labels)
    assert result.precision_at_1 == pytest.approx(expected["precision_at_1"], abs=1e-9)
    assert result.map_at_r == pytest.approx(expected["mean_average_precision_at_r"], abs=1e-9)
    monkeypatch.setattr(metrics, "CHUNK", 7 * 120)
    chunked = retrieval(vectors, labels)
    assert dict(chunked) == pytest.approx(dict(result), abs=1e-12)


def test_the_only_image_of_a_class_is_not_a_query() -> None:
    vectors, labels = rows(30, 3)
    labels[4] = 9
    result = retrieval(vectors, labels)
    first, precision = reference(vectors.tolist(), labels.tolist())
    assert dict(result) == pytest.approx({"precision_at_1": first, "map_at_r": precision})
    assert retrieval(vectors[:3], torch.tensor([0, 1, 2])) == Retrieval(
        precision_at_1=None, map_at_r=None
    )


def test_at_most_max_queries_are_used() -> None:
    vectors, labels = rows(400)
    all_queries, half = retrieval(vectors, labels), retrieval(vectors, labels, max_queries=200)
    assert half != all_queries
    assert half.map_at_r == pytest.approx(all_queries.map_at_r, abs=0.05)


def test_separated_classes_are_retrieved_completely() -> None:
    labels = torch.arange(12) % 3
    assert retrieval(torch.eye(3).double()[labels], labels) == Retrieval(
        precision_at_1=1.0, map_at_r=1.0
    )
