"""Intervals against resampling images one by one."""

import numpy as np
import pytest
import torch

from scs_supcon.evaluation import bootstrap, metrics
from scs_supcon.evaluation.bootstrap import class_intervals


def answers(n: int = 300, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Classes of unlike size, one of them never predicted and one never present."""
    draw = np.random.default_rng(seed)
    labels = draw.choice(5, n, p=[0.4, 0.3, 0.2, 0.06, 0.04])
    wrong = draw.choice([0, 1, 2, 3, 6], n)
    predicted = np.where((draw.random(n) < 0.7) & (labels < 4), labels, wrong)
    return torch.from_numpy(predicted), torch.from_numpy(labels)


def test_the_interval_is_that_of_resampled_images() -> None:
    predicted, labels = answers()
    found = class_intervals(predicted, labels)
    draw = torch.Generator().manual_seed(1)
    f1, balanced = [], []
    for _ in range(2000):
        rows = torch.randint(len(labels), (len(labels),), generator=draw)
        table = metrics.confusion(predicted[rows], labels[rows])
        ratios = 2 * table.diagonal() / (table.sum(0) + table.sum(1))
        f1.append(float(ratios[table.sum(1) > 0].mean()))
        balanced.append(metrics.balanced_accuracy(predicted[rows], labels[rows]))
    for name, values in (("macro_f1", f1), ("balanced_acc", balanced)):
        expected = np.quantile(values, [0.025, 0.975])
        width = expected[1] - expected[0]
        assert np.allclose(found[name], expected, atol=0.08 * width)


def test_drawing_in_pieces_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = class_intervals(*answers())
    monkeypatch.setattr(bootstrap, "AT_ONCE", 1000)
    assert class_intervals(*answers()) == whole


def test_one_seed_one_interval_and_no_doubt_no_width() -> None:
    assert class_intervals(*answers()) == class_intervals(*answers())
    assert class_intervals(*answers()) != class_intervals(*answers(), seed=1)
    labels = torch.arange(40) % 4
    for low, high in class_intervals(labels, labels).values():
        assert low == high == 1


def test_a_wider_level_gives_a_wider_interval() -> None:
    narrow = class_intervals(*answers(), level=0.5)["macro_f1"]
    wide = class_intervals(*answers(), level=0.99)["macro_f1"]
    assert wide[0] < narrow[0] < narrow[1] < wide[1]
