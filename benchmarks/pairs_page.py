"""The page and the figure of `benchmarks/pairs.py`, from its measurements."""

import json
import statistics
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

OUT = Path(__file__).parents[1] / "docs" / "benchmarks"
MIB = 2**20


@dataclass(frozen=True)
class Results:
    """Measurements.

    Attributes:
        machine: cores, threads and versions.
        columns: width of the common and of the style field.
        seconds: "rows,classes" -> contender -> seconds of each round.
        peaks: contender -> rows -> bytes above the inputs; None: does not fit into memory.
    """

    machine: dict[str, str]
    columns: tuple[int, int]
    seconds: dict[str, dict[str, list[float]]]
    peaks: dict[str, dict[str, int | None]]

    def save(self) -> None:
        rounded = {
            case: {name: [round(t, 7) for t in rounds] for name, rounds in contenders.items()}
            for case, contenders in self.seconds.items()
        }
        record = asdict(self) | {"seconds": rounded}
        (OUT / "pairs.json").write_text(json.dumps(record, indent=1) + "\n")

    @classmethod
    def load(cls) -> "Results":
        return cls(**json.loads((OUT / "pairs.json").read_text()))

    def ratio(self, rows: int, slow: str, fast: str, classes: int = 100) -> float | None:
        """Return the median over the rounds of slow ÷ fast; None if one of them was not run."""
        seconds = self.seconds[f"{rows},{classes}"]
        if slow not in seconds or fast not in seconds:
            return None
        return statistics.median(a / b for a, b in zip(seconds[slow], seconds[fast], strict=True))

    def solving(self, rows: int, classes: int = 100) -> float:
        """Return the share of a step that is spent on solving b."""
        return 1 - 1 / (self.ratio(rows, "ours_solved", "ours_given", classes) or 1)


