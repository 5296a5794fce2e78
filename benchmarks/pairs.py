"""Pair losses side by side: time and memory of one forward + backward pass.

    python benchmarks/pairs.py            the whole table, into docs/benchmarks/
    python benchmarks/pairs.py --quick    small sizes only, printed

Everyone works on the same tensors in one run, in turns, so that a busy moment of the machine hits
all alike; a ratio is the median over the rounds. Normalisation and style are part of the work.
Memory is the peak above the inputs, each contender in a process of its own.
"""

import argparse
import gc
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from scs_supcon import CSSupCon, SCSSupCon, SupCon

COMMON, STYLE = 192, 64
LONG = 4096  # rows from which a step takes so long that nothing has to be warmed up
OUT = Path(__file__).parents[1] / "docs" / "benchmarks"
Step = Callable[[], object]


def ours(z: Tensor, y: Tensor) -> Step:
    """SCS-SupCon with t and b learned."""
    loss = SCSSupCon(COMMON, preset="siglip", b0=5.0)
    return lambda: loss(z, y).backward()


def ours_solved(z: Tensor, y: Tensor) -> Step:
    """The same with b solved at every step."""
    loss = SCSSupCon(COMMON)
    return lambda: loss(z, y).backward()


def ours_given(z: Tensor, y: Tensor) -> Step:
    """The same with b given: the difference to `ours_solved` is the price of solving."""
    loss = SCSSupCon(COMMON, bias="fixed", b0=5.0)
    return lambda: loss(z, y).backward()


def ours_supcon(z: Tensor, y: Tensor) -> Step:
    loss = SupCon(0.1)
    return lambda: loss(z, y).backward()


def ours_cs_supcon(z: Tensor, y: Tensor) -> Step:
    loss = CSSupCon(COMMON)
    return lambda: loss(z, y).backward()


def dense(z: Tensor, y: Tensor) -> Step:
    """SCS-SupCon as one writes it first: whole matrices, autograd."""
    log_t = torch.tensor(2.3, requires_grad=True)
    b = torch.tensor(5.0, requires_grad=True)

    def step() -> None:
        c, s = F.normalize(z[:, :COMMON], dim=1), F.normalize(z[:, COMMON:], dim=1)
        same = y[:, None] == y[None, :]
        a = log_t.exp() * (c @ c.T) - b
        contrast = F.softplus(torch.where(same, -a, a)).mean()
        positive = same & ~torch.eye(len(y), dtype=torch.bool)
        far = torch.where(positive, torch.cdist(s, s), 0.0).sum(1)
        style = (far / positive.sum(1).clamp_min(1)).mean()
        (contrast - 1e-3 * style).backward()

    return step


def pml_supcon(z: Tensor, y: Tensor) -> Step:
    from pytorch_metric_learning.losses import SupConLoss

    loss = SupConLoss(temperature=0.1)
    return lambda: loss(z, y).backward()


def dense_supcon(z: Tensor, y: Tensor) -> Step:
    """SupCon's formula with whole matrices, as published."""

    def step() -> None:
        x = F.normalize(z, dim=1)
        logits = x @ x.T / 0.1
        logits = logits - logits.max(1, keepdim=True).values.detach()
        others = 1 - torch.eye(len(y))
        mask = (y[:, None] == y[None, :]).float() * others
        log_p = logits - (logits.exp() * others).sum(1, keepdim=True).log()
        (-(mask * log_p).sum(1) / mask.sum(1).clamp_min(1)).mean().backward()

    return step


def open_clip_sigmoid(z: Tensor, y: Tensor) -> Step:
    """open_clip's sigmoid loss: only the diagonal is positive, two normalised towers."""
    from open_clip.loss import SigLipLoss

    loss = SigLipLoss()
    t, b = torch.tensor(10.0, requires_grad=True), torch.tensor(-5.0, requires_grad=True)

    def step() -> None:
        x = F.normalize(z, dim=1)
        loss(x, x, t, b).backward()

    return step


def bare_products(z: Tensor, y: Tensor, tile: int = 512) -> Step:
    """The matrix products that no exact method can avoid: similarities and two gradients."""
    c = F.normalize(z.detach()[:, :COMMON], dim=1)
    n = len(c)
    size = min(tile, n)

    def step() -> None:
        grad, buffer = torch.zeros_like(c), torch.empty(size, size)
        for i in range(0, n, size):
            for j in range(i, n, size):
                x = torch.mm(c[i : i + size], c[j : j + size].T, out=buffer)
                grad[i : i + size].addmm_(x, c[j : j + size])
                if i != j:
                    grad[j : j + size].addmm_(x.T, c[i : i + size])

    return step


