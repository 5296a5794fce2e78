"""The charts of a run's report.

Each chart is drawn by one function on matplotlib axes. The page shows each chart as an inline
SVG; `write_figures` combines the same charts into figures for papers and slides. The maps and
the confusion matrix of the page are interactive: its scripts draw them.
"""

import math
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from markupsafe import Markup

from scs_supcon.evaluation.record import Calibration, Evaluation, PairStatistics
from scs_supcon.io.text import printable_name
from scs_supcon.report.data import MOST_CLASSES, MapPoints, class_order
from scs_supcon.report.figures import (
    ACCENT,
    CLASS_COLOURS,
    OTHER,
    RULE,
    SOFT,
    chart,
    figure_style,
    new_figure,
    save_figure,
)
from scs_supcon.report.gallery import ImageGallery
from scs_supcon.report.inputs import Curves, RunRecords

if TYPE_CHECKING:
    from matplotlib.axes import Axes

CURVE_TITLES = {
    ("pretrain", "t"): "temperature t",
    ("pretrain", "b"): "bias b",
    ("pretrain", "boundary"): "decision boundary",
    ("pretrain", "lr"): "learning rate",
    ("pretrain", "val_accuracy"): "validation accuracy",
    ("pretrain", "positive_share"): "share of positive pairs",
    ("pretrain", "anchors_without_positives"): "images without a positive in the batch",
    ("pretrain", "positive_cosine"): "mean cosine of positive pairs",
    ("pretrain", "negative_cosine"): "mean cosine of negative pairs",
    ("pretrain", "style_pairs"): "pairs of the style term",
    ("pretrain", "style_b"): "bias of the style term",
    ("probe", "cross_entropy"): "stage 2: cross-entropy",
}
COSINES = {
    ("pretrain", "positive_cosine"): ("positive pairs", ACCENT, "-"),
    ("pretrain", "negative_cosine"): ("negative pairs", OTHER, "--"),
    ("pretrain", "boundary"): ("decision boundary", SOFT, ":"),
}
SCALARS = ("t", "b", "boundary", "positive_cosine", "negative_cosine")
MINOR = ("lr", "positive_share", "anchors_without_positives", "style_pairs", "style_b")
VALIDATION = ("pretrain", "val_accuracy")
PROBE_LOSS = ("probe", "cross_entropy")


def curve_groups(curves: Curves) -> dict[str, list[tuple[str, str]]]:
    """Return the keys of the training curves by topic; a group may be empty.

    The curves of `cosine_chart` are left out if it shows them.
    """
    others = (*SCALARS, *MINOR, VALIDATION[1])
    terms = [key for key in curves if key[0] in ("head", "pretrain") and key[1] not in others]
    together = COSINES if _cosine_points(curves) else {}
    groups = {
        "Validation": [VALIDATION],
        "Loss terms": [*terms, PROBE_LOSS],
        "Decision boundary": [
            ("pretrain", name) for name in SCALARS if ("pretrain", name) not in together
        ],
        "Other metrics": [("pretrain", name) for name in MINOR],
    }
    return {
        title: [key for key in keys if key in curves and _finite_points(curves, key)]
        for title, keys in groups.items()
    }


def curve_title(key: tuple[str, str]) -> str:
    """Return the title of a training curve."""
    phase = "head alone: " if key[0] == "head" else ""
    return CURVE_TITLES.get(key, f"{phase}{key[1].replace('_', ' ')} term")


def curve_chart(curves: Curves, key: tuple[str, str]) -> Markup:
    """Return one training curve with its first and last value as a figure of the page."""
    points = _finite_points(curves, key)
    first, last = (short_number(points[index][1]) for index in (0, -1))
    change = f"{first} to {last}" if first != last else f"{first} throughout"
    title = curve_title(key)
    svg = chart(
        f"curve-{key[0]}-{key[1]}",
        f"{title}: {change} in {points[-1][0]} epochs",
        (3.3, 1.9),
        partial(draw_curve, points=points),
    )
    return Markup("<figure><figcaption><b>{}</b> <span>{}</span></figcaption>{}</figure>").format(
        title, change, svg
    )


def cosine_chart(curves: Curves) -> Markup | None:
    """Return the mean cosines of pairs and the decision boundary over the epochs as one figure.

    None if the method does not log all three.
    """
    points = _cosine_points(curves)
    if not points:
        return None
    ends = {key: short_number(points[key][-1][1]) for key in COSINES}
    positive, negative, boundary = ends.values()
    values = f"{positive} and {negative} at the end, boundary {boundary}"
    svg = chart(
        "curve-cosines",
        f"Mean cosine of positive and negative pairs: {values}",
        (3.3, 1.9),
        partial(draw_cosines, curves=curves),
    )
    return Markup("<figure><figcaption><b>{}</b> <span>{}</span></figcaption>{}</figure>").format(
        "mean cosine of positive and negative pairs", values, svg
    )


