"""Bootstrap intervals against resampling image by image."""

import numpy as np
import pytest
import torch

from scs_supcon.evaluation import bootstrap
from scs_supcon.evaluation.bootstrap import class_intervals

GOLD_F1 = (0.5443926733585682, 0.6317940655196075)
GOLD_RECALL = (0.5687891167846713, 0.658822575076419)


def predictions(n: int = 300, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Make classes of different size, one never predicted and one never present."""
    draw = np.random.default_rng(seed)
    labels = draw.choice(5, n, p=[0.4, 0.3, 0.2, 0.06, 0.04])
    wrong = draw.choice([0, 1, 2, 3, 6], n)
    predicted = np.where((draw.random(n) < 0.7) & (labels < 4), labels, wrong)
    return torch.from_numpy(predicted), torch.from_numpy(labels)


def test_intervals_agree_with_resampled_images() -> None:
    predicted, labels = predictions()
    intervals = class_intervals(predicted, labels)
    generator = torch.Generator().manual_seed(1)
    f1, recall = [], []
    for _ in range(2000):
        rows = torch.randint(len(labels), (len(labels),), generator=generator)
        cells = torch.bincount(7 * labels[rows] + predicted[rows], minlength=49).view(7, 7).double()
        present = cells.sum(1) > 0
        ratios = 2 * cells.diagonal() / (cells.sum(0) + cells.sum(1))
        f1.append(float(ratios[present].mean()))
        recall.append(float((cells.diagonal() / cells.sum(1))[present].mean()))
    for name, values in (("macro_f1", f1), ("balanced_accuracy", recall)):
        expected = np.quantile(values, [0.025, 0.975])
        width = expected[1] - expected[0]
        assert np.allclose(intervals[name], expected, atol=0.08 * width)


def test_intervals_are_those_of_version_0_1() -> None:
    intervals = class_intervals(*predictions())
    assert intervals["macro_f1"] == pytest.approx(GOLD_F1, abs=1e-12)
    assert intervals["balanced_accuracy"] == pytest.approx(GOLD_RECALL, abs=1e-12)


def test_drawing_in_chunks_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = class_intervals(*predictions())
    monkeypatch.setattr(bootstrap, "MAX_COUNTS", 1000)
    assert class_intervals(*predictions()) == whole


def test_intervals_depend_on_the_seed_only() -> None:
    assert class_intervals(*predictions()) == class_intervals(*predictions())
    assert class_intervals(*predictions()) != class_intervals(*predictions(), seed=1)
    labels = torch.arange(40) % 4
    for low, high in class_intervals(labels, labels).values():
        assert low == high == 1


def test_a_wider_level_gives_a_wider_interval() -> None:
    narrow = class_intervals(*predictions(), level=0.5)["macro_f1"]
    wide = class_intervals(*predictions(), level=0.99)["macro_f1"]
    assert wide[0] < narrow[0] < narrow[1] < wide[1]
