"""The figures of the paper: boundary over training, β, t-SNE, the sigmoid mapping, ranks."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from scs_supcon.benchmark.results import CellResult
from scs_supcon.io.records import csv_rows
from scs_supcon.report.figures import (
    ACCENT,
    CLASS_COLOURS,
    INK,
    OTHER,
    RULE,
    SOFT,
    figure_style,
    new_figure,
)
from scs_supcon.report.gallery import map_points

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BOUNDARY = {"t": "temperature t", "b": "bias b", "boundary": "boundary b/t"}
PAPER_PLATEAUS = {"t": (0.09, 0.115), "b": (0.0, 0.09)}  # where the paper's curves end
COLOURS = (ACCENT, OTHER, "#228833", "#aa3377", INK)
TSNE_CLASSES = 10
Curve = tuple[list[float], list[float]]


def read_boundary(run: Path) -> dict[str, Curve]:
    """Return t, b and b/t by epoch from the metrics of a run."""
    curves: dict[str, Curve] = {name: ([], []) for name in BOUNDARY}
    types = {"stage": str, "metric": str, "epoch": float, "value": float}
    for row in csv_rows(run / "metrics.csv", types):
        if row["stage"] == "pretrain" and row["metric"] in curves:
            epochs, values = curves[row["metric"]]
            epochs.append(float(row["epoch"]))
            values.append(float(row["value"]))
    return curves


def boundary_figure(results: Mapping[str, Sequence[CellResult]], title: str) -> "Figure":
    """Draw t, b and b/t over the share of the schedule, one line per run.

    Args:
        results: finished runs of each row, in one column of the table.
        title: the column.
    """
    with figure_style():
        figure, panels = new_figure(3.6, 3.1, panels=3, columns=3)
        for axes, (name, label) in zip(panels, BOUNDARY.items(), strict=True):
            if name in PAPER_PLATEAUS:
                axes.axhspan(*PAPER_PLATEAUS[name], color=RULE, label="the paper's plateau")
            for number, (row, runs) in enumerate(results.items()):
                for first, run in enumerate(runs):
                    epochs, values = read_boundary(run.run)[name]
                    share = [100 * epoch / run.cell.recipe.pretrain.epochs for epoch in epochs]
                    axes.plot(
                        share,
                        values,
                        color=COLOURS[number % len(COLOURS)],
                        lw=1.4,
                        alpha=0.8,
                        label=row if first == 0 else None,
                    )
            if name == "b":
                axes.axhline(_log_odds(results), color=SOFT, lw=1, ls=":", label="ln(classes − 1)")
            linear = 0.1 if name != "boundary" else 1.0
            axes.set_yscale("symlog", linthresh=linear, subs=(3,))
            axes.yaxis.set_major_formatter("{x:g}")
            axes.yaxis.set_minor_formatter("{x:g}")
            if axes.dataLim.ymin >= 0:  # negative ticks would only take space
                axes.set_ylim(bottom=max(0.0, 0.7 * axes.dataLim.ymin))
            axes.set_title(label)
            axes.set_xlabel("% of the epochs of stage 1")
        handles, texts = panels[1].get_legend_handles_labels()
        figure.legend(handles, texts, loc="outside lower center", ncols=5, fontsize=8)
        figure.suptitle(title, x=0.01, ha="left", fontsize=10)
    return figure


def _log_odds(results: Mapping[str, Sequence[CellResult]]) -> float:
    """Return the log-odds of a negative pair: ln(C − 1) for C classes of equal size."""
    runs = [run for runs in results.values() for run in runs]
    evaluation = runs[0].evaluation
    assert evaluation is not None  # the runs are finished
    return math.log(max(2, len(evaluation.classes)) - 1)


def beta_figure(series: Mapping[str, Mapping[float, Sequence[float]]], title: str) -> "Figure":
    """Draw accuracy against β with the standard deviation over the runs.

    Args:
        series: accuracies in per cent by series and β.
        title: the column.
    """
    with figure_style():
        figure, (axes,) = new_figure(5.0, 3.4)
        axes.axvline(1e-3, color=RULE, lw=6, label="the paper's optimum")
        for number, (name, points) in enumerate(series.items()):
            betas = sorted(points)
            means = [float(np.mean(points[beta])) for beta in betas]
            spreads = [float(np.std(points[b], ddof=1)) if len(points[b]) > 1 else 0 for b in betas]
            colour = COLOURS[number % len(COLOURS)]
            axes.errorbar(betas, means, spreads, color=colour, marker="o", capsize=3, label=name)
            for beta in betas:
                axes.plot([beta] * len(points[beta]), points[beta], ".", color=colour, alpha=0.4)
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter("{x:g}")
        axes.set_xlabel("β")
        axes.set_ylabel("test accuracy, %")
        axes.set_title(title)
        axes.legend(fontsize=8)
    return figure


def tsne_figure(
    fields: Mapping[str, tuple[NDArray[np.float32], Sequence[str]]], title: str
) -> "Figure":
    """Draw t-SNE maps of the common field side by side.

    Args:
        fields: vectors and labels of the same images, by method.
        title: the column.
    """
    with figure_style():
        figure, panels = new_figure(3.6, 3.9, panels=len(fields), columns=3)
        for axes, (name, (vectors, labels)) in zip(panels, fields.items(), strict=True):
            points, names = map_points(vectors), np.array(labels)
            for number, label in enumerate(sorted(set(labels))):
                members = names == label
                colour = CLASS_COLOURS[number % len(CLASS_COLOURS)]
                x, y = points[members].T
                axes.scatter(x, y, s=9, color=colour, alpha=0.7, lw=0, label=label)
            axes.set_title(f"{name}\nsilhouette {silhouette(vectors, names):.2f}")
            axes.set_aspect("equal")
            axes.set(xlim=(-0.03, 1.03), ylim=(-0.03, 1.03))
            axes.set_axis_off()
        handles, texts = panels[0].get_legend_handles_labels()
        figure.legend(handles, texts, loc="outside lower center", ncols=5, fontsize=7)
        figure.suptitle(title, x=0.01, ha="left", fontsize=10)
    return figure


def silhouette(vectors: NDArray[np.float32], labels: NDArray[np.str_]) -> float:
    """Return the mean silhouette of the classes by cosine distance: 1 is perfect, 0 overlap."""
    from sklearn.metrics import silhouette_score

    if len(set(labels.tolist())) < 2 or len(set(labels.tolist())) >= len(labels):
        return math.nan
    return float(silhouette_score(vectors, labels, metric="cosine"))


def random_classes(labels: Sequence[str], seed: int = 0) -> list[str]:
    """Return ten classes, drawn at random, or all if there are fewer."""
    classes = sorted(set(labels))
    count = min(TSNE_CLASSES, len(classes))
    return sorted(np.random.default_rng(seed).choice(classes, count, replace=False).tolist())


def sigmoid_figure(settings: Mapping[str, tuple[float, float]]) -> "Figure":
    """Draw similarity → logit → probability of "same class" → loss, with the boundary b/t.

    Args:
        settings: (t, b) by name, one row of panels each.
    """
    similarity = np.linspace(-1, 1, 401)
    titles = ("logit a = t·r − b", 'probability of "same", σ(a)', "loss of a pair")
    with figure_style():
        figure, panels = new_figure(3.5, 2.6, panels=3 * len(settings), columns=3)
        for row, (name, (t, b)) in enumerate(settings.items()):
            logit = t * similarity - b
            left, middle, right = panels[3 * row : 3 * row + 3]
            left.plot(similarity, logit, color=INK)
            middle.plot(similarity, 1 / (1 + np.exp(-logit)), color=INK)
            middle.set_ylim(-0.03, 1.03)
            right.plot(similarity, np.logaddexp(0, -logit), color=ACCENT, label="positive pair")
            right.plot(similarity, np.logaddexp(0, logit), "--", color=OTHER, label="negative pair")
            right.set_ylim(bottom=0)
            for axes, title in zip((left, middle, right), titles, strict=True):
                axes.set_title(title if row == 0 else "")
                _mark_boundary(axes, b / t)
            left.set_ylabel(name)
        for axes in panels[-3:]:
            axes.set_xlabel("similarity r")
        panels[2].legend(fontsize=8)
    return figure


def _mark_boundary(axes: "Axes", boundary: float) -> None:
    """Mark the boundary, or write on which side all similarities lie."""
    if -1 <= boundary <= 1:
        axes.axvline(boundary, color=SOFT, lw=1, ls=":")
        axes.annotate(
            f"b/t = {boundary:.2g}",
            (boundary, 0.3),
            xycoords=("data", "axes fraction"),
            xytext=(3, 0),
            textcoords="offset points",
            fontsize=8,
            color=SOFT,
        )
    else:
        side = "positive" if boundary < -1 else "negative"
        text = f"b/t = {boundary:.3g}:\nevery pair is {side}"
        axes.text(0.04, 0.8, text, transform=axes.transAxes, fontsize=8, color=SOFT)