def draw_cosines(axes: "Axes", curves: Curves) -> None:
    """Draw the mean cosines of pairs and the decision boundary over the epochs."""
    for key, points in _cosine_points(curves).items():
        label, colour, style = COSINES[key]
        draw_curve(axes, points, colour, style, label)
    axes.legend()


def _cosine_points(curves: Curves) -> dict[tuple[str, str], list[tuple[int, float]]]:
    """Return the points of the three curves, or {} if one of them is missing."""
    points = {key: _finite_points(curves, key) for key in COSINES if key in curves}
    return points if len(points) == len(COSINES) and all(points.values()) else {}


def draw_curve(
    axes: "Axes",
    points: Sequence[tuple[int, float]],
    colour: str = ACCENT,
    style: str = "-",
    label: str = "",
) -> None:
    """Draw a metric over the epochs."""
    from matplotlib.ticker import MaxNLocator

    epochs, values = zip(*points, strict=True)
    axes.plot(epochs, values, color=colour, linestyle=style, linewidth=2, label=label)
    axes.plot(epochs[-1], values[-1], "o", color=colour, markersize=5)
    axes.set_xlabel("epoch")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(False, axis="x")


def _finite_points(curves: Curves, key: tuple[str, str]) -> list[tuple[int, float]]:
    return [(e, v) for e, v in zip(*curves[key], strict=True) if math.isfinite(v)]


def similarity_chart(pairs: PairStatistics) -> Markup:
    """Return the histogram of pair similarities for the page."""
    title = "Histogram of the similarity of same-class and different-class pairs"
    return chart("similarity", title, (4.6, 2.9), partial(draw_similarities, pairs=pairs))


def draw_similarities(axes: "Axes", pairs: PairStatistics) -> None:
    """Draw histograms of the similarity of same-class and different-class pairs."""
    histogram = pairs.histogram
    shares = {
        "different": np.array(histogram.different) / max(1, sum(histogram.different)),
        "same": np.array(histogram.same) / max(1, sum(histogram.same)),
    }
    colours = {"different": (OTHER, "--"), "same": (ACCENT, "-")}
    for kind, values in shares.items():
        colour, line = colours[kind]
        axes.stairs(values, histogram.edges, color=colour, alpha=0.15, fill=True, linewidth=0)
        axes.stairs(
            values,
            histogram.edges,
            color=colour,
            linestyle=line,
            linewidth=2,
            label=f"{kind} class{'es' * (kind == 'different')}",
        )
    # Leave out empty bins at both ends.
    filled = np.flatnonzero(np.maximum(*shares.values()) > 1e-4)
    if len(filled):
        last = len(histogram.edges) - 1
        low, high = max(0, filled[0] - 1), min(last, filled[-1] + 2)
        axes.set_xlim(histogram.edges[low], histogram.edges[high])
    axes.set_ylim(0, max(1e-3, *(values.max() for values in shares.values())) * 1.2)
    _mark_threshold(axes, pairs)
    axes.set_xlabel("similarity in the common field")
    axes.set_ylabel("share of pairs")
    axes.yaxis.set_major_formatter(_percent)
    axes.grid(False, axis="x")


def _mark_threshold(axes: "Axes", pairs: PairStatistics) -> None:
    """Draw a line at the threshold; if it lies outside the x-range, an arrow at the edge."""
    low, high = axes.get_xlim()
    text = f"{'threshold' if pairs.rule == 'quantile' else 'boundary'} {pairs.threshold:.2f}"
    if pairs.threshold < low:
        text = f"← {text}"
    elif pairs.threshold > high:
        text = f"{text} →"
    else:
        axes.axvline(pairs.threshold, color=SOFT, linestyle=":", linewidth=1.5)
    right = pairs.threshold > low + 0.6 * (high - low)
    axes.annotate(
        text,
        (min(max(pairs.threshold, low), high), 0.98),
        xycoords=("data", "axes fraction"),
        xytext=(-4 if right else 4, 0),
        textcoords="offset points",
        ha="right" if right else "left",
        va="top",
        weight="bold",
    )


def roc_chart(pairs: PairStatistics) -> Markup:
    """Return the ROC curve of pairs for the page."""
    title = "ROC curve: same-class pairs against different-class pairs above the threshold"
    return chart("roc", title, (3.7, 3.2), partial(draw_roc, pairs=pairs))


