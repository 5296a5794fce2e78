"""The figure of a search has a panel for the progress and one for each key."""

import numpy as np
import pytest
from PIL import Image

from scs_supcon.tuning.figure import draw_search
from scs_supcon.tuning.space import Choice, Range
from scs_supcon.tuning.study import Trial

AXES = (
    Range("method.options.t0", 1, 100, log=True, whole=False),
    Range("head.overlap", 0, 8, log=False, whole=True),
    Choice("pretrain.batches", ("shuffle", "balanced")),
)


@pytest.mark.parametrize("count", [1, 12])
def test_the_figure_has_a_panel_for_the_progress_and_for_each_key(count, tmp_path):
    rng = np.random.default_rng(0)
    trials = [
        Trial(
            number,
            float(rng.random()),
            0.5,
            {
                "method.options.t0": float(1 + 99 * rng.random()),
                "head.overlap": int(rng.integers(9)),
                "pretrain.batches": ("shuffle", "balanced")[number % 2],
            },
            "trials/x",
        )
        for number in range(count)
    ]
    png, svg = draw_search(trials, AXES, tmp_path)
    assert Image.open(png).size[0] > 1000
    text = svg.read_text()
    assert text.count('id="axes_') == 4


def test_interrupted_trials_do_not_change_the_figure(tmp_path):
    figures = []
    for numbers in ((0, 1, 2), (0, 3, 7)):
        trials = [
            Trial(number, loss, 0.5, {"head.overlap": 2}, "trials/x")
            for number, loss in zip(numbers, (0.3, 0.2, 0.1), strict=True)
        ]
        figures.append([file.read_bytes() for file in draw_search(trials, AXES[1:2], tmp_path)])
    assert figures[0] == figures[1]
