"""Small batches: our loss against its formula written densely, forward and backward.

    python benchmarks/small_batches.py            # writes docs/benchmarks/small_batches.md
    python benchmarks/small_batches.py --print    # writes no file

The dense formula is `scs_supcon.kernels.scs_loss` with b given, applied to normalised fields. The
contrast alone, without the style term, is compared with `beta=0`. All take turns on the same
tensors; ratios are medians over rounds of processor time.
"""

import argparse
import gc
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from scs_supcon import SCSSupCon
from scs_supcon.kernels import scs_loss
from scs_supcon.kernels.dense import softplus

PAGE = Path(__file__).parent.parent / "docs" / "benchmarks" / "small_batches.md"
COMMON, STYLE, CLASSES = 192, 64, 16
SIZES, ROUNDS = (64, 128, 256, 512), 41
Step = Callable[[], None]

INTRODUCTION = f"""# Small batches

Our loss divided by its formula written densely (`scs_supcon.kernels.scs_loss`, b given), forward
and backward, normalisation included, float32, {COMMON} common and {STYLE} style columns, {CLASSES}
classes. Below 1 ours is faster. Written by `benchmarks/small_batches.py`: processor time, medians
over {ROUNDS} rounds in which all take turns.

"default" solves b at every step, which the dense formula does not do.

"""


def steps(z: Tensor, y: Tensor) -> dict[str, tuple[str, Step]]:
    """Return name -> (name of the baseline, step)."""
    t, b = torch.tensor(10.0, requires_grad=True), torch.tensor(5.0, requires_grad=True)

    def dense() -> None:
        c, s = F.normalize(z[:, :COMMON]), F.normalize(z[:, COMMON:])
        contrast, style = scs_loss(c, s, y[:, None] == y, t, b, 1e-3)
        (contrast + style).backward()

    def dense_contrast() -> None:
        c, same = F.normalize(z[:, :COMMON]), y[:, None] == y
        a = t * (c @ c.T) - b
        (softplus(torch.where(same, -a, a)).sum() / same.sum()).backward()

    def ours(**options: object) -> Step:
        loss = SCSSupCon(COMMON, pairs="positives", **options)
        return lambda: loss(z, y).backward()

    fixed, learned = {"bias": "fixed", "b0": 5.0}, {"preset": "learned", "b0": 5.0}
    return {
        "dense": ("dense", dense),
        "default": ("dense", ours()),
        "learned b": ("dense", ours(**learned)),
        "dense contrast": ("dense contrast", dense_contrast),
        "contrast, default": ("dense contrast", ours(beta=0.0)),
        "contrast, fixed b": ("dense contrast", ours(beta=0.0, **fixed)),
        "contrast, learned b": ("dense contrast", ours(beta=0.0, **learned)),
    }


def ratios(n: int) -> dict[str, float]:
    """Return the ratio of each step to its baseline, and the milliseconds of the dense ones."""
    source = torch.Generator().manual_seed(n)
    z = torch.randn(n, COMMON + STYLE, generator=source, requires_grad=True)
    y = torch.randint(CLASSES, (n,), generator=source)
    contenders = steps(z, y)
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    repeat = max(1, 2048 // n)
    gc.collect()
    gc.disable()
    for turn in range(ROUNDS + 1):
        for name, (_, step) in contenders.items():
            z.grad = None
            step()  # a training loop repeats the same loss, so measure with warm caches
            start = time.process_time()
            for _ in range(repeat):
                z.grad = None
                step()
            if turn:
                seconds[name].append((time.process_time() - start) / repeat)
    gc.enable()
    return {
        name: 1e3 * statistics.median(seconds[name])
        if name == base
        else statistics.median(a / b for a, b in zip(seconds[name], seconds[base], strict=True))
        for name, (base, _) in contenders.items()
    }


def table() -> str:
    """Measure and return the table."""
    names = list(steps(torch.zeros(2, COMMON + STYLE, requires_grad=True), torch.zeros(2).long()))
    lines = [
        "| N | threads | " + " | ".join(f"{n}, ms" if "dense" in n else n for n in names) + " |",
        "|---:" * (len(names) + 2) + "|",
    ]
    for threads in (1, 2):
        torch.set_num_threads(threads)
        for n in SIZES:
            cells = " | ".join(f"{value:.2f}" for value in ratios(n).values())
            lines.append(f"| {n} | {threads} | {cells} |")
            print(lines[-1], flush=True)
    return "\n".join(lines) + "\n"


def main() -> None:
    """Write the page, or print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--print", action="store_true", help="print the table, write no file")
    text = table() if parser.parse_args().print else None
    if text is None:
        PAGE.write_text(INTRODUCTION + table(), encoding="utf-8")
    else:
        print(text)


if __name__ == "__main__":
    main()