def draw_roc(axes: "Axes", pairs: PairStatistics) -> None:
    """Draw the ROC curve of pairs with the threshold marked."""
    axes.plot([0, 1], [0, 1], color=RULE, linewidth=1.5)
    if pairs.roc:
        axes.plot(*np.array(pairs.roc).T, color=ACCENT, linewidth=2)
    false_rate, true_rate = pairs.false_positive_rate, pairs.true_positive_rate
    if false_rate is not None and true_rate is not None:
        name = "threshold" if pairs.rule == "quantile" else "boundary"
        axes.plot(false_rate, true_rate, "o", color=OTHER, markersize=7)
        right = false_rate > 0.5
        axes.annotate(
            f"at the {name}",
            (false_rate, true_rate),
            xytext=(-8 if right else 8, -18),
            textcoords="offset points",
            ha="right" if right else "left",
            weight="bold",
        )
    axes.set_xlabel("false positive rate")
    axes.set_ylabel("true positive rate")
    _unit_square(axes)


def calibration_chart(calibration: Calibration) -> Markup:
    """Return the reliability diagram for the page."""
    title = "Reliability diagram: accuracy against confidence"
    draw = partial(draw_calibration, calibration=calibration)
    return chart("calibration", title, (3.7, 3.2), draw)


def draw_calibration(axes: "Axes", calibration: Calibration) -> None:
    """Draw accuracy against confidence before and after temperature scaling."""
    axes.plot([0, 1], [0, 1], color=RULE, linewidth=1.5)
    most = max((b.count for b in calibration.after.bins), default=1) or 1
    for when, reliability, colour, line in (
        ("before", calibration.before, OTHER, "--"),
        ("after", calibration.after, ACCENT, "-"),
    ):
        bins = [b for b in reliability.bins if b.count]
        confidence = np.array([b.confidence for b in bins], np.float64)
        accuracy = np.array([b.accuracy for b in bins], np.float64)
        label = f"{when} scaling, error {100 * reliability.ece:.1f} points"
        axes.plot(confidence, accuracy, color=colour, linestyle=line, linewidth=2, label=label)
        sizes = [(3 + 8 * math.sqrt(b.count / most)) ** 2 for b in bins]
        axes.scatter(confidence, accuracy, sizes, color=colour, zorder=3, linewidths=0)
    axes.set_xlabel("confidence")
    axes.set_ylabel("accuracy")
    _unit_square(axes)


def draw_confusion(axes: "Axes", evaluation: Evaluation) -> None:
    """Draw the confusion matrix as shares of each true class, confused classes adjacent.

    With more than `MOST_CLASSES` classes, neighbouring ones share a row and a column.
    """
    classes = evaluation.classes
    order = list(class_order(evaluation)) if len(classes) > 12 else list(range(len(classes)))
    side = min(len(classes), MOST_CLASSES)
    position = np.empty(len(classes), np.int64)
    position[order] = np.arange(len(classes)) * side // len(classes)
    cells = np.array(evaluation.confusion, np.int64).reshape(-1, 3)
    matrix = np.zeros((side, side), np.int64)
    np.add.at(matrix, (position[cells[:, 0]], position[cells[:, 1]]), cells[:, 2])
    shares = matrix / np.maximum(matrix.sum(1, keepdims=True), 1)
    image = axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    axes.grid(False)
    names = [printable_name(classes[i]) for i in order] if len(classes) <= 60 else []
    axes.set_xticks(range(len(names)), names, rotation=90, fontsize=7)
    axes.set_yticks(range(len(names)), names, fontsize=7)
    axes.set_xlabel("prediction")
    axes.set_ylabel("true class")
    axes.figure.colorbar(image, label="share of the true class", shrink=0.6)


def draw_map(
    axes: "Axes", classes: Sequence[str], gallery: ImageGallery, points: MapPoints
) -> None:
    """Draw a t-SNE map: up to ten classes in colours with names, otherwise only errors marked."""
    wrong = (gallery.predictions >= 0) & (gallery.predictions != gallery.labels)
    named = len(classes) <= len(CLASS_COLOURS)
    colours = np.array([CLASS_COLOURS[label] if named else ACCENT for label in gallery.labels])
    axes.scatter(
        points[~wrong, 0], points[~wrong, 1], s=8, c=colours[~wrong], alpha=0.6, linewidths=0
    )
    axes.scatter(points[wrong, 0], points[wrong, 1], s=18, c=OTHER, marker="x", linewidths=1)
    for label, name in enumerate(classes if named else ()):
        members = gallery.labels == label
        if members.any():
            axes.annotate(
                printable_name(name), np.median(points[members], axis=0), ha="center", weight="bold"
            )
    axes.set_aspect("equal")
    axes.set_axis_off()


