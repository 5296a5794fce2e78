"""What the style field knows, on fields made so that the answer is known."""

import math

import pytest
import torch

from scs_supcon.evaluation.leakage import effective_rank, leakage, read, sentence, view_agreement
from scs_supcon.nn.head import unit


def fields(n: int, leak: float, seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Four classes, in common as directions, in style by `leak` of one."""
    draw = torch.Generator().manual_seed(seed)
    labels = torch.arange(n) % 4
    noise = torch.randn(n, 12, generator=draw, dtype=torch.float64)
    of_class = 5 * torch.eye(4, 6, dtype=torch.float64)[labels]
    return unit(of_class + noise[:, :6]), unit(leak * of_class + noise[:, 6:]), labels


def test_a_style_without_the_class_stays_at_chance() -> None:
    found = leakage(fields(800, 0, 0), fields(400, 0, 1), 4, None)
    assert found is not None
    assert found["chance"] == 0.25
    assert found["class_from_common"] > 0.95
    assert found["class_from_style"] == pytest.approx(0.25, abs=0.07)
    assert "next to nothing" in found["sentence"]
    assert found["style_columns"] == 6
    assert found["style_rank"] == pytest.approx(6, abs=0.1)


def test_a_style_with_the_class_is_caught() -> None:
    found = leakage(fields(800, 1, 0), fields(400, 1, 1), 4, None)
    assert found is not None
    assert found["class_from_style"] > 0.95
    assert "as much of the class as common does" in found["sentence"]


def test_chance_is_the_share_of_the_largest_class() -> None:
    common, style, labels = fields(40, 0, 0)
    kept = torch.nonzero((labels == 0) | (torch.arange(40) < 12))[:, 0]
    found = leakage((common, style, labels), (common[kept], style[kept], labels[kept]), 4, None)
    assert found is not None
    assert found["chance"] == pytest.approx(10 / len(kept))


def test_without_style_or_training_images_nothing_is_said() -> None:
    common, style, labels = fields(12, 0, 0)
    asked = common, style, labels
    assert leakage((common, style[:, :0], labels), (common, style[:, :0], labels), 4, None) is None
    assert leakage((common[:0], style[:0], labels[:0]), asked, 4, None) is None


def test_reading_learns_from_the_first_and_asks_the_second() -> None:
    rows, labels = torch.eye(3).repeat(4, 1), torch.arange(12) % 3
    assert read(rows, labels, torch.eye(3), torch.tensor([0, 1, 2]), 3) == 1
    assert read(rows, labels, torch.eye(3), torch.tensor([1, 2, 0]), 3) == 0


@pytest.mark.parametrize(
    ("style", "verdict"),
    [
        (0.11, "next to nothing"),
        (0.3, "a little"),
        (0.6, "much"),
        (0.85, "almost as much"),
        (0.95, "as much"),
    ],
)
def test_the_words_follow_the_numbers(style: float, verdict: str) -> None:
    text = sentence({"chance": 0.1, "class_from_common": 0.9, "class_from_style": style})
    assert f"style holds {verdict}" in text
    assert f"{style:.0%} of the images" in text
    assert text.count(".") == 1, "one sentence"


def test_view_agreement_is_a_mean_over_pairs() -> None:
    draw = torch.Generator().manual_seed(0)
    first, second, third, fourth = (
        unit(torch.randn(9, 4, generator=draw, dtype=torch.float64)) for _ in range(4)
    )
    labels = torch.tensor([0, 0, 0, 1, 1, 2, 2, 2, 3])
    found = view_agreement((third, fourth), (first, second), labels)
    same = [float(first[i] @ second[i]) for i in range(9)]
    mates = [
        float(first[i] @ second[j])
        for i in range(9)
        for j in range(9)
        if i != j and labels[i] == labels[j]
    ]
    assert found["same_image"] == pytest.approx(math.fsum(same) / 9)
    assert found["classmates"] == pytest.approx(math.fsum(mates) / len(mates))
    other = [float(third[i] @ fourth[i]) for i in range(9)]
    assert found["common_same_image"] == pytest.approx(math.fsum(other) / 9)
    alone = view_agreement((third, fourth), (first, second), torch.arange(9))
    assert alone["classmates"] is None


def test_effective_rank_counts_directions() -> None:
    line = torch.linspace(-1, 1, 50)[:, None] * torch.tensor([[1.0, 2.0, 3.0]])
    assert effective_rank(line) == pytest.approx(1)
    assert effective_rank(torch.cat([torch.eye(3), -torch.eye(3)])) == pytest.approx(3)
    uneven = torch.cat([torch.eye(2), -torch.eye(2)]) * torch.tensor([3.0, 1.0])
    p = [0.9, 0.1]
    assert effective_rank(uneven) == pytest.approx(math.exp(-sum(x * math.log(x) for x in p)))
    assert effective_rank(torch.ones(5, 3)) == 0
