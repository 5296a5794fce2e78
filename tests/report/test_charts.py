"""Charts on the page and as files."""

import re
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image

from scs_supcon.evaluation.record import (
    Calibration,
    PairHistogram,
    PairStatistics,
    Reliability,
    ReliabilityBin,
)
from scs_supcon.report import charts
from scs_supcon.report.figures import ACCENT, CSS_VARIABLES, chart
from scs_supcon.report.gallery import build_gallery
from scs_supcon.report.inputs import read_records
from scs_supcon.report.render import packaged_text
from scs_supcon.runs.layout import FIGURES

EDGES = tuple(np.linspace(-1, 1, 61).tolist())


def pairs(same, different, **values):
    fields = {
        "rule": "boundary",
        "threshold": 0.5,
        "auc": 0.9,
        "true_positive_rate": 0.8,
        "false_positive_rate": 0.1,
        "roc": (),
        "images": 9,
    }
    histogram = PairHistogram(edges=EDGES, same=tuple(same), different=tuple(different))
    return PairStatistics(**fields | values, histogram=histogram)


def texts(svg):
    return [e.text for e in ElementTree.fromstring(str(svg)).iter() if e.tag.endswith("}text")]


def test_a_chart_uses_css_variables_and_no_style_attributes():
    svg = chart("line", "A line", (3, 2), lambda axes: axes.plot([0, 1], [0, 1], color=ACCENT))
    root = ElementTree.fromstring(str(svg))
    assert root.attrib["aria-label"] == "A line"
    assert 'stroke="var(--accent)"' in svg
    assert not [e for e in root.iter() if "style" in e.attrib or e.tag.endswith("}style")]
    colours = {e.attrib.get(key) for e in root.iter() for key in ("fill", "stroke")}
    assert colours <= {None, "none", *CSS_VARIABLES.values()}
    ids = {e.attrib["id"] for e in root.iter() if "id" in e.attrib}
    assert ids == set(re.findall(r'(?:url\(#|href="#)([^)"]+)', svg))
    assert all(name.startswith("line-") for name in ids)


def test_the_style_sheet_defines_the_palette():
    css = packaged_text("page.css")
    for colour, variable in CSS_VARIABLES.items():
        name = variable.removeprefix("var(").removesuffix(")")
        assert f"{name}: {colour};" in css
        assert css.count(f"{name}: ") == 2, "light and dark"


def test_text_in_a_chart_is_never_markup_or_a_formula():
    name = '"><script>alert(1)</script> $x_1$'
    svg = chart(
        "x", name, (3, 2), lambda axes: axes.set(title=name, xlabel=name) and axes.grid(False)
    )
    assert "<script" not in svg
    assert texts(svg).count(name) == 2
    assert ElementTree.fromstring(str(svg)).attrib["aria-label"] == name


def test_curves_are_grouped_by_topic():
    epochs = [1, 2, 3]
    names = ("contrast", "style", "t", "b", "boundary", "lr", "val_accuracy")
    curves = {("pretrain", name): (epochs, [1.0, 2.0, 3.0]) for name in names}
    curves["probe", "cross_entropy"] = (epochs, [3.0, float("nan"), 1.0])
    curves["pretrain", "diverged"] = (epochs, [float("inf")] * 3)
    groups = charts.curve_groups(curves)
    assert [len(keys) for keys in groups.values()] == [1, 3, 3, 1]
    assert "contrast term" in charts.curve_chart(curves, groups["Loss terms"][0])
    assert "validation accuracy" in charts.curve_chart(curves, groups["Validation"][0])
    drawing = charts.curve_chart(curves, ("probe", "cross_entropy"))
    assert "nan" not in drawing.lower()
    assert "3 to 1" in drawing


def test_cosines_of_pairs_are_drawn_together_with_the_boundary():
    values = {"positive_cosine": 0.8, "negative_cosine": -0.1, "boundary": 0.4, "t": 10.0}
    curves = {("pretrain", name): ([1, 2], [0.0, value]) for name, value in values.items()}
    drawing = charts.cosine_chart(curves)
    assert {"positive pairs", "negative pairs", "decision boundary"} <= set(texts(drawing))
    assert "0.8 and −0.1 at the end, boundary 0.4" in drawing
    assert charts.curve_groups(curves)["Decision boundary"] == [("pretrain", "t")]
    del curves["pretrain", "negative_cosine"]
    assert charts.cosine_chart(curves) is None
    assert len(charts.curve_groups(curves)["Decision boundary"]) == 3


def test_the_curves_of_the_head_alone_are_marked():
    curves = {("head", name): ([1, 2], [2.0, 1.0]) for name in ("contrast", "lr", "boundary")}
    assert charts.curve_groups(curves)["Loss terms"] == [("head", "contrast")]
    assert "head alone: contrast term" in charts.curve_chart(curves, ("head", "contrast"))


