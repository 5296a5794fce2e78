"""Every run of every method as a dot, with mean and spread: what lies behind the table."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from scs_supcon.benchmark.figures import ACCENT, INK, MUTED, save_figure, to_figure


def draw_dot_plot(
    scores: Mapping[str, Sequence[float]],
    stem: Path,
    *,
    title: str,
    part: str = "test",
    best: str | None = None,
    adapted: Collection[str] = (),
) -> list[Path]:
    """Draw to `stem`.png and .svg.

    Args:
        scores: accuracies in per cent of each method, in the order from top to bottom.
        stem: the files' path without its ending.
        title: the column's name.
        part: of the data that the accuracies are of: "test" or "validation".
        best: the method to draw in colour.
        adapted: methods to mark as adapted.
    """
    figure, axes = to_figure(8.0, 1.2 + 0.3 * len(scores))
    for line, (name, values) in enumerate(scores.items()):
        colour = ACCENT if name == best else INK
        if not values:
            continue
        mean = sum(values) / len(values)
        spread = (sum((v - mean) ** 2 for v in values) / max(1, len(values) - 1)) ** 0.5
        axes.plot([mean - spread, mean + spread], [line, line], color=colour, lw=2)
        axes.plot(values, [line] * len(values), "o", color=MUTED, markersize=4, alpha=0.7)
        axes.plot([mean], [line], "D", color=colour, markersize=6)
    labels = [f"{name} (adapted)" if name in adapted else name for name in scores]
    axes.set_yticks(range(len(labels)), labels, parse_math=False)
    axes.invert_yaxis()
    axes.set_title(title, loc="left", fontsize=10, color=INK, parse_math=False)
    axes.set_xlabel(f"{part} accuracy, %: dots are runs, diamonds means, lines ± one deviation")
    axes.grid(axis="x", color="#e6e8ee")
    axes.set_axisbelow(True)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.tick_params(left=False)
    return save_figure(figure, stem)
