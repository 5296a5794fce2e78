"""The figures of a comparison: every run as a dot, and the critical-difference diagram."""

import math
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from scs_supcon.benchmark.results import CellResult
from scs_supcon.benchmark.statistics import Nemenyi
from scs_supcon.io.text import printable_name
from scs_supcon.report.figures import ACCENT, INK, SOFT, figure_style, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ROW = 0.26  # inches per line of text
MOST_TICKS = 12  # numbers of an axis of ranks


def dot_plot(
    scores: Mapping[str, Sequence[float]],
    *,
    title: str,
    split: str = "test",
    best: Collection[str] = (),
    adapted: Collection[str] = (),
    metric: str = "accuracy in per cent",
) -> "Figure":
    """Draw the score of every run, with mean and standard deviation of each method.

    Args:
        scores: scores of each method's runs, from top to bottom.
        title: the column's name.
        split: the split the accuracies were measured on, "test" or "validation".
        best: the methods to highlight.
        adapted: methods to mark as adapted.
        metric: title of the scores.
    """
    with figure_style():
        figure, (axes,) = new_figure(7.0, 1.2 + 0.3 * len(scores))
        for line, (name, values) in enumerate(scores.items()):
            if not values:
                continue
            colour = ACCENT if name in best else INK
            mean = float(np.mean(values))
            spread = float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
            axes.plot([mean - spread, mean + spread], [line, line], color=colour, lw=2)
            axes.plot(values, [line] * len(values), "o", color=SOFT, markersize=4, alpha=0.7)
            axes.plot([mean], [line], "D", color=colour, markersize=6)
        labels = [_label(name, adapted) for name in scores]
        axes.set_yticks(range(len(labels)), labels, color=INK)
        axes.set_ylim(len(labels) - 0.5, -0.5)
        axes.set_title(printable_name(title))
        text = f"{split} {metric}: runs (dots), mean (diamond) ± standard deviation"
        axes.set_xlabel(text, loc="right")  # the names of the methods leave space on the left
        axes.grid(False, axis="y")
        axes.spines["left"].set_visible(False)
        axes.tick_params(left=False)
    return figure


def pair_curves_plot(results: Sequence[CellResult], *, title: str) -> "Figure":
    """Draw t, b and the boundary b/t over the steps of stage 1, one line per run.

    Args:
        results: the runs of one column; methods without t and b are left out.
        title: the column's name.
    """
    rows = list(dict.fromkeys(r.cell.row for r in results if r.pair_curves))
    with figure_style():
        figure, panels = new_figure(3.6, 3.1, panels=3, columns=3)
        for axes, name in zip(panels, ("t", "b", "b/t"), strict=True):
            labelled: set[str] = set()
            for result in results:
                if not result.pair_curves:
                    continue
                row = result.cell.row
                (steps, t), (_, b) = result.pair_curves["t"], result.pair_curves["b"]
                values = {"t": t, "b": b, "b/t": [y / x for x, y in zip(t, b, strict=True)]}[name]
                label = None if row in labelled else printable_name(row)
                labelled.add(row)
                axes.plot(steps, values, color=f"C{rows.index(row)}", lw=1.2, label=label)
            axes.set_xlabel("step")
            axes.set_title(name)
        panels[0].legend(fontsize=7)
        figure.suptitle(printable_name(title), x=0.01, ha="left", fontsize=10)
    return figure


def cd_diagram(result: Nemenyi, *, title: str, adapted: Collection[str] = ()) -> "Figure":
    """Draw mean ranks on a line, with bars that connect methods whose ranks do not differ.

    Args:
        result: result of `nemenyi`.
        title: what the ranks are over.
        adapted: methods to mark as adapted.
    """
    import pandas as pd
    from scikit_posthocs import critical_difference_diagram

    names = {name: _label(name, adapted) for name in result.ranks}
    ranks = {label: result.ranks[name] for name, label in names.items()}
    significance = pd.DataFrame(1.0, index=list(ranks), columns=list(ranks))
    for pair in result.pairs:
        first, second = names[pair.first], names[pair.second]
        significance.loc[first, second] = significance.loc[second, first] = pair.p
    with figure_style():
        figure, (axes,) = new_figure(7.5, 1.0 + ROW * ((len(ranks) + 1) // 2 + 4))
        critical_difference_diagram(
            ranks,
            significance,
            alpha=result.alpha,
            ax=axes,
            label_fmt_left="{label}  {rank:.2f} ",
            label_fmt_right=" {rank:.2f}  {label}",
            label_props={"fontsize": 9},
            color_palette=dict.fromkeys(ranks, INK),
            elbow_props={"linewidth": 0.8, "alpha": 0.6},
            marker_props={"s": 12},
            crossbar_props={"color": INK, "linewidth": 4},
        )
        axes.spines["top"].set_visible(True)
        low, high = 1.0, float(len(ranks))
        axes.set_xlim(low, high)
        axes.set_xticks(range(1, len(ranks) + 1, math.ceil(len(ranks) / MOST_TICKS)))
        for artist in (*axes.lines, *axes.collections):  # a rank may be the first or the last
            artist.set_clip_on(False)
        axes.grid(False)
        end = low + min(result.cd, high - low)
        axes.plot([low, end], [1.6, 1.6], "|-", color=SOFT, linewidth=1.2, clip_on=False)
        axes.text(low, 1.9, f"CD = {result.cd:.2f}", va="bottom", fontsize=9, color=SOFT)
        axes.set_title(printable_name(title), pad=28)
    return figure


def _label(name: str, adapted: Collection[str]) -> str:
    shown = printable_name(name)
    return f"{shown} (adapted)" if name in adapted else shown
