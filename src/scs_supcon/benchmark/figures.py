"""Figures drawn with matplotlib, without its global state; the same bytes for the same numbers."""

from pathlib import Path
from typing import Any

INK, MUTED, ACCENT = "#1d2433", "#8a93a6", "#2f6fde"


def to_figure(width: float, height: float) -> tuple[Any, Any]:
    """A white figure of so many inches, and its one set of axes."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), facecolor="white", layout="constrained")
    return figure, figure.add_subplot()


def save_figure(figure: Any, stem: Path) -> list[Path]:
    """Write `stem`.png and `stem`.svg."""
    import matplotlib

    from scs_supcon.io.atomic import replacing  # brings torch

    paths = []
    plain: Any = {"svg.hashsalt": "scs", "svg.fonttype": "none", "font.family": "sans-serif"}
    for kind, facts in (("png", {"Software": None}), ("svg", {"Date": None})):
        path = stem.with_name(f"{stem.name}.{kind}")
        with matplotlib.rc_context(plain), replacing(path) as temporary:
            figure.savefig(temporary, format=kind, dpi=160, metadata=facts)
        paths.append(path)
    return paths
