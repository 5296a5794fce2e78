"""The charts of a report, from odd and ordinary numbers."""

import itertools
from xml.etree import ElementTree

import numpy as np
import pytest

from scs_supcon.report import panels

EDGES = np.linspace(-1, 1, 61).tolist()


def pairs(same, different, **more):
    histogram = {"edges": EDGES, "same": same, "different": different}
    found = {"threshold": 0.5, "rule": "boundary", "histogram": histogram}
    return found | {"true_positive_rate": 0.8, "false_positive_rate": 0.1} | more


def test_curves_are_grouped_by_what_they_say():
    epochs = [1, 2, 3]
    names = ("contrast", "style", "t", "b", "boundary", "lr")
    curves = {("pretrain", name): (epochs, [1.0, 2.0, 3.0]) for name in names}
    curves["probe", "cross_entropy"] = (epochs, [3.0, float("nan"), 1.0])
    groups = panels.curve_groups(curves)
    assert [len(group) for group in groups.values()] == [3, 3, 1]
    assert "contrast term" in groups["Terms of the loss"][0]
    assert "nan" not in "".join(groups["Terms of the loss"])
    for chart in itertools.chain.from_iterable(groups.values()):
        assert ElementTree.fromstring(str(chart)) is not None


def test_a_curve_of_one_epoch_or_of_no_finite_number():
    groups = panels.curve_groups({("pretrain", "contrast"): ([1], [2.0])})
    assert "2 at both ends" in groups["Terms of the loss"][0]
    empty = panels.curve_groups({("pretrain", "contrast"): ([1], [float("inf")])})
    assert "contrast term" in empty["Terms of the loss"][0]


def test_the_histogram_shows_the_part_that_is_filled():
    same, different = [0] * 60, [0] * 60
    same[50], different[20] = 5, 7
    chart = str(panels.similarity_chart(pairs(same, different)))
    assert "boundary 0.50" in chart
    assert "area same" in chart
    assert "area different" in chart
    assert "line 0.50" in str(panels.similarity_chart(pairs(same, different, rule="quantile")))
    assert "boundary" not in str(panels.similarity_chart(pairs(same, different, threshold=-0.9)))


def test_no_pairs_at_all_are_drawn_as_nothing():
    chart = panels.similarity_chart(pairs([0] * 60, [0] * 60))
    assert ElementTree.fromstring(str(chart)) is not None


def test_the_boundary_is_marked_on_the_curve_of_rates():
    roc = [[0.0, 0.0], [0.1, 0.8], [1.0, 1.0]]
    assert "at the boundary" in panels.roc_chart(pairs([], [], roc=roc))
    without = pairs([], [], roc=roc, true_positive_rate=None)
    assert "at the boundary" not in panels.roc_chart(without)


def test_empty_bins_have_no_dot():
    bins = [
        {"confidence": 0.5, "accuracy": 0.4, "count": 3},
        {"confidence": 0.0, "accuracy": 0.0, "count": 0},
    ]
    found = {"before": {"bins": bins}, "after": {"bins": bins}}
    assert str(panels.calibration_chart(found)).count("<circle") == 2


@pytest.mark.parametrize("values", [(0.776, 0.72, 0.798), (0.994, 1.0), (0.5, 0.5), (0.0, 1.0)])
def test_the_axis_of_shares_holds_all_of_them(values):
    low, high = panels.spread(values)
    assert 0 <= low <= min(values)
    assert max(values) <= high <= 1
    assert high - low >= 0.01


def test_dots_lie_on_the_axis_and_the_band_behind_them():
    row = str(panels.row_of_dots(0.75, (0.5, 1.0), (0.7, 0.8), own=True))
    assert 'x1="150.0" x2="150.0"' in row
    assert 'class="band" x="120.6" width="58.8"' in row
    assert "whisker" in row
    assert "whisker" not in panels.row_of_dots(0.75, (0.5, 1.0), (0.7, 0.8), own=False)
    assert 'width="33.3"' in panels.share_bar(1 / 3)
