"""The critical-difference diagram: mean ranks on a line, bars over what cannot be told apart."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from scs_supcon.benchmark.figures import INK, MUTED, save_figure, to_figure
from scs_supcon.benchmark.statistics import Nemenyi

ROW = 0.26  # inches for a line of text
BAR = 0.13  # inches between bars


def draw_cd_diagram(
    result: Nemenyi, stem: Path, *, title: str, adapted: Collection[str] = ()
) -> list[Path]:
    """Draw to `stem`.png and .svg.

    The better half of the methods is named on the left, the other on the right, one line each, so
    that names never meet however many there are and however close their ranks.

    Args:
        result: of `nemenyi`.
        stem: the files' path without its ending.
        title: what the ranks are over.
        adapted: methods to mark as adapted.
    """
    names = list(result.ranks)
    half = (len(names) + 1) // 2
    bars = _levels(result)
    below = 0.35 + BAR * (max(bars.values(), default=-1) + 1)
    height = 1.35 + below + ROW * half
    figure, axes = to_figure(9.0, height)
    axes.set(xlim=(-0.34, 1.34), ylim=(-(below + ROW * half), 1.35))
    axes.axis("off")
    best, last = 1, len(names)

    def at(rank: float) -> float:
        return (rank - best) / (last - best)

    _ruler(axes, range(best, last + 1), at)
    _cd_bar(axes, result.cd, at(best + min(result.cd, last - best)))
    for clique, level in bars.items():
        low, high = result.ranks[clique[0]], result.ranks[clique[-1]]
        y = -0.22 - BAR * level
        axes.plot([at(low) - 0.006, at(high) + 0.006], [y, y], lw=4, color=INK, clip_on=False)
    for number, name in enumerate(names):
        line = number if number < half else len(names) - 1 - number
        label = f"{name} (adapted)" if name in adapted else name
        _name(axes, label, result.ranks[name], at, (number < half, -(below + ROW * line)))
    axes.set_title(title, fontsize=10, color=INK, loc="left", x=0.0)
    return save_figure(figure, stem)


def _ruler(axes: Any, ranks: Sequence[int], at: Any) -> None:
    axes.plot([0, 1], [0, 0], color=INK, lw=1)
    for rank in ranks:
        axes.plot([at(rank)] * 2, [0, 0.1], color=INK, lw=1)
        axes.text(at(rank), 0.16, str(rank), ha="center", va="bottom", fontsize=9, color=INK)


def _cd_bar(axes: Any, cd: float, end: float) -> None:
    axes.plot([0, 0, 0, end, end, end], [0.62, 0.76, 0.69, 0.69, 0.76, 0.62], color=MUTED, lw=1.2)
    text = f"CD = {cd:.2f}"
    axes.text(0, 0.84, text, ha="left", va="bottom", fontsize=9, color=MUTED)


def _name(axes: Any, name: str, rank: float, at: Any, place: tuple[bool, float]) -> None:
    left, y = place
    edge = -0.02 if left else 1.02
    axes.plot([at(rank), at(rank), edge], [0, y, y], color=MUTED, lw=0.8, zorder=0)
    axes.plot([at(rank)], [0], "o", color=INK, markersize=3.5)
    side = "right" if left else "left"
    text = f"{name}  {rank:.2f}" if left else f"{rank:.2f}  {name}"
    # Names are data: a dollar sign is not a formula.
    axes.text(
        edge - 0.008 if left else edge + 0.008,
        y,
        text,
        ha=side,
        va="center",
        fontsize=9,
        color=INK,
        parse_math=False,
    )


def _levels(result: Nemenyi) -> Mapping[tuple[str, ...], int]:
    """The height at which each bar is drawn: the first where it meets no other."""
    levels: dict[tuple[str, ...], int] = {}
    for clique in result.cliques:
        low = result.ranks[clique[0]]
        taken = {level for other, level in levels.items() if result.ranks[other[-1]] >= low - 0.1}
        levels[clique] = next(level for level in range(len(taken) + 1) if level not in taken)
    return levels