CONTENDERS: dict[str, Callable[[Tensor, Tensor], Step]] = {
    f.__name__: f
    for f in (
        ours,
        ours_given,
        ours_solved,
        bare_products,
        dense,
        open_clip_sigmoid,
        ours_supcon,
        ours_cs_supcon,
        dense_supcon,
        pml_supcon,
    )
}
# Matrices of N × N float32 that a contender holds at its peak, measured once at N = 2048.
MATRICES = {"dense": 9, "open_clip_sigmoid": 5, "dense_supcon": 9, "pml_supcon": 12}
OURS = ("ours", "ours_given", "ours_solved", "ours_supcon", "ours_cs_supcon")


def inputs(n: int, classes: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(n + classes)
    z = torch.randn(n, COMMON + STYLE, generator=generator, requires_grad=True)
    return z, torch.randint(0, classes, (n,), generator=generator)


def fits(name: str, n: int) -> bool:
    import psutil

    return MATRICES.get(name, 0) * 4 * n * n < 0.7 * psutil.virtual_memory().available


def times(n: int, classes: int, rounds: int, names: list[str]) -> dict[str, list[float]]:
    """Seconds of every round; all contenders in turns on the same tensors."""
    z, y = inputs(n, classes)
    steps = {name: CONTENDERS[name](z, y) for name in names if fits(name, n)}
    taken: dict[str, list[float]] = {name: [] for name in steps}
    gc.collect()
    for turn in range(rounds + 1):
        for name, step in steps.items():
            if n <= LONG:
                # Once untimed: a training loop runs one loss over and over, in memory it knows.
                z.grad = None
                step()
            z.grad = None
            start = time.perf_counter()
            step()
            if turn:  # the first round also loads libraries
                taken[name].append(time.perf_counter() - start)
    return taken


def peak_memory(name: str, n: int, classes: int) -> None:
    """Print the peak in bytes above the inputs; runs in a process of its own."""
    z, y = inputs(n, classes)
    small = inputs(64, 4)
    CONTENDERS[name](*small)()  # libraries load their own things first
    step = CONTENDERS[name](z, y)
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew here
    before = _status("VmRSS")
    step()
    print(json.dumps(_status("VmHWM") - before))


def _status(key: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(key):
            return int(line.split()[1]) * 1024
    raise KeyError(key)


def memory(name: str, n: int, classes: int, threads: int) -> int | None:
    if not fits(name, n):
        return None
    command = [sys.executable, __file__, "--peak", name, str(n), str(classes)]
    done = subprocess.run(
        [*command, "--threads", str(threads)], capture_output=True, text=True, check=True
    )
    return int(done.stdout)


def ratio(taken: dict[str, list[float]], slow: str, fast: str) -> str:
    if slow not in taken or fast not in taken:
        return "not run"
    return f"{statistics.median(a / b for a, b in zip(taken[slow], taken[fast], strict=True)):.2f}"


def milliseconds(taken: dict[str, list[float]], name: str) -> str:
    return f"{statistics.median(taken[name]) * 1e3:.1f}" if name in taken else "would not fit"


def table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def speed_rows(cases: list[tuple[int, int]], results: dict[str, dict[str, list[float]]]) -> str:
    head = ["N", "classes", "ours, ms", "÷ bare products", "dense ÷ ours", "open_clip ÷ ours"]
    head += ["solving b, %", "PML SupCon ÷ ours", "dense SupCon ÷ our SupCon"]
    head += ["PML ÷ our SupCon", "PML ÷ our CS-SupCon"]
    rows = []
    for n, classes in cases:
        t = results[f"{n},{classes}"]
        solve = statistics.median(
            (a - b) / a for a, b in zip(t["ours_solved"], t["ours_given"], strict=True)
        )
        rows.append(
            [
                f"{n:,}",
                str(classes),
                milliseconds(t, "ours"),
                ratio(t, "ours", "bare_products"),
                ratio(t, "dense", "ours"),
                ratio(t, "open_clip_sigmoid", "ours"),
                f"{100 * solve:.1f}",
                ratio(t, "pml_supcon", "ours"),
                ratio(t, "dense_supcon", "ours_supcon"),
                ratio(t, "pml_supcon", "ours_supcon"),
                ratio(t, "pml_supcon", "ours_cs_supcon"),
            ]
        )
    return table(head, rows)


def memory_rows(peaks: dict[str, dict[int, int | None]], sizes: list[int]) -> str:
    rows = [
        [name, *(_mib(peaks[name].get(n)) if n in peaks[name] else "not run" for n in sizes)]
        for name in peaks
    ]
    return table(["MiB above the inputs", *(f"N = {n:,}" for n in sizes)], rows)


def _mib(value: int | None) -> str:
    return "would not fit" if value is None else f"{value / 2**20:,.0f}"


def draw(
    results: dict[str, dict[str, list[float]]], peaks: dict[str, dict[int, int | None]]
) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.2), constrained_layout=True)
    labels = {
        "ours": "SCS-SupCon, ours",
        "dense": "SCS-SupCon, dense autograd",
        "ours_supcon": "SupCon, ours",
        "pml_supcon": "SupCon, pytorch-metric-learning",
        "open_clip_sigmoid": "sigmoid loss, open_clip",
        "bare_products": "bare products",
    }
    for number, (name, label) in enumerate(labels.items()):
        style: dict[str, object] = {"color": f"C{number}"}  # the same in both panels
        style |= {"marker": "o", "markersize": 4, "linewidth": 2 if "ours" in name else 1.2}
        style["linestyle"] = ":" if name == "bare_products" else "-"
        points = [
            (int(k.split(",")[0]), statistics.median(t[name]) * 1e3)
            for k, t in results.items()
            if k.endswith(",100") and name in t
        ]
        left.plot(*zip(*points, strict=True), label=label, **style)
        held = [(n, v / 2**20) for n, v in peaks.get(name, {}).items() if v]
        if held:
            right.plot(*zip(*held, strict=True), label=label, **style)
    for axis, title in ((left, "time of a step, ms"), (right, "peak above the inputs, MiB")):
        axis.set(xscale="log", yscale="log", xlabel="rows in the batch", title=title)
        axis.set_xscale("log", base=2)
        axis.grid(alpha=0.3)
    left.legend(fontsize=8, frameon=False)
    figure.savefig(OUT / "pairs.png", dpi=130)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="small sizes, nothing written")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--peak", nargs=3, metavar=("NAME", "N", "CLASSES"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    if arguments.peak:
        name, n, classes = arguments.peak
        return peak_memory(name, int(n), int(classes))
    sizes = (
        [64, 256, 512, 1024, 2048]
        if arguments.quick
        else [64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384]
    )
    cases = [(n, 100) for n in sizes]
    if not arguments.quick:
        cases += [(2048, 10), (2048, 1), (8192, 10), (8192, 1)]
    results = {}
    for n, classes in cases:
        rounds = 31 if n <= 1024 else 7 if n <= 4096 else 3 if n <= 8192 else 1
        results[f"{n},{classes}"] = times(n, classes, rounds, list(CONTENDERS))
        print(speed_rows([(n, classes)], results).splitlines()[-1], flush=True)
    speed = speed_rows(cases, results)
    if arguments.quick:
        print(speed)
        return None
    held = [512, 2048, 8192, 16384, 65536]
    peaks: dict[str, dict[int, int | None]] = {
        name: {n: memory(name, n, 100, arguments.threads) for n in held}
        for name in CONTENDERS
        if name not in ("bare_products", "ours_given")
    }
    space = memory_rows(peaks, held)
    write(speed, space, arguments.threads)
    draw(results, peaks)
    print(speed, space, sep="\n\n")
    return None


def write(speed: str, space: str, threads: int) -> None:
    OUT.mkdir(parents=True, exist_ok=True)
    text = f"""# Pair losses side by side

One forward and backward pass, normalisation and style included, float32, {COMMON} common and
{STYLE} style columns, {threads} CPU threads, torch {torch.__version__}. Ratios are medians over
rounds in which all contenders took turns on the same tensors. Made by `make bench`.

![time and memory against batch size](pairs.png)

## Time

"÷ bare products" compares with the tiled matrix products alone. "solving b" is the share of the
step that `bias="solve"` adds to a given b. PML is pytorch-metric-learning.

{speed}

## Memory

Peak above the inputs, each in a process of its own; the gradient of the inputs is included.

{space}
"""
    (OUT / "pairs.md").write_text(text)


if __name__ == "__main__":
    main()
