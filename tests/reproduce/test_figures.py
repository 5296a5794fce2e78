"""The figures of the paper."""

import math

import numpy as np
import pytest

from scs_supcon.reproduce import figures


def test_the_boundary_is_read_from_the_metrics(tmp_path):
    (tmp_path / "metrics.csv").write_text(
        "stage,epoch,step,metric,value\npretrain,1,3,t,0.1\npretrain,1,3,b,0.5\n"
        "pretrain,1,3,boundary,5.0\npretrain,2,6,t,0.2\nprobe,1,1,t,9\npretrain,2,6,contrast,3\n"
    )
    assert figures.read_boundary(tmp_path) == {
        "t": ([1.0, 2.0], [0.1, 0.2]),
        "b": ([1.0], [0.5]),
        "boundary": ([1.0], [5.0]),
    }


def test_ten_classes_are_drawn_at_random():
    labels = [f"{number:02d}" for number in range(30)] * 2
    chosen = figures.random_classes(labels)
    assert len(set(chosen)) == 10
    assert chosen == figures.random_classes(labels[::-1])
    assert figures.random_classes(["b", "a", "b"]) == ["a", "b"]


def test_the_silhouette_is_one_for_separate_points():
    vectors = np.repeat(np.eye(2, dtype=np.float32), 3, axis=0)
    labels = np.array(["a"] * 3 + ["b"] * 3)
    assert figures.silhouette(vectors, labels) == pytest.approx(1)
    assert math.isnan(figures.silhouette(vectors[:3], labels[:3]))


def test_the_mapping_marks_the_boundary_or_says_on_which_side_all_pairs_are():
    figure = figures.sigmoid_figure({"first": (10.0, 5.0), "second": (0.1, 4.6)})
    texts = [text.get_text() for axes in figure.axes for text in axes.texts]
    assert texts == ["b/t = 0.5"] * 3 + ["b/t = 46:\nevery pair is negative"] * 3
    loss = figure.axes[2].lines
    # At the boundary both kinds of pairs cost ln 2.
    for line in loss[:2]:
        x, y = line.get_data()
        assert np.interp(0.5, x, y) == pytest.approx(math.log(2), abs=1e-4)


def test_beta_has_one_line_per_series_with_the_mean_of_its_runs():
    series = {"Eq. 4": {1e-3: [50.0, 54.0], 1e-5: [40.0]}, "solved": {1e-3: [60.0]}}
    (axes,) = figures.beta_figure(series, "x").axes
    line = axes.containers[0].lines[0]
    assert line.get_xdata().tolist() == [1e-5, 1e-3]
    assert line.get_ydata().tolist() == [40.0, 52.0]
    assert len(axes.containers) == 2
