"""The figures of a comparison show every method."""

import itertools

import numpy as np
import pytest
from PIL import Image

from scs_supcon.benchmark.figures import cd_diagram, dot_plot
from scs_supcon.benchmark.statistics import nemenyi
from scs_supcon.report.figures import figure_style, inline_svg, new_figure, save_figure


def random_scores(count, spread, columns=6):
    rng = np.random.default_rng(0)
    level = rng.random(count) * spread
    return {f"method_{n:02d}": (level[n] + rng.normal(size=columns)).tolist() for n in range(count)}


@pytest.mark.parametrize(("count", "spread"), [(17, 10.0), (17, 0.0), (2, 1.0), (5, 3.0)])
def test_the_cd_diagram_names_every_method_and_the_cd(count, spread, tmp_path):
    result = nemenyi(random_scores(count, spread))
    figure = cd_diagram(result, title="over 6 columns", adapted={"method_01"})
    (axes,) = figure.axes
    assert not any(artist.get_clip_on() for artist in (*axes.lines, *axes.collections))
    _, path = save_figure(figure, tmp_path / "cd")
    svg = path.read_text()
    for name, rank in result.ranks.items():
        label = f"{name} (adapted)" if name == "method_01" else name
        assert f">{label}  {rank:.2f} <" in svg or f"> {rank:.2f}  {label}<" in svg
    assert f"CD = {result.cd:.2f}" in svg
    assert "over 6 columns" in svg


@pytest.mark.parametrize("count", [20, 22, 50])
def test_the_numbers_of_the_ranks_do_not_overlap(count):
    (axes,) = cd_diagram(nemenyi(random_scores(count, 5.0)), title="x").axes
    axes.figure.canvas.draw()
    boxes = [label.get_window_extent() for label in axes.get_xticklabels()]
    assert all(left.x1 < right.x0 for left, right in itertools.pairwise(boxes))


def test_names_are_not_parsed_as_formulas():
    scores = {"$x_1$": [3.0, 2.0, 1.0], "a<b>&": [1.0, 3.0, 2.0]}
    svg = inline_svg(cd_diagram(nemenyi(scores), title="x"), "cd", "x")
    assert "$x_1$" in svg
    assert "a&lt;b&gt;&amp;" in svg


def test_the_dot_plot_names_every_method_and_the_split():
    scores = {"a": [70.0, 71.0], "$b$": [60.0], "c": []}
    svg = inline_svg(dot_plot(scores, title="birds", best={"a"}, adapted={"c"}), "dots", "x")
    for text in (">birds<", ">a<", ">$b$<", ">c (adapted)<", ">test accuracy"):
        assert text in svg
    svg = inline_svg(dot_plot(scores, title="birds", split="validation"), "dots", "x")
    assert ">validation accuracy" in svg


def test_figures_are_saved_as_png_and_svg_and_are_reproducible(tmp_path):
    written = []
    for name in ("first", "second"):
        with figure_style():
            figure, (axes,) = new_figure(2, 1)
        axes.plot([0, 1], [0, 1])
        written.append(save_figure(figure, tmp_path / name / "line"))
    assert [path.name for path in written[0]] == ["line.png", "line.svg"]
    for first, second in zip(*written, strict=True):
        assert first.read_bytes() == second.read_bytes()
    assert Image.open(written[0][0]).size == (320, 160)


def test_the_label_of_the_dot_plot_fits_into_the_figure():
    scores = {"a method with a long name": [60.0, 61.0], "b": [50.0, 51.0]}
    figure = dot_plot(scores, title="birds", metric="accuracy in per cent")
    figure.canvas.draw()
    (axes,) = figure.axes
    box = axes.xaxis.label.get_window_extent()
    assert box.x0 >= 0
    assert box.x1 <= figure.bbox.x1
