"""The figure of a search: its progress, and the objective along each varied key."""

from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

from scs_supcon.report.figures import ACCENT, OTHER, figure_style, new_figure, save_figure
from scs_supcon.tuning.space import Axis, Range
from scs_supcon.tuning.study import Objective, Trial, best

LABELS = {"accuracy": "validation accuracy, %", "loss": "validation loss"}


def draw_search(
    trials: Sequence[Trial], axes: Sequence[Axis], folder: Path, objective: Objective = "accuracy"
) -> list[Path]:
    """Write search.png and search.svg; return their paths."""
    with figure_style():
        figure, panels = new_figure(4.2, 3.2, panels=1 + len(axes), columns=3)
        _draw_history(panels[0], trials, objective)
        for panel, axis in zip(panels[1:], axes, strict=True):
            _draw_axis(panel, trials, axis, objective)
    return save_figure(figure, folder / "search")


def _draw_history(panel: Any, trials: Sequence[Trial], objective: Objective) -> None:
    # Trials that were interrupted have numbers, too: they are not counted here.
    numbers, values = range(len(trials)), [_value(t, objective) for t in trials]
    panel.plot(numbers, values, "o", color=ACCENT, markersize=4, label="trial")
    best_so_far = list(accumulate(values, max if objective == "accuracy" else min))
    panel.step(numbers, best_so_far, where="post", color=OTHER, label="best so far")
    panel.set(xlabel="completed trial", ylabel=LABELS[objective])
    panel.xaxis.get_major_locator().set_params(integer=True)
    panel.legend()


def _draw_axis(panel: Any, trials: Sequence[Trial], axis: Axis, objective: Objective) -> None:
    varied = [t.params[axis.key] for t in trials]
    values = [_value(t, objective) for t in trials]
    panel.plot(varied, values, "o", color=ACCENT, markersize=4, clip_on=False)
    winner = best(trials, objective)
    at, top = winner.params[axis.key], _value(winner, objective)
    panel.plot([at], [top], "*", color=OTHER, markersize=12, label="best", clip_on=False)
    if isinstance(axis, Range):
        panel.set_xscale("log" if axis.log else "linear")
        panel.set_xlim(axis.low, axis.high)
    panel.set(xlabel=axis.key.removeprefix("method.options."), ylabel=LABELS[objective])
    panel.legend()


def _value(trial: Trial, objective: Objective) -> float:
    return 100 * trial.accuracy if objective == "accuracy" else trial.loss
