"""The charts of a report as files, for papers and slides: PNG and SVG, light, the same every time.

The page draws its own, which follow the reader's light or dark.
"""

import math
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from scs_supcon.benchmark.figures import save_figure
from scs_supcon.report.data import Places, together
from scs_supcon.report.gallery import Gallery
from scs_supcon.report.inputs import Curves, Inputs
from scs_supcon.report.panels import ASIDE, SCALARS, curve_title

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ACCENT, OTHER, SOFT, RULE = "#0b63a5", "#c04f00", "#59626e", "#dfe3e8"
STYLE: Any = {
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": SOFT,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": RULE,
    "legend.frameon": False,
    "text.parse_math": False,  # a name with $ signs is a name
}


def write_figures(folder: Path, inputs: Inputs, gallery: Gallery, places: Places) -> None:
    """Write each figure as PNG and SVG."""
    import matplotlib as mpl

    evaluation = inputs.evaluation
    figures: dict[str, Callable[[], Figure]] = {
        "curves": partial(curves, inputs.curves),
        "similarities": partial(similarities, evaluation["pairs"]),
        "confusion": partial(confusion, evaluation),
        "calibration": partial(calibration, evaluation["calibration"]),
        "tsne": partial(maps, evaluation["classes"], gallery, places),
    }
    with mpl.rc_context(STYLE), warnings.catch_warnings():
        # The SVG keeps letters that matplotlib's font lacks; the PNG shows boxes.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        for name, draw in figures.items():
            save_figure(draw(), folder / name)


def _panels(count: int, columns: int, size: tuple[float, float]) -> tuple["Figure", list["Axes"]]:
    from matplotlib.figure import Figure

    columns = min(columns, count)
    rows = math.ceil(count / columns)
    figure = Figure(figsize=(size[0] * columns, size[1] * rows), layout="constrained")
    axes = [figure.add_subplot(rows, columns, at + 1) for at in range(count)]
    return figure, axes


def curves(found: Curves) -> "Figure":
    """Terms of the loss, t, b and the boundary over the epochs."""
    stage = [name for part, name in found if part == "pretrain" and name not in ASIDE]
    terms = [name for name in stage if name not in SCALARS]
    names = [("pretrain", name) for name in (*terms, *(s for s in SCALARS if s in stage))]
    names += [("probe", "cross_entropy")] if ("probe", "cross_entropy") in found else []
    figure, axes = _panels(max(1, len(names)), 3, (3.4, 2.4))
    for ax, name in zip(axes, names, strict=False):
        ax.plot(*found[name], color=ACCENT)
        ax.set_title(curve_title(name), fontsize=10, loc="left")
        ax.set_xlabel("epoch")
    return figure


def similarities(pairs: Mapping[str, Any]) -> "Figure":
    """Histogram of the similarity of pairs, and how well a line tells them apart."""
    figure, (left, right) = _panels(2, 2, (4.6, 3.4))
    edges = pairs["histogram"]["edges"]
    for kind, title, colour in (
        ("same", "one class", ACCENT),
        ("different", "different classes", OTHER),
    ):
        counts = np.array(pairs["histogram"][kind], float)
        left.stairs(counts / max(counts.sum(), 1), edges, color=colour, label=title, linewidth=1.6)
    left.axvline(pairs["threshold"], color="black", linestyle="--", linewidth=1)
    left.annotate(
        f"{'boundary' if pairs['rule'] == 'boundary' else 'line'} {pairs['threshold']:.2f}",
        (pairs["threshold"], 0.97),
        xycoords=("data", "axes fraction"),
        xytext=(-4, 0),
        textcoords="offset points",
        ha="right",
        va="top",
    )
    left.set_xlabel("similarity of the common fields")
    left.set_ylabel("share of pairs")
    left.legend(loc="upper left")
    right.plot([0, 1], [0, 1], color=RULE)
    if pairs["roc"]:
        right.plot(*np.array(pairs["roc"]).T, color=ACCENT)
        right.plot(pairs["false_positive_rate"], pairs["true_positive_rate"], "o", color=OTHER)
        right.set_title(f"area {pairs['auc']:.3f}", fontsize=10, loc="left")
    right.set_xlabel("different pairs called same")
    right.set_ylabel("same pairs called same")
    return figure


def confusion(evaluation: Mapping[str, Any]) -> "Figure":
    """Shares of each true class (rows) by what the model says, confused classes together."""
    matrix = np.array(evaluation["confusion"], np.int64)
    classes = evaluation["classes"]
    order = list(together(matrix)) if len(classes) > 12 else list(range(len(classes)))
    shares = matrix / np.maximum(matrix.sum(1, keepdims=True), 1)
    size = min(12.0, max(4.5, 2.5 + 0.16 * len(classes)))
    figure, (ax,) = _panels(1, 1, (size + 1, size))
    image = ax.imshow(shares[np.ix_(order, order)], cmap="Blues", vmin=0, vmax=1)
    ax.grid(False)
    names = [classes[at] for at in order] if len(classes) <= 60 else []
    ax.set_xticks(range(len(names)), names, rotation=90, fontsize=7)
    ax.set_yticks(range(len(names)), names, fontsize=7)
    ax.set_xlabel("what the model says")
    ax.set_ylabel("true class")
    figure.colorbar(image, label="share of the true class", shrink=0.6)
    return figure


def calibration(found: Mapping[str, Any]) -> "Figure":
    """Accuracy against confidence, before and after scaling."""
    figure, (ax,) = _panels(1, 1, (4.4, 4.0))
    ax.plot([0, 1], [0, 1], color=RULE)
    for when, colour, dash in (("before", OTHER, "--"), ("after", ACCENT, "-")):
        bins = [b for b in found[when]["bins"] if b["count"]]
        ax.plot(
            [b["confidence"] for b in bins],
            [b["accuracy"] for b in bins],
            color=colour,
            linestyle=dash,
            marker="o",
            markersize=4,
            label=f"{when} scaling, error {100 * found[when]['ece']:.1f} points",
        )
    ax.set_xlabel("how sure the model is")
    ax.set_ylabel("how often it is right")
    ax.legend(loc="upper left", fontsize=9)
    return figure


def maps(classes: list[str], gallery: Gallery, places: Places) -> "Figure":
    """t-SNE of the fields; up to ten classes have names, of more only mistakes stand out."""
    from matplotlib import colormaps

    figure, axes = _panels(len(places), 2, (5.0, 5.0))
    wrong = (gallery.predictions >= 0) & (gallery.predictions != gallery.labels)
    few = len(classes) <= 10
    colours = colormaps["tab10"](gallery.labels) if few else np.array([ACCENT] * len(wrong))
    for ax, (field, at) in zip(axes, places.items(), strict=True):
        ax.scatter(at[~wrong, 0], at[~wrong, 1], s=8, c=colours[~wrong], alpha=0.6, linewidths=0)
        ax.scatter(at[wrong, 0], at[wrong, 1], s=18, c=OTHER, marker="x", linewidths=1)
        for label, name in enumerate(classes if few else ()):
            if (mine := gallery.labels == label).any():
                ax.annotate(name, np.median(at[mine], axis=0), ha="center", weight="bold")
        ax.set_title(f"{field} field", fontsize=10, loc="left")
        ax.set_aspect("equal")
        ax.set_axis_off()
    return figure
