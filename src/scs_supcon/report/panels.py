"""The charts of a report, one function for each."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from markupsafe import Markup

from scs_supcon.report import charts
from scs_supcon.report.charts import Frame
from scs_supcon.report.inputs import Curves

SQUARE = {"width": 340, "height": 310}

TITLES = {
    ("pretrain", "t"): "temperature t",
    ("pretrain", "b"): "bias b",
    ("pretrain", "boundary"): "boundary",
    ("pretrain", "lr"): "learning rate",
    ("pretrain", "positive_share"): "share of pairs that are of one class",
    ("pretrain", "anchors_without_positives"): "images without a classmate in the batch",
    ("probe", "cross_entropy"): "stage 2: cross-entropy",
}
SCALARS = ("t", "b", "boundary")
ASIDE = ("lr", "positive_share", "anchors_without_positives")


def curve_groups(curves: Curves) -> dict[str, list[Markup]]:
    """Charts of the numbers of training, by what they are about; groups may be empty."""
    stage = [name for part, name in curves if part == "pretrain"]
    terms = [("pretrain", name) for name in stage if name not in SCALARS + ASIDE]
    groups = {
        "Terms of the loss": [*terms, ("probe", "cross_entropy")],
        "Where the boundary went": [("pretrain", name) for name in SCALARS],
        "Other numbers": [("pretrain", name) for name in ASIDE],
    }
    return {
        title: [_curve(curves, key) for key in keys if key in curves]
        for title, keys in groups.items()
    }


def curve_title(key: tuple[str, str]) -> str:
    """What a curve is called."""
    return TITLES.get(key, f"{key[1].replace('_', ' ')} term")


def _curve(curves: Curves, key: tuple[str, str]) -> Markup:
    epochs, values = curves[key]
    points = [(e, v) for e, v in zip(epochs, values, strict=True) if math.isfinite(v)]
    title = curve_title(key)
    if not points:
        return _figure(title, "", Markup(""))
    last = max(epochs)
    frame = Frame(
        (min(epochs) - (last == min(epochs)), last),
        charts.around([v for _, v in points]),
        width=300,
        height=170,
        left=56,
        top=8,
    )
    parts = [charts.line(frame, points, "accent"), charts.dot(frame, *points[-1], "accent", 3)]
    ends = charts.number(points[0][1]), charts.number(points[-1][1])
    words = f"{ends[0]} to {ends[1]}" if ends[0] != ends[1] else f"{ends[0]} at both ends"
    drawing = charts.chart(frame, parts, f"{title}: {words} in {last} epochs", ("epoch", ""))
    return _figure(title, words, drawing)


def _figure(title: str, words: str, drawing: Markup) -> Markup:
    return Markup("<figure><figcaption><b>{}</b> <span>{}</span></figcaption>{}</figure>").format(
        title, words, drawing
    )


def similarity_chart(pairs: Mapping[str, Any]) -> Markup:
    """How alike pairs of one class and pairs of different classes are."""
    edges = pairs["histogram"]["edges"]
    shares = {kind: _shares(pairs["histogram"][kind]) for kind in ("different", "same")}
    low, high = _filled(edges, list(shares.values()))
    top = max(max(share) for share in shares.values()) or 1.0
    frame = Frame((low, high), (0.0, top * 1.2), width=560, height=310)
    parts = []
    for kind, share in shares.items():
        steps = list(_steps(edges, share, low, high))
        parts += [charts.area(frame, steps, kind), charts.line(frame, steps, kind)]
    threshold = pairs["threshold"]
    if low <= threshold <= high:
        name = "boundary" if pairs["rule"] == "boundary" else "line"
        parts.append(charts.upright(frame, threshold, f"{name} {threshold:.2f}"))
    return charts.chart(
        frame,
        parts,
        "Histogram of the similarity of pairs of one class and of different classes",
        ("similarity of the common fields", "share of pairs"),
        (charts.number, charts.percent),
    )


def _shares(counts: Sequence[int]) -> list[float]:
    total = sum(counts)
    return [count / total if total else 0.0 for count in counts]


def _filled(edges: Sequence[float], rows: Sequence[Sequence[float]]) -> tuple[float, float]:
    """Leave out what is all but empty at both ends."""
    used = [at for at, values in enumerate(zip(*rows, strict=True)) if max(values) > 1e-4]
    if not used:
        return edges[0], edges[-1]
    return edges[max(0, used[0] - 1)], edges[min(len(edges) - 1, used[-1] + 2)]


def _steps(
    edges: Sequence[float], shares: Sequence[float], low: float, high: float
) -> Iterator[tuple[float, float]]:
    for left, right, share in zip(edges, edges[1:], shares, strict=False):
        if left >= low - 1e-9 and right <= high + 1e-9:
            yield left, share
            yield right, share


def roc_chart(pairs: Mapping[str, Any]) -> Markup:
    """Pairs called "same", rightly against wrongly, with the threshold marked."""
    frame = Frame((0.0, 1.0), (0.0, 1.0), **SQUARE)
    points = [tuple(point) for point in pairs["roc"]]
    parts = [charts.line(frame, [(0, 0), (1, 1)], "quiet"), charts.line(frame, points, "accent")]
    right, wrong = pairs["true_positive_rate"], pairs["false_positive_rate"]
    if right is not None and wrong is not None:
        parts += [
            charts.dot(frame, wrong, right, "other", 5),
            charts.label(frame, min(wrong + 0.04, 0.6), right - 0.09, "at the boundary"),
        ]
    return charts.chart(
        frame,
        parts,
        "Receiver operating characteristic of pairs",
        ("different pairs called same", "same pairs called same"),
        (charts.percent, charts.percent),
    )


def calibration_chart(calibration: Mapping[str, Any]) -> Markup:
    """How often the model is right against how sure it is, before and after scaling."""
    frame = Frame((0.0, 1.0), (0.0, 1.0), **SQUARE)
    parts = [charts.line(frame, [(0, 0), (1, 1)], "quiet")]
    most = max((b["count"] for b in calibration["after"]["bins"]), default=1) or 1
    for when, kind in (("before", "other"), ("after", "accent")):
        bins = [b for b in calibration[when]["bins"] if b["count"]]
        parts.append(charts.line(frame, [(b["confidence"], b["accuracy"]) for b in bins], kind))
        for b in bins:
            radius = 2 + 5 * math.sqrt(b["count"] / most)
            parts.append(charts.dot(frame, b["confidence"], b["accuracy"], kind, min(radius, 7)))
    return charts.chart(
        frame,
        parts,
        "Reliability diagram: accuracy against confidence",
        ("how sure", "how often right"),
        (charts.percent, charts.percent),
    )


def spread(values: Sequence[float]) -> tuple[float, float]:
    """Ends of an axis of shares for rows of dots: round, with room, between 0 and 1."""
    low, high = min(values), max(values)
    room = max((high - low) * 0.15, 0.01)
    step = next(s for s in (0.01, 0.02, 0.05, 0.1, 0.25) if (high - low + 2 * room) / s <= 12)
    ends = math.floor((low - room) / step) * step, math.ceil((high + room) / step) * step
    return max(0.0, ends[0]), min(1.0, ends[1])


def row_of_dots(
    value: float, ends: tuple[float, float], band: Sequence[float], own: bool
) -> Markup:
    """One row: a dot on an axis, and the interval of the model as a band behind all rows."""

    def at(share: float) -> str:
        return f"{3 + 294 * (share - ends[0]) / (ends[1] - ends[0]):.1f}"

    low, high = (max(ends[0], min(ends[1], end)) for end in band)
    return Markup(
        '<svg class="dots" viewBox="0 0 300 24" preserveAspectRatio="none" aria-hidden="true">'
        '<rect class="band" x="{}" width="{}" y="0" height="24"/>{}'
        '<line class="{}" x1="{at}" x2="{at}" y1="{}" y2="{}"/></svg>'
    ).format(
        at(low),
        f"{max(0.0, float(at(high)) - float(at(low))):.1f}",
        Markup('<line class="whisker" x1="{}" x2="{}" y1="12" y2="12"/>').format(at(low), at(high))
        if own
        else "",
        "own" if own else "base",
        4 if own else 6,
        20 if own else 18,
        at=at(value),
    )


def share_bar(share: float) -> Markup:
    """A share as a thin bar in a table cell."""
    return Markup(
        '<svg class="bar" viewBox="0 0 100 6" preserveAspectRatio="none" aria-hidden="true">'
        '<rect class="rest" width="100" height="6"/><rect width="{}" height="6"/></svg>'
    ).format(f"{100 * share:.1f}")
