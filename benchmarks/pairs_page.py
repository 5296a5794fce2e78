"""The page and the figure of `benchmarks/pairs.py`, from the numbers it has measured."""

import json
import statistics
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

OUT = Path(__file__).parents[1] / "docs" / "benchmarks"
MIB = 2**20


@dataclass(frozen=True)
class Results:
    """What was measured.

    Attributes:
        machine: cores, threads and versions.
        columns: of the common and of the style field.
        seconds: "rows,classes" -> contender -> seconds of each round.
        peaks: contender -> rows -> bytes above the inputs; None: would not fit.
    """

    machine: dict[str, str]
    columns: tuple[int, int]
    seconds: dict[str, dict[str, list[float]]]
    peaks: dict[str, dict[str, int | None]]

    def save(self) -> None:
        rounded = {
            case: {name: [round(t, 7) for t in taken] for name, taken in contenders.items()}
            for case, contenders in self.seconds.items()
        }
        found = asdict(self) | {"seconds": rounded}
        (OUT / "pairs.json").write_text(json.dumps(found, indent=1) + "\n")

    @classmethod
    def load(cls) -> "Results":
        return cls(**json.loads((OUT / "pairs.json").read_text()))

    def ratio(self, rows: int, slow: str, fast: str, classes: int = 100) -> float | None:
        """Median over the rounds of slow ÷ fast; None where one of them did not run."""
        taken = self.seconds[f"{rows},{classes}"]
        if slow not in taken or fast not in taken:
            return None
        return statistics.median(a / b for a, b in zip(taken[slow], taken[fast], strict=True))

    def solving(self, rows: int, classes: int = 100) -> float:
        """Share of a step with solved b that a step with a given b does not need."""
        return 1 - 1 / (self.ratio(rows, "ours_solved", "ours_given", classes) or 1)


def table(head: list[str], rows: Iterable[list[str]]) -> str:
    lines = [head, ["---:"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def speed(results: Results) -> str:
    """The table of times and ratios."""
    ratios = {
        "÷ bare products": ("ours", "bare_products"),
        "dense ÷ ours": ("dense", "ours"),
        "dense ÷ ours, b solved": ("dense", "ours_solved"),
        "open_clip ÷ ours": ("open_clip_sigmoid", "ours"),
        "PML SupCon ÷ ours": ("pml_supcon", "ours"),
        "dense ÷ our SupCon": ("dense_supcon", "ours_supcon"),
        "PML ÷ our SupCon": ("pml_supcon", "ours_supcon"),
        "PML ÷ our CS-SupCon": ("pml_supcon", "ours_cs_supcon"),
    }
    rows = []
    for case, taken in results.seconds.items():
        n, classes = map(int, case.split(","))
        found = [results.ratio(n, *pair, classes) for pair in ratios.values()]
        rows.append(
            [
                f"{n:,}",
                str(classes),
                f"{statistics.median(taken['ours']) * 1e3:.2f}",
                *("does not fit" if r is None else f"{r:.2f}" for r in found),
                f"{100 * results.solving(n, classes):.1f}",
            ]
        )
    return table(["N", "classes", "ours, ms", *ratios, "solving b, %"], rows)


def memory(results: Results) -> str:
    """The table of peaks."""
    sizes = list(next(iter(results.peaks.values())))
    rows = [
        [name, *("does not fit" if b is None else f"{b / MIB:,.0f}" for b in held.values())]
        for name, held in results.peaks.items()
    ]
    return table(["MiB above the inputs", *(f"N = {int(n):,}" for n in sizes)], rows)


def targets(results: Results) -> str:
    """What was asked for, what was found, and whether it holds."""

    def least(slow: str, fast: str, sizes: Iterable[int]) -> float:
        return min(results.ratio(n, slow, fast) or 0.0 for n in sizes)

    def at_least(goal: float) -> Callable[[float], bool]:
        return lambda found: found >= goal

    def at_most(goal: float) -> Callable[[float], bool]:
        return lambda found: found <= goal

    all_sizes = [int(case.split(",")[0]) for case in results.seconds if case.endswith(",100")]
    small = [n for n in all_sizes if n <= 1024]
    bare = max(results.ratio(n, "ours", "bare_products") or 0 for n in all_sizes if n >= 4096)
    held = (results.peaks["ours"]["65536"] or 0) / 1e6
    slowest = 1 / least("dense", "ours", small)
    slowest_solved = 1 / least("dense", "ours_solved", small)
    asked = [
        ("N ≤ 1,024: ours ÷ dense", "≤ 1.05", slowest, at_most(1.05)),
        ("the same with b solved", "≤ 1.05", slowest_solved, at_most(1.05)),
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
        ("memory at N = 65,536, MB", "≤ 400", held, at_most(400)),
    ]
    rows = [[what, goal, f"{x:.2f}", "yes" if holds(x) else "no"] for what, goal, x, holds in asked]
    return table(["target", "asked", "found", "holds"], rows)


CURVES = {
    # contender: (label, colour, line); ours are the thick ones.
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
            int(case.split(",")[0]): statistics.median(taken[name]) * 1e3
            for case, taken in results.seconds.items()
            if case.endswith(",100") and name in taken
        }
        held = {int(n): b / MIB for n, b in results.peaks.get(name, {}).items() if b}
        for axis, points in zip(axes, (times, held), strict=True):
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
tensors; above 1 "x ÷ ours" says that ours is faster. Made by `make bench`; the seconds of every
round are in [pairs.json](pairs.json).

Measured with {where}.

The load is the number of processes of others that wanted a core when the run began: above 0 all
times are disturbed, and ratios are less certain than their digits suggest.

![time and memory against batch size](pairs.png)

## Targets

{targets(results)}

## Time

"ours" learns t and b, as "dense" does: the same loss written with whole matrices and autograd. "b
solved" is our default, which finds b at every step; dense does not have to. "÷ bare products"
compares with the tiled matrix products alone. "solving b" is the share of the step that
`bias="solve"` adds to a given b. PML is pytorch-metric-learning.

{speed(results)}

## Memory

Peak above the inputs, each in a process of its own; the gradient of the inputs is included. What
would not fit into the machine's memory was not run.

{memory(results)}
"""
    (OUT / "pairs.md").write_text(text)
    draw(results)


if __name__ == "__main__":
    write(Results.load())