def write_figures(
    folder: Path, records: RunRecords, gallery: ImageGallery, maps: Mapping[str, MapPoints]
) -> None:
    """Write curves, similarities, confusion, calibration and tsne as PNG and SVG."""
    evaluation, curves = records.evaluation, records.curves
    with figure_style():
        groups = curve_groups(curves)
        keys = [*groups["Validation"], *groups["Loss terms"], *groups["Decision boundary"]]
        cosines = bool(_cosine_points(curves))
        figure, panels = new_figure(3.4, 2.4, panels=max(1, len(keys) + cosines), columns=3)
        for axes, key in zip(panels, keys, strict=False):
            draw_curve(axes, _finite_points(curves, key))
            axes.set_title(curve_title(key))
        if cosines:
            draw_cosines(panels[len(keys)], curves)
            panels[len(keys)].set_title("mean cosine of pairs")
        save_figure(figure, folder / "curves")

        figure, (left, right) = new_figure(4.6, 3.4, panels=2, columns=2)
        draw_similarities(left, evaluation.pairs)
        left.legend(loc="upper left")
        draw_roc(right, evaluation.pairs)
        if evaluation.pairs.auc is not None:
            right.set_title(f"AUC {evaluation.pairs.auc:.3f}")
        save_figure(figure, folder / "similarities")

        size = min(12.0, max(4.5, 2.5 + 0.16 * len(evaluation.classes)))
        figure, (axes,) = new_figure(size + 1, size)
        draw_confusion(axes, evaluation)
        save_figure(figure, folder / "confusion")

        figure, (axes,) = new_figure(4.4, 4.0)
        draw_calibration(axes, evaluation.calibration)
        axes.legend(loc="upper left", fontsize=9)
        save_figure(figure, folder / "calibration")

        figure, panels = new_figure(5.0, 5.0, panels=len(maps), columns=2)
        for axes, (field, points) in zip(panels, maps.items(), strict=True):
            draw_map(axes, evaluation.classes, gallery, points)
            axes.set_title(f"{field} field")
        save_figure(figure, folder / "tsne")


def _unit_square(axes: "Axes") -> None:
    axes.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.05))
    axes.xaxis.set_major_formatter(_percent)
    axes.yaxis.set_major_formatter(_percent)


def _percent(value: float, position: object = None) -> str:
    return f"{100 * value:g}%"


def short_number(value: float) -> str:
    """Return a number with at most three significant digits."""
    if value != 0 and (abs(value) >= 1e5 or abs(value) < 1e-3):
        return f"{value:.0e}".replace("e-0", "e-").replace("e+0", "e").replace("-", "−")
    return f"{value:.3g}".replace("-", "−")


def axis_ends(values: Sequence[float]) -> tuple[float, float]:
    """Return rounded limits of an axis for shares, with a margin and between 0 and 1."""
    low, high = min(values), max(values)
    margin = max((high - low) * 0.15, 0.01)
    span = high - low + 2 * margin
    step = next(s for s in (0.01, 0.02, 0.05, 0.1, 0.25) if span / s <= 12)
    ends = math.floor((low - margin) / step) * step, math.ceil((high + margin) / step) * step
    return max(0.0, ends[0]), min(1.0, ends[1])


def score_mark(
    value: float, ends: tuple[float, float], interval: tuple[float, float], *, main: bool
) -> Markup:
    """Return one row of a dot chart in a table.

    Args:
        value: the score to mark.
        ends: the ends of the axis.
        interval: the confidence interval of the main row, drawn as a band in every row.
        main: whether this is the main row.
    """

    def position(share: float) -> float:
        clipped = max(ends[0], min(ends[1], share))
        return 3 + 294 * (clipped - ends[0]) / (ends[1] - ends[0])

    low, high = (position(end) for end in interval)
    whisker = '<line class="whisker" x1="{}" x2="{}" y1="12" y2="12"/>' if main else ""
    return Markup(
        '<svg class="dots" viewBox="0 0 300 24" preserveAspectRatio="none" aria-hidden="true">'
        '<rect class="band" x="{}" width="{}" y="0" height="24"/>{}'
        '<line class="{}" x1="{at}" x2="{at}" y1="{}" y2="{}"/></svg>'
    ).format(
        f"{low:.1f}",
        f"{high - low:.1f}",
        Markup(whisker).format(f"{low:.1f}", f"{high:.1f}"),
        "main-row" if main else "base",
        4 if main else 6,
        20 if main else 18,
        at=f"{position(value):.1f}",
    )


def share_bar(share: float) -> Markup:
    """Return a share as a thin bar for a table cell."""
    return Markup(
        '<svg class="bar" viewBox="0 0 100 6" preserveAspectRatio="none" aria-hidden="true">'
        '<rect class="rest" width="100" height="6"/><rect width="{}" height="6"/></svg>'
    ).format(f"{100 * share:.1f}")
