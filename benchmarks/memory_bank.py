"""A memory of past batches: our losses against pytorch-metric-learning's SupCon, side by side.

python benchmarks/memory_bank.py    # writes docs/benchmarks/memory_bank.md

One forward and backward pass of `CrossBatchMemory` with a full memory. Times are medians over
rounds in which all losses take turns on the same tensors in one process; memory is the peak above
the inputs and the memory itself, each in a process of its own.
"""

import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from pytorch_metric_learning import losses
from torch import Tensor

from scs_supcon import CSSupCon, MetricLearningLoss, SCSSupCon, SupCon
from scs_supcon.pml import CrossBatchMemory

PAGE = Path(__file__).parent.parent / "docs" / "benchmarks" / "memory_bank.md"
ROWS, MEMORY, WIDTH, CLASSES, ROUNDS = 128, 8192, 256, 100, 3
THEIRS = "pytorch-metric-learning SupCon"
MEMORIES: dict[str, Callable[[], torch.nn.Module]] = {
    THEIRS: lambda: losses.CrossBatchMemory(losses.SupConLoss(), WIDTH, MEMORY),
    "SCSSupCon, b solved": lambda: ours(SCSSupCon(common_dim=192)),
    "SCSSupCon, b learned": lambda: ours(SCSSupCon(common_dim=192, preset="learned")),
    "SupCon": lambda: ours(SupCon()),
    "CSSupCon": lambda: ours(CSSupCon(common_dim=192)),
}

INTRODUCTION = f"""# A memory of past batches

One step (forward and backward) of `CrossBatchMemory` with {ROWS} rows of {WIDTH} columns,
{MEMORY:,} embeddings in the memory and {CLASSES} classes, one thread. pytorch-metric-learning lists
all pairs in each case; that is part of the time. Written by `benchmarks/memory_bank.py`: CPU time,
medians over {ROUNDS} rounds in which all take turns; ratios are medians of those of each round.

| loss | ms | ÷ {THEIRS} | memory, MiB | ÷ {THEIRS} |
|---|---:|---:|---:|---:|
"""


def ours(method: torch.nn.Module) -> torch.nn.Module:
    """Return our loss with a memory."""
    return CrossBatchMemory(MetricLearningLoss(method), WIDTH, MEMORY)


def filled(name: str) -> tuple[torch.nn.Module, Callable[[], None]]:
    """Return a full memory and a function that takes one step with it."""
    source = torch.Generator().manual_seed(0)
    memory = MEMORIES[name]()
    z = torch.randn(MEMORY, WIDTH, generator=source)
    y = torch.randint(CLASSES, (MEMORY,), generator=source)
    memory.add_to_memory(z, y, MEMORY)
    rows = torch.randn(ROWS, WIDTH, generator=source)
    labels = torch.randint(CLASSES, (ROWS,), generator=source)

    def step() -> None:
        x: Tensor = rows.clone().requires_grad_()
        memory(x, labels).backward()

    return memory, step


def peak(name: str) -> None:
    """Print the peak memory of one step in MiB, above what is in use before it."""
    _, step = filled(name)
    torch.ones(8, requires_grad=True).sum().backward()
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    before = _status("VmRSS")
    step()
    print((_status("VmHWM") - before) / 1024)


def _status(key: str) -> int:
    """Return a line of /proc/self/status, in KiB."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return int(next(line for line in lines if line.startswith(key)).split()[1])


def main() -> None:
    """Measure and write the page."""
    torch.set_num_threads(1)
    steps = {name: filled(name)[1] for name in MEMORIES}
    times: dict[str, list[float]] = {name: [] for name in MEMORIES}
    for turn in range(ROUNDS + 1):
        for name, step in steps.items():
            start = time.process_time()
            step()
            if turn:  # the first round is a warm-up
                times[name].append(time.process_time() - start)
    memory = {}
    for name in MEMORIES:
        command = [sys.executable, __file__, name]
        memory[name] = float(subprocess.run(command, capture_output=True, check=True).stdout)
    lines = []
    for name, seconds in times.items():
        ratio = statistics.median(a / b for a, b in zip(seconds, times[THEIRS], strict=True))
        lines.append(
            f"| {name} | {statistics.median(seconds) * 1000:.0f} | {ratio:.2f} | "
            f"{memory[name]:.0f} | {memory[name] / memory[THEIRS]:.2f} |"
        )
    print("\n".join(lines))
    PAGE.write_text(INTRODUCTION + "\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        peak(sys.argv[1])
    else:
        main()
