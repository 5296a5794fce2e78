"""Figures as files: both kinds, the same bytes every time, whatever the names."""

import numpy as np
from PIL import Image

from scs_supcon.report.figures import write_figures
from scs_supcon.report.gallery import hang
from scs_supcon.report.inputs import read_inputs
from scs_supcon.runs.run_dir import FIGURES


def shapes(run, folder):
    inputs = read_inputs(run)
    gallery = hang(inputs)
    fields = ("common", "style") if gallery.style.shape[1] else ("common",)
    rng = np.random.default_rng(0)
    places = {field: rng.random((len(gallery.names), 2)) for field in fields}
    write_figures(folder, inputs, gallery, places)
    return {file.name: file.read_bytes() for file in sorted(folder.iterdir())}


def test_every_figure_is_there_twice_and_always_the_same(written, tmp_path):
    run = written()
    first, second = (shapes(run, tmp_path / name) for name in ("a", "b"))
    assert set(first) == {f"{name}.{kind}" for name in FIGURES for kind in ("png", "svg")}
    assert first == second
    with Image.open(tmp_path / "a" / "similarities.png") as image:
        assert image.width > 600
    assert b"$a &amp; b$" in first["confusion.svg"]


def test_letters_that_the_font_lacks_are_kept_without_a_warning(written, tmp_path, recwarn):
    figures = shapes(written(classes=("鳥", "魚")), tmp_path / "a")
    assert "鳥".encode() in figures["confusion.svg"]
    assert [str(warning.message) for warning in recwarn if "Glyph" in str(warning.message)] == []


def test_many_classes_without_style(written, tmp_path):
    classes = tuple(f"class {at}" for at in range(61))
    figures = shapes(written(classes=classes, per_class=2, style=False), tmp_path / "a")
    assert b"class 7" not in figures["confusion.svg"]
    assert b"style field" not in figures["tsne.svg"]
