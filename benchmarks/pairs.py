"""Compare pair losses: time and memory of one forward and backward pass.

    python benchmarks/pairs.py            measure everything, write docs/benchmarks/pairs.*
    python benchmarks/pairs.py --quick    measure small sizes and print the table
    python benchmarks/pairs_page.py       rebuild the page and the figure from pairs.json

All contenders take turns on the same tensors in one process, so that other load on the machine
affects all of them; a ratio is the median over the rounds. Normalisation and style are included.
Memory is the peak above the inputs, measured in a separate process per contender.
"""

import argparse
import gc
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pairs_page
import torch
from torch import Tensor
from torch.nn import functional as F

from scs_supcon import CSSupCon, SCSSupCon, SupCon
from scs_supcon.kernels import solve_bias

COMMON, STYLE = 192, 64
SIZES = (32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
FEW_CLASSES = ((2048, 10), (2048, 1), (8192, 10), (8192, 1))
MEMORY_SIZES = (512, 2048, 8192, 65536)
ROUNDS = {256: 101, 1024: 31, 2048: 15, 4096: 7, 8192: 5}  # up to that size
LONG = 4096  # with more rows, a step takes so long that it needs no warm-up
Step = Callable[[], object]


def ours(z: Tensor, y: Tensor) -> Step:
    """SCS-SupCon with learned t and b."""
    loss = SCSSupCon(COMMON, preset="learned", b0=5.0)
    return lambda: loss(z, y).backward()


def ours_solved(z: Tensor, y: Tensor) -> Step:
    """SCS-SupCon with b solved at every step."""
    loss = SCSSupCon(COMMON)
    return lambda: loss(z, y).backward()


def ours_given(z: Tensor, y: Tensor) -> Step:
    """SCS-SupCon with fixed b: the difference to `ours_solved` is the cost of the solver."""
    loss = SCSSupCon(COMMON, bias="fixed", b0=5.0)
    return lambda: loss(z, y).backward()


def ours_supcon(z: Tensor, y: Tensor) -> Step:
    loss = SupCon(0.1)
    return lambda: loss(z, y).backward()


def ours_cs_supcon(z: Tensor, y: Tensor) -> Step:
    loss = CSSupCon(COMMON)
    return lambda: loss(z, y).backward()


def dense(z: Tensor, y: Tensor, solve: bool = False) -> Step:
    """SCS-SupCon in its simplest form: whole matrices and autograd."""
    log_t = torch.tensor(2.3, requires_grad=True)
    b = torch.tensor(5.0, requires_grad=True)

    def step() -> None:
        c, s = F.normalize(z[:, :COMMON], dim=1), F.normalize(z[:, COMMON:], dim=1)
        same = y[:, None] == y[None, :]
        logits = log_t.exp() * (c @ c.T)
        a = logits - (solve_bias(logits.detach(), int(same.sum())) if solve else b)
        contrast = F.softplus(torch.where(same, -a, a)).mean()
        positive = same & ~torch.eye(len(y), dtype=torch.bool)
        far = torch.where(positive, torch.cdist(s, s), 0.0).sum(1)
        style = (far / positive.sum(1).clamp_min(1)).mean()
        (contrast - 1e-3 * style).backward()

    return step


def dense_solved(z: Tensor, y: Tensor) -> Step:
    """The dense form with b solved at every step, by the same solver."""
    return dense(z, y, solve=True)


def pml_supcon(z: Tensor, y: Tensor) -> Step:
    from pytorch_metric_learning.losses import SupConLoss

    loss = SupConLoss(temperature=0.1)
    return lambda: loss(z, y).backward()


def dense_supcon(z: Tensor, y: Tensor) -> Step:
    """SupCon with whole matrices, as published."""

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
    """open_clip's sigmoid loss of two normalised towers: only the diagonal is positive."""
    from open_clip.loss import SigLipLoss

    loss = SigLipLoss()
    t, b = torch.tensor(10.0, requires_grad=True), torch.tensor(-5.0, requires_grad=True)

    def step() -> None:
        x = F.normalize(z, dim=1)
        loss(x, x, t, b).backward()

    return step


def bare_products(z: Tensor, y: Tensor, tile: int = 512) -> Step:
    """The matrix products that any exact method needs: similarities and two gradients."""
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
        dense_solved,
        open_clip_sigmoid,
        ours_supcon,
        ours_cs_supcon,
        dense_supcon,
        pml_supcon,
    )
}
# Peak number of N × N float32 matrices of a contender, measured at N = 2048.
MATRICES = {
    "dense": 9,
    "dense_solved": 10,
    "open_clip_sigmoid": 5,
    "dense_supcon": 9,
    "pml_supcon": 12,
}