def table(head: list[str], rows: Iterable[list[str]]) -> str:
    lines = [head, ["---:"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def speed(results: Results) -> str:
    """Return the table of times and ratios."""
    ratios = {
        "÷ bare products": ("ours", "bare_products"),
        "dense ÷ ours": ("dense", "ours"),
        "dense ÷ ours, b solved": ("dense_solved", "ours_solved"),
        "open_clip ÷ ours": ("open_clip_sigmoid", "ours"),
        "PML SupCon ÷ ours": ("pml_supcon", "ours"),
        "dense ÷ our SupCon": ("dense_supcon", "ours_supcon"),
        "PML ÷ our SupCon": ("pml_supcon", "ours_supcon"),
        "PML ÷ our CS-SupCon": ("pml_supcon", "ours_cs_supcon"),
    }
    rows = []
    for case, seconds in results.seconds.items():
        n, classes = map(int, case.split(","))
        values = [results.ratio(n, *pair, classes) for pair in ratios.values()]
        rows.append(
            [
                f"{n:,}",
                str(classes),
                f"{statistics.median(seconds['ours']) * 1e3:.2f}",
                *("does not fit" if r is None else f"{r:.2f}" for r in values),
                f"{100 * results.solving(n, classes):.1f}",
            ]
        )
    return table(["N", "classes", "ours, ms", *ratios, "solving b, %"], rows)


def memory(results: Results) -> str:
    """Return the table of peaks."""
    sizes = list(next(iter(results.peaks.values())))
    rows = [
        [name, *("does not fit" if b is None else f"{b / MIB:,.0f}" for b in peaks.values())]
        for name, peaks in results.peaks.items()
    ]
    return table(["MiB above the inputs", *(f"N = {int(n):,}" for n in sizes)], rows)


def targets(results: Results) -> str:
    """Return the table of targets and measured values."""

    def least(slow: str, fast: str, sizes: Iterable[int]) -> float:
        return min(results.ratio(n, slow, fast) or 0.0 for n in sizes)

    def at_least(goal: float) -> Callable[[float], bool]:
        return lambda value: value >= goal

    def at_most(goal: float) -> Callable[[float], bool]:
        return lambda value: value <= goal

    all_sizes = [int(case.split(",")[0]) for case in results.seconds if case.endswith(",100")]
    small = [n for n in all_sizes if n <= 1024]
    bare = max(results.ratio(n, "ours", "bare_products") or 0 for n in all_sizes if n >= 4096)
    peak = (results.peaks["ours"]["65536"] or 0) / 1e6
    slowest = 1 / least("dense", "ours", small)
    slowest_solved = 1 / least("dense_solved", "ours_solved", small)
    goals = [
        ("N ≤ 1,024: ours ÷ dense", "≤ 1.05", slowest, at_most(1.05)),
        ("N ≤ 1,024, b solved by both: ours ÷ dense", "≤ 1.05", slowest_solved, at_most(1.05)),
        ("N = 2,048: dense ÷ ours", "≥ 2.5", least("dense", "ours", [2048]), at_least(2.5)),
        ("N = 8,192: dense ÷ ours", "≥ 9", least("dense", "ours", [8192]), at_least(9)),
        ("N = 8,192: PML ÷ ours", "≥ 11", least("pml_supcon", "ours", [8192]), at_least(11)),
        (
            "N = 8,192: PML ÷ our SupCon",
            "≥ 5",
            least("pml_supcon", "ours_supcon", [8192]),
            at_least(5),
        ),
        (
            "N = 8,192: PML ÷ our CS-SupCon",
            "≥ 5",
            least("pml_supcon", "ours_cs_supcon", [8192]),
            at_least(5),
        ),
        ("N ≥ 4,096: ours ÷ bare products", "≤ 1.6", bare, at_most(1.6)),
        ("solving b at N = 2,048, %", "≤ 15", 100 * results.solving(2048), at_most(15)),
        ("solving b at N = 8,192, %", "≤ 3", 100 * results.solving(8192), at_most(3)),
        ("memory at N = 65,536, MB", "≤ 400", peak, at_most(400)),
    ]
    rows = [[name, goal, f"{x:.2f}", "yes" if met(x) else "no"] for name, goal, x, met in goals]
    return table(["target", "goal", "measured", "met"], rows)


CURVES = {
    # contender: (label, colour, line); ours have thick lines.
    "ours": ("SCS-SupCon, ours", "#c1272d", "-"),
    "dense": ("SCS-SupCon, dense autograd", "#e8a0a2", "-"),
    "ours_supcon": ("SupCon, ours", "#0b5394", "-"),
    "pml_supcon": ("SupCon, pytorch-metric-learning", "#8ab4dc", "-"),
    "open_clip_sigmoid": ("sigmoid loss, open_clip", "#7f7f7f", "-"),
    "bare_products": ("bare products", "#333333", ":"),
}


def draw(results: Results) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt
    from matplotlib.ticker import FuncFormatter, NullLocator

    figure, axes = plt.subplots(1, 2, figsize=(11, 4.6), layout="constrained")
    for name, (label, colour, line) in CURVES.items():
        times = {
            int(case.split(",")[0]): statistics.median(seconds[name]) * 1e3
            for case, seconds in results.seconds.items()
            if case.endswith(",100") and name in seconds
        }
        peaks = {int(n): b / MIB for n, b in results.peaks.get(name, {}).items() if b}
        for axis, points in zip(axes, (times, peaks), strict=True):
            if points:
                axis.plot(
                    *zip(*sorted(points.items()), strict=True),
                    label=label,
                    color=colour,
                    linestyle=line,
                    linewidth=2.4 if name.startswith("ours") else 1.4,
                    marker="o",
                    markersize=4,
                )
    plain = FuncFormatter(lambda value, _: f"{value:,.10g}")
    titles = "Time of a step, ms", "Peak memory above the inputs, MiB"
    for axis, title in zip(axes, titles, strict=True):
        axis.set_xscale("log", base=2)
        axis.set_yscale("log")
        axis.set_xlabel("rows in the batch")
        axis.set_title(title, loc="left")
        axis.xaxis.set_major_formatter(plain)
        axis.yaxis.set_major_formatter(plain)
        axis.xaxis.set_minor_locator(NullLocator())
        axis.tick_params(axis="x", labelrotation=45)
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].set_xticks(
        [int(case.split(",")[0]) for case in results.seconds if case.endswith(",100")]
    )
    axes[1].set_xticks([int(n) for n in results.peaks["ours"]])
    figure.legend(
        *axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False
    )
    figure.savefig(OUT / "pairs.png", dpi=130)
    plt.close(figure)


def write(results: Results) -> None:
    """Write the page and the figure."""
    OUT.mkdir(parents=True, exist_ok=True)
    common, style = results.columns
    where = "; ".join(f"{key}: {value}" for key, value in results.machine.items())
    text = f"""# Pair losses side by side

One forward and backward pass, normalisation and style included, float32, {common} common and
{style} style columns. Ratios are medians over rounds in which all contenders took turns on the same
tensors; "x ÷ ours" above 1 means that ours is faster. Created by `make bench`; the seconds of each
round are in [pairs.json](pairs.json).

Measured with {where}.

The load average is that of other processes before the run: if it is above 0, times are disturbed
and ratios are less certain than their digits suggest.

![time and memory by batch size](pairs.png)

## Targets

{targets(results)}

## Time

"ours" learns t and b, as does "dense": the same loss with whole matrices and autograd. In "b
solved" both solve b at every step, which is our default. "÷ bare products" compares with the tiled
matrix products alone. "solving b" is the share of the step that `bias="solve"` adds to a fixed b.
PML is pytorch-metric-learning.

{speed(results)}

## Memory

Peak above the inputs, each in a separate process; the gradient of the inputs is included. Sizes
that do not fit into the machine's memory were not run.

{memory(results)}
"""
    (OUT / "pairs.md").write_text(text)
    draw(results)


if __name__ == "__main__":
    write(Results.load())
