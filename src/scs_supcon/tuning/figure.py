"""The figure of a search: its progress, and the loss along each varied key."""

from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

from scs_supcon.report.figures import ACCENT, OTHER, figure_style, new_figure, save_figure
from scs_supcon.tuning.space import Axis, Range
from scs_supcon.tuning.study import Trial, best


def draw_search(trials: Sequence[Trial], axes: Sequence[Axis], folder: Path) -> list[Path]:
    """Write search.png and search.svg; return their paths."""
    with figure_style():
        figure, panels = new_figure(4.2, 3.2, panels=1 + len(axes), columns=3)
        _draw_history(panels[0], trials)
        for panel, axis in zip(panels[1:], axes, strict=True):
            _draw_axis(panel, trials, axis)
    return save_figure(figure, folder / "search")


def _draw_history(panel: Any, trials: Sequence[Trial]) -> None:
    numbers, losses = [t.number for t in trials], [t.loss for t in trials]
    panel.plot(numbers, losses, "o", color=ACCENT, markersize=4, label="trial")
    best_so_far = list(accumulate(losses, min))
    panel.step(numbers, best_so_far, where="post", color=OTHER, label="best so far")
    panel.set(xlabel="trial", ylabel="validation loss")
    panel.xaxis.get_major_locator().set_params(integer=True)
    panel.legend()


def _draw_axis(panel: Any, trials: Sequence[Trial], axis: Axis) -> None:
    values = [t.params[axis.key] for t in trials]
    panel.plot(values, [t.loss for t in trials], "o", color=ACCENT, markersize=4, clip_on=False)
    winner = best(trials)
    value = winner.params[axis.key]
    panel.plot([value], [winner.loss], "*", color=OTHER, markersize=12, label="best", clip_on=False)
    if isinstance(axis, Range):
        panel.set_xscale("log" if axis.log else "linear")
        panel.set_xlim(axis.low, axis.high)
    panel.set(xlabel=axis.key.removeprefix("method.options."), ylabel="validation loss")
    panel.legend()
