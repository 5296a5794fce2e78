"""Small charts as SVG, drawn without JavaScript; colours come from the page's style sheet."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from markupsafe import Markup

Points = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Frame:
    """A plotting area: what range of numbers lies where, in units of the drawing."""

    x: tuple[float, float]
    y: tuple[float, float]
    width: int = 420
    height: int = 240
    left: int = 50
    right: int = 22
    top: int = 24
    bottom: int = 34

    def at(self, x: float, y: float) -> tuple[float, float]:
        """Where a point goes."""
        across = (x - self.x[0]) / (self.x[1] - self.x[0])
        up = (y - self.y[0]) / (self.y[1] - self.y[0])
        inner = self.width - self.left - self.right, self.height - self.top - self.bottom
        return self.left + across * inner[0], self.top + (1 - up) * inner[1]

    def path(self, points: Points, close: bool = False) -> str:
        """Drawing commands of a line through points."""
        moves = " L".join(f"{x:.1f} {y:.1f}" for x, y in (self.at(*point) for point in points))
        return f"M{moves}{'Z' if close else ''}" if points else ""


def line(frame: Frame, points: Points, kind: str) -> Markup:
    """A line of the class `kind`."""
    return Markup('<path class="line {}" d="{}"/>').format(kind, frame.path(points))


def area(frame: Frame, points: Points, kind: str) -> Markup:
    """The area between a line and the bottom of the frame."""
    floor = frame.y[0]
    closed = [(points[0][0], floor), *points, (points[-1][0], floor)]
    return Markup('<path class="area {}" d="{}"/>').format(kind, frame.path(closed, close=True))


def dot(frame: Frame, x: float, y: float, kind: str, radius: float = 4) -> Markup:
    """A dot."""
    cx, cy = frame.at(x, y)
    return Markup('<circle class="dot {}" cx="{}" cy="{}" r="{}"/>').format(
        kind, f"{cx:.1f}", f"{cy:.1f}", f"{radius:.1f}"
    )


def upright(frame: Frame, x: float, words: str) -> Markup:
    """A dashed line across the frame at x, with words at its top."""
    across, top = frame.at(x, frame.y[1])
    right = across > frame.width * 0.6
    return Markup(
        '<line class="mark" x1="{x}" x2="{x}" y1="{top}" y2="{low}"/>'
        '<text class="strong" x="{at}" y="{y}" text-anchor="{anchor}">{words}</text>'
    ).format(
        x=f"{across:.1f}",
        top=f"{top:.1f}",
        low=frame.height - frame.bottom,
        at=f"{across + (-6 if right else 6):.1f}",
        y=f"{top + 10:.1f}",
        anchor="end" if right else "start",
        words=words,
    )


def label(frame: Frame, x: float, y: float, words: str, anchor: str = "start") -> Markup:
    """Words at a point."""
    across, up = frame.at(x, y)
    return Markup('<text class="strong" x="{}" y="{}" text-anchor="{}">{}</text>').format(
        f"{across:.1f}", f"{up:.1f}", anchor, words
    )


def chart(
    frame: Frame,
    parts: Sequence[Markup],
    title: str,
    axes: tuple[str, str] = ("", ""),
    show: tuple[Callable[[float], str], Callable[[float], str]] | None = None,
) -> Markup:
    """A drawing with grid, axes and a title for those who cannot see it."""
    across, up = show or (number, number)
    low = frame.height - frame.bottom
    grid = [
        Markup(
            '<line class="grid" x1="{}" x2="{}" y1="{y}" y2="{y}"/>'
            '<text x="{}" y="{}" text-anchor="end">{}</text>'
        ).format(
            frame.left,
            frame.width - frame.right,
            frame.left - 6,
            f"{frame.at(0, tick)[1] + 4:.1f}",
            up(tick),
            y=f"{frame.at(0, tick)[1]:.1f}",
        )
        for tick in ticks(*frame.y, most=4)
    ]
    grid += [
        Markup('<text x="{}" y="{}" text-anchor="middle">{}</text>').format(
            f"{frame.at(tick, 0)[0]:.1f}", low + 16, across(tick)
        )
        for tick in ticks(*frame.x, most=5)
    ]
    names = Markup('<text x="{}" y="{}" text-anchor="end">{}</text>').format(
        frame.width - frame.right, frame.height - 3, axes[0]
    ) + Markup('<text x="{}" y="{}">{}</text>').format(2, 11, axes[1])
    return Markup(
        '<svg class="chart" viewBox="0 0 {} {}" role="img" aria-label="{}">{}{}{}'
        '<line class="axis" x1="{}" x2="{}" y1="{low}" y2="{low}"/></svg>'
    ).format(
        frame.width,
        frame.height,
        title,
        Markup("").join(grid),
        names,
        Markup("").join(parts),
        frame.left,
        frame.width - frame.right,
        low=low,
    )


def ticks(low: float, high: float, most: int) -> list[float]:
    """Round numbers between low and high, at most so many."""
    span = high - low
    step = 10.0 ** math.floor(math.log10(span / most))
    step *= next(f for f in (1, 2, 5, 10, 20) if span / (step * f) <= most)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [index * step for index in range(first, last + 1)]


def around(values: Sequence[float], margin: float = 0.08) -> tuple[float, float]:
    """A range that holds the values with some room; never empty."""
    low, high = min(values), max(values)
    room = (high - low) * margin or max(abs(high) * 0.1, 1e-3)
    return low - room, high + room


def number(value: float) -> str:
    """A number as short as it can be read."""
    if value == 0:
        return "0"
    if abs(value) >= 1e5 or abs(value) < 1e-3:
        return f"{value:.0e}".replace("e-0", "e-").replace("e+0", "e").replace("-", "−")
    return f"{value:.3g}".replace("-", "−")


def percent(value: float) -> str:
    """A share in percent, without decimals."""
    return f"{100 * value:.0f}\u00a0%"