def test_a_curve_of_one_epoch_has_one_value():
    drawing = charts.curve_chart({("pretrain", "contrast"): ([1], [2.0])}, ("pretrain", "contrast"))
    assert "2 throughout" in drawing


def test_the_histogram_marks_the_threshold():
    same, different = [0] * 60, [0] * 60
    same[50], different[20] = 5, 7
    assert "boundary 0.50" in texts(charts.similarity_chart(pairs(same, different)))
    quantile = pairs(same, different, rule="quantile")
    assert "threshold 0.50" in texts(charts.similarity_chart(quantile))


@pytest.mark.parametrize(
    ("threshold", "text"),
    [(-0.9, "← boundary -0.90"), (0.95, "boundary 0.95 →"), (1.5, "boundary 1.50 →")],
)
def test_the_histogram_names_a_boundary_outside_its_range(threshold, text):
    same, different = [0] * 60, [0] * 60
    same[50], different[20] = 5, 7
    assert text in texts(charts.similarity_chart(pairs(same, different, threshold=threshold)))


def test_a_histogram_without_pairs_can_be_drawn():
    assert texts(charts.similarity_chart(pairs([0] * 60, [0] * 60)))


def test_the_roc_curve_marks_the_boundary():
    roc = ((0.0, 0.0), (0.1, 0.8), (1.0, 1.0))
    assert "at the boundary" in texts(charts.roc_chart(pairs([], [], roc=roc)))
    without = pairs([], [], roc=roc, true_positive_rate=None)
    assert "at the boundary" not in texts(charts.roc_chart(without))


def test_empty_bins_have_no_dot():
    bins = (
        ReliabilityBin(low=0.4, high=0.6, confidence=0.5, accuracy=0.4, count=3),
        ReliabilityBin(low=0.6, high=0.8, confidence=None, accuracy=None, count=0),
    )
    reliability = Reliability(ece=0.1, bins=bins)
    calibration = Calibration(temperature=1.0, before=reliability, after=reliability)
    svg = charts.calibration_chart(calibration)
    tree = ElementTree.fromstring(str(svg))
    dots = [e for e in tree.iter() if "fill" in e.attrib and e.attrib["fill"] != "none"]
    coloured = [e for e in dots if e.attrib["fill"] in ("var(--accent)", "var(--other)")]
    assert len(coloured) == 2


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (0.66, "0.66"), (-0.00134, "−0.00134"), (5e-4, "5e−4"), (1234.5, "1.23e+03")],
)
def test_numbers_are_short(value, text):
    assert charts.short_number(value) == text


@pytest.mark.parametrize("values", [(0.776, 0.72, 0.798), (0.994, 1.0), (0.5, 0.5), (0.0, 1.0)])
def test_the_axis_of_scores_covers_all_values(values):
    low, high = charts.axis_ends(values)
    assert 0 <= low <= min(values)
    assert max(values) <= high <= 1
    assert high - low >= 0.01


def test_score_marks_and_bars():
    row = str(charts.score_mark(0.75, (0.5, 1.0), (0.7, 0.8), main=True))
    assert 'x1="150.0" x2="150.0"' in row
    assert 'class="band" x="120.6" width="58.8"' in row
    assert "whisker" in row
    assert "whisker" not in charts.score_mark(0.75, (0.5, 1.0), (0.7, 0.8), main=False)
    assert 'width="33.3"' in charts.share_bar(1 / 3)


def write_figures(run, folder):
    records = read_records(run)
    gallery = build_gallery(records)
    points = np.random.default_rng(0).random((len(gallery.names), 2)).astype(np.float32)
    charts.write_figures(folder, records, gallery, dict.fromkeys(gallery.fields, points))
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_figures_are_written_as_png_and_svg_and_are_reproducible(written, tmp_path):
    run = written()
    first, second = (write_figures(run, tmp_path / name) for name in ("a", "b"))
    assert set(first) == {f"{name}.{kind}" for name in FIGURES for kind in ("png", "svg")}
    assert first == second
    with Image.open(tmp_path / "a" / "similarities.png") as image:
        assert min(image.size) > 300


def test_letters_missing_from_the_font_are_kept_without_a_warning(written, tmp_path, recwarn):
    figures = write_figures(written(classes=("鳥", "魚")), tmp_path / "a")
    assert "鳥".encode() in figures["confusion.svg"]
    assert [str(warning.message) for warning in recwarn if "Glyph" in str(warning.message)] == []


def test_many_classes_without_a_style_field(written, tmp_path):
    classes = tuple(f"class {number}" for number in range(61))
    figures = write_figures(written(classes=classes, per_class=2, style=False), tmp_path / "a")
    assert b"class 7" not in figures["confusion.svg"]
    assert b"style field" not in figures["tsne.svg"]
