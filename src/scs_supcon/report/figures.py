"""Figures for pages and files: one palette, one style, drawn with matplotlib.

A figure is drawn once. `save_figure` writes it to files for papers and slides; `inline_svg`
returns it for a page, with the palette's colours as CSS variables so that it follows light and
dark mode, and without style attributes so that a strict content security policy allows it.
"""

import io
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

from markupsafe import Markup

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, SOFT, RULE = "#1a1f26", "#59626e", "#dfe3e8"
ACCENT, OTHER = "#0b63a5", "#c04f00"
CSS_VARIABLES = {
    INK: "var(--ink)",
    SOFT: "var(--soft)",
    RULE: "var(--rule)",
    ACCENT: "var(--accent)",
    OTHER: "var(--other)",
}
CLASS_COLOURS = (
    *("#4477aa", "#ee8866", "#228833", "#aa3377", "#66ccee"),
    *("#bbaa22", "#8866cc", "#777777", "#44bb99", "#cc6688"),
)
STYLE: Any = {
    "font.size": 10,
    "font.family": "sans-serif",
    "text.color": INK,
    "text.parse_math": False,  # names may contain dollar signs
    "axes.edgecolor": SOFT,
    "axes.labelcolor": SOFT,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": RULE,
    "xtick.color": SOFT,
    "ytick.color": SOFT,
    "lines.solid_capstyle": "butt",
    "legend.frameon": False,
    "svg.fonttype": "none",  # keep text as text
    "svg.hashsalt": "scs",  # the same numbers give the same bytes
}
SVG = "{http://www.w3.org/2000/svg}"
SVG_ATTRIBUTES = (
    *("fill", "fill-opacity", "stroke", "stroke-opacity", "stroke-width", "stroke-dasharray"),
    *("stroke-dashoffset", "stroke-linecap", "stroke-linejoin", "opacity", "text-anchor"),
    *("font-size", "font-weight", "font-style", "clip-path"),
)


@contextmanager
def figure_style() -> Iterator[None]:
    """Apply the style to figures that are drawn and saved inside."""
    import matplotlib

    with matplotlib.rc_context(STYLE), warnings.catch_warnings():
        # SVG files keep letters that matplotlib's font lacks; PNG files show boxes.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        yield


def new_figure(
    width: float, height: float, *, panels: int = 1, columns: int = 1
) -> tuple["Figure", list["Axes"]]:
    """Return a figure and its axes.

    Args:
        width: inches of one panel.
        height: inches of one panel.
        panels: number of axes.
        columns: axes per row.
    """
    from matplotlib.figure import Figure

    columns = min(columns, panels)
    rows = -(-panels // columns)
    figure = Figure(figsize=(width * columns, height * rows), layout="constrained")
    return figure, [figure.add_subplot(rows, columns, number + 1) for number in range(panels)]


def save_figure(figure: "Figure", stem: Path) -> list[Path]:
    """Write `stem`.png and `stem`.svg and return their paths."""
    from scs_supcon.io.atomic import replacing

    paths = []
    for kind, metadata in (("png", {"Software": None}), ("svg", {"Date": None})):
        path = stem.with_name(f"{stem.name}.{kind}")
        with figure_style(), replacing(path) as temporary:
            figure.savefig(temporary, format=kind, dpi=160, metadata=metadata, facecolor="white")
        figure.set_layout_engine("none")  # keeps the layout, which takes half of the time
        paths.append(path)
    return paths


def chart(
    name: str,
    title: str,
    size: tuple[float, float],
    draw: Callable[["Axes"], None],
) -> Markup:
    """Return a chart for a page.

    Args:
        name: prefix of the ids inside the SVG, unique in the page.
        title: description for screen readers.
        size: width and height in inches.
        draw: draws the chart on axes.
    """
    with figure_style():
        figure, (axes,) = new_figure(*size)
        draw(axes)
        return inline_svg(figure, name, title)


def inline_svg(figure: "Figure", name: str, title: str) -> Markup:
    """Return a figure as an SVG element for a page; see `chart`."""
    buffer = io.StringIO()
    with figure_style():
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    root = ElementTree.fromstring(buffer.getvalue())
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag.endswith("}metadata") or child.tag == f"{SVG}style":
                parent.remove(child)
    text = ElementTree.tostring(root, encoding="unicode")
    targets = set(re.findall(r'(?:url\(#|href="#)([^)"]+)', text))
    for element in root.iter():
        _make_attributes_plain(element, name, targets)
    root.attrib = {
        "class": "chart",
        "viewBox": root.attrib["viewBox"],
        "role": "img",
        "aria-label": title,
        "stroke-linejoin": "round",
    }
    ElementTree.register_namespace("", SVG[1:-1])
    return Markup(ElementTree.tostring(root, encoding="unicode"))


def _make_attributes_plain(element: ElementTree.Element, name: str, targets: set[str]) -> None:
    """Replace style by attributes, colours by CSS variables and ids by unique ones."""
    element.tail = None
    if not (element.text or "").strip():
        element.text = None
    declarations = _declarations(element.attrib.pop("style", "")) | element.attrib
    for key in SVG_ATTRIBUTES:
        if key in declarations:
            value = declarations[key].replace("url(#", f"url(#{name}-")
            element.set(key, CSS_VARIABLES.get(value, value))
    identifier = element.attrib.pop("id", "")
    if identifier in targets:
        element.set("id", f"{name}-{identifier}")
    if link := element.attrib.pop("{http://www.w3.org/1999/xlink}href", ""):
        element.set("href", f"#{name}-{link[1:]}")
    if "d" in element.attrib:
        element.set("d", " ".join(element.attrib["d"].split()))


def _declarations(style: str) -> dict[str, str]:
    """Parse a style attribute; the shorthand `font` of older matplotlib is split."""
    declarations = {}
    for declaration in style.split(";"):
        key, _, value = declaration.partition(":")
        declarations[key.strip()] = value.strip()
    if font := re.match(r"(?:(\w+) )?([\d.]+px)", declarations.get("font", "")):
        declarations |= {"font-weight": font[1] or "normal", "font-size": font[2]}
    return declarations
