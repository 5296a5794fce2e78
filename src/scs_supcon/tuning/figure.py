"""Images of a search: how far it has come, and the loss along each thing that was varied."""

from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

from scs_supcon.benchmark.figures import save_figure
from scs_supcon.tuning.space import Axis, Range
from scs_supcon.tuning.study import Trial, best

DOT, BEST = "#4477aa", "#cc3311"


def draw_search(trials: Sequence[Trial], axes: Sequence[Axis], folder: Path) -> list[Path]:
    """Write search.png and search.svg."""
    from matplotlib.figure import Figure

    panels = 1 + len(axes)
    columns = min(3, panels)
    rows = -(-panels // columns)
    figure = Figure(figsize=(4.2 * columns, 3.2 * rows), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False).flatten()
    _history(grid[0], trials)
    for panel, axis in zip(grid[1:], axes, strict=False):
        _slice(panel, trials, axis)
    for panel in grid[:panels]:
        panel.spines[["top", "right"]].set_visible(False)
    for panel in grid[panels:]:
        panel.axis("off")
    return save_figure(figure, folder / "search")


def _history(panel: Any, trials: Sequence[Trial]) -> None:
    numbers, losses = [t.number for t in trials], [t.loss for t in trials]
    panel.plot(numbers, losses, "o", color=DOT, markersize=4, label="trial")
    panel.step(
        numbers, list(accumulate(losses, min)), where="post", color=BEST, label="best so far"
    )
    panel.set(xlabel="trial", ylabel="loss on validation")
    panel.xaxis.get_major_locator().set_params(integer=True)
    panel.legend(frameon=False)


def _slice(panel: Any, trials: Sequence[Trial], axis: Axis) -> None:
    chosen = [t.params[axis.key] for t in trials]
    panel.plot(chosen, [t.loss for t in trials], "o", color=DOT, markersize=4, clip_on=False)
    found = best(trials)
    where = found.params[axis.key]
    panel.plot([where], [found.loss], "*", color=BEST, markersize=12, label="best", clip_on=False)
    if isinstance(axis, Range):
        panel.set_xscale("log" if axis.log else "linear")
        panel.set_xlim(axis.low, axis.high)
    panel.set(xlabel=axis.key.removeprefix("method.options."), ylabel="loss on validation")
    panel.legend(frameon=False)