def inputs(n: int, classes: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(n + classes)
    z = torch.randn(n, COMMON + STYLE, generator=generator, requires_grad=True)
    return z, torch.randint(0, classes, (n,), generator=generator)


def fits(name: str, n: int) -> bool:
    import psutil

    return MATRICES.get(name, 0) * 4 * n * n < 0.7 * psutil.virtual_memory().available


def times(n: int, classes: int) -> dict[str, list[float]]:
    """Return the seconds of each round; all contenders take turns on the same tensors."""
    z, y = inputs(n, classes)
    steps = {name: make(z, y) for name, make in CONTENDERS.items() if fits(name, n)}
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    gc.collect()
    rounds = next(rounds for most, rounds in ROUNDS.items() if n <= most)
    for turn in range(rounds + 1 if n <= LONG else rounds):
        for name, step in steps.items():
            if n <= LONG:
                # A training loop repeats the same loss, so measure with warm caches.
                z.grad = None
                step()
            z.grad = None
            start = time.perf_counter()
            step()
            if turn or n > LONG:  # the first round also loads libraries
                seconds[name].append(time.perf_counter() - start)
    return seconds


def peak_memory(name: str, n: int, classes: int) -> None:
    """Print the peak in bytes above the inputs; called in a separate process."""
    z, y = inputs(n, classes)
    small = inputs(64, 4)
    CONTENDERS[name](*small)()  # load libraries first
    step = CONTENDERS[name](z, y)
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # reset the peak
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
    process = subprocess.run(
        [*command, "--threads", str(threads)], capture_output=True, text=True, check=True
    )
    return int(process.stdout)


def machine(threads: int) -> dict[str, str]:
    """Describe the machine and the versions of the libraries."""
    names = [
        line.split(":")[1].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    revision = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    )
    libraries = ("torch", "pytorch-metric-learning", "open_clip_torch", "numpy")
    return {
        "cores": f"{os.cpu_count()} ({names[0] if names else platform.machine()})",
        "threads": str(threads),
        "load average at the start": f"{os.getloadavg()[0]:.1f}",
        "revision": revision.stdout.strip() or "unknown",
        "Python": platform.python_version(),
        **{name: importlib.metadata.version(name) for name in libraries},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="small sizes, write no files")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--peak", nargs=3, metavar=("NAME", "N", "CLASSES"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    if arguments.peak:
        name, n, classes = arguments.peak
        return peak_memory(name, int(n), int(classes))
    results = pairs_page.Results(machine(arguments.threads), (COMMON, STYLE), {}, {})
    cases = [(n, 100) for n in SIZES if n <= 2048 or not arguments.quick]
    for n, classes in cases if arguments.quick else [*cases, *FEW_CLASSES]:
        results.seconds[f"{n},{classes}"] = times(n, classes)
        print(pairs_page.speed(results).splitlines()[-1], flush=True)
    if arguments.quick:
        return print(pairs_page.speed(results))
    for name in CONTENDERS:
        if name not in ("bare_products", "ours_given"):
            results.peaks[name] = {
                str(n): memory(name, n, 100, arguments.threads) for n in MEMORY_SIZES
            }
    results.save()
    pairs_page.write(results)
    return print(pairs_page.speed(results), pairs_page.targets(results), sep="\n\n")


if __name__ == "__main__":
    main()
