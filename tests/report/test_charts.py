"""Charts: where points go, round ticks, and words that stay words."""

import math
import re
from xml.etree import ElementTree

import pytest

from scs_supcon.report import charts
from scs_supcon.report.charts import Frame

FRAME = Frame((0, 10), (0, 100), width=120, height=90, left=10, right=10, top=20, bottom=20)


def test_corners_of_the_frame():
    assert FRAME.at(0, 0) == (10, 70)
    assert FRAME.at(10, 100) == (110, 20)
    assert FRAME.at(5, 50) == (60, 45)
    assert FRAME.path([(0, 0), (10, 100)]) == "M10.0 70.0 L110.0 20.0"
    assert FRAME.path([(0, 0)], close=True) == "M10.0 70.0Z"
    assert FRAME.path([]) == ""


@pytest.mark.parametrize(
    ("low", "high", "most", "expected"),
    [
        (0, 1, 5, [0, 0.2, 0.4, 0.6, 0.8, 1]),
        (0, 60, 5, [0, 20, 40, 60]),
        (-0.7, 1, 4, [-0.5, 0, 0.5, 1]),
        (0.462, 0.66, 4, [0.5, 0.55, 0.6, 0.65]),
    ],
)
def test_ticks_are_round(low, high, most, expected):
    assert charts.ticks(low, high, most) == pytest.approx(expected)


@pytest.mark.parametrize("low", [-3.7, 0, 1e-9, 12345])
@pytest.mark.parametrize("span", [1e-6, 0.3, 7, 1e6])
def test_ticks_are_few_and_inside(low, span):
    found = charts.ticks(low, low + span, 5)
    assert 1 <= len(found) <= 6
    assert all(low - span * 1e-6 <= tick <= low + span * (1 + 1e-6) for tick in found)


def test_a_range_is_never_empty():
    for values in ([0.0], [5.0, 5.0], [-2.0, -2.0], [1, 9]):
        low, high = charts.around(values)
        assert low < min(values)
        assert high > max(values)


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (0.66, "0.66"), (-0.00134, "−0.00134"), (5e-4, "5e−4"), (1234.5, "1.23e+03")],
)
def test_numbers_are_short(value, text):
    assert charts.number(value) == text


def test_names_in_a_drawing_stay_text():
    bad = '"><script>alert(1)</script>'
    parts = [charts.upright(FRAME, 9, bad), charts.label(FRAME, 1, 1, bad)]
    drawing = charts.chart(FRAME, parts, bad, (bad, bad))
    tree = ElementTree.fromstring(str(drawing))
    assert tree.attrib["aria-label"] == bad
    assert [e.tag for e in tree.iter() if "script" in e.tag] == []
    assert sum(e.text == bad for e in tree.iter("text")) == 4


def test_lines_areas_and_dots():
    points = [(0, 0), (5, 100), (10, 50)]
    assert 'class="line same"' in charts.line(FRAME, points, "same")
    closed = re.search(r'd="([^"]+)"', charts.area(FRAME, points, "same"))
    assert closed[1] == "M10.0 70.0 L10.0 70.0 L60.0 20.0 L110.0 45.0 L110.0 70.0Z"
    assert 'cx="60.0" cy="45.0" r="3.0"' in charts.dot(FRAME, 5, 50, "accent", 3)
    assert math.isfinite(FRAME.at(1e300, 0)[0])
    assert charts.percent(0.5) == "50\u00a0%"
