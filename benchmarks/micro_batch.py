"""Memory and time of micro-batches: one step of stage 1, each setting in a separate process.

    python benchmarks/micro_batch.py    # writes docs/benchmarks/micro_batch.md

Memory is the peak of the process (ru_maxrss) minus what it used with the network, the optimiser's
momentum and the batch in place. Time is CPU time, the median of three steps, one thread.
"""

import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from scs_supcon.methods import Batch, Network, build_method
from scs_supcon.nn.encoder import build_encoder
from scs_supcon.nn.head import Projection

PAGE = Path(__file__).parent.parent / "docs" / "benchmarks" / "micro_batch.md"
# Encoder, pixels, images (two views of each), views at a time.
CASES = [
    ("tiny", 32, 1024, (0, 512, 128)),
    ("convnext_atto", 32, 256, (0, 128, 32)),
    ("resnet18", 32, 128, (0, 128, 32)),
]
STEPS = 3

INTRODUCTION = """# Memory and time of micro-batches

`--micro-batch N` runs the encoder on N views at a time: first without storing anything but the
features, then once more when the gradient of the loss of the whole batch arrives. The loss still
compares all pairs of the batch. This page was written by `benchmarks/micro_batch.py`: one step of
`scs_supcon` on random images (two views each), each row in a separate process with one thread;
seconds are CPU time.

"memory" is the peak memory beyond network, momentum and batch. "gradient" is the distance from the
gradient of the plain step, relative to its norm. Batch normalisation (resnet18) uses the statistics
of each micro-batch, so its step differs; the other encoders differ only by float32 rounding.

| encoder | images | views at a time | memory, MiB | of plain | seconds | of plain | gradient |
|---|---|---|---|---|---|---|---|
"""

NOTE = """If other processes use the
machine, memory is accurate to a few MiB and times are rough. The additional forward pass should
cost a third; not storing large feature maps saves some of it."""


def main() -> None:
    """Measure every case and write the page."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for name, pixels, images, sizes in CASES:
            plain = None
            for size in sizes:
                file = Path(folder) / f"{name}-{size}.npy"
                result = json.loads(
                    subprocess.check_output(
                        [sys.executable, __file__, name, *map(str, (pixels, images, size)), file],
                        env=os.environ | {"OMP_NUM_THREADS": "1"},
                    )
                )
                result["gradient"] = np.load(file)
                plain = plain or result
                rows.append(describe((name, pixels, images, size), result, plain))
                print(rows[-1], flush=True)
    versions = f"torch {torch.__version__}, {platform.machine()} CPU, {os.cpu_count()} cores"
    PAGE.write_text(INTRODUCTION + "\n".join(rows) + f"\n\nMeasured with {versions}. {NOTE}\n")


def describe(case: tuple, result: dict, plain: dict) -> str:
    """Return one row of the table."""
    name, pixels, images, size = case
    distance = np.linalg.norm(result["gradient"] - plain["gradient"]) / np.linalg.norm(
        plain["gradient"]
    )
    cells = [
        f"{name}, {pixels} px",
        str(images),
        str(size or "all"),
        f"{result['bytes'] / 2**20:,.0f}",
        f"{result['bytes'] / plain['bytes']:.0%}",
        f"{result['seconds']:.2f}",
        f"{result['seconds'] / plain['seconds']:.2f}",
        f"{distance:.0e}" if size else "",
    ]
    return f"| {' | '.join(cells)} |"


def measure(name: str, pixels: int, images: int, size: int, file: str) -> None:
    """Take a few steps, print memory and time, and save the gradient."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    encoder = build_encoder(name, small_stem=name != "tiny", in_size=pixels)
    network = Network(encoder, Projection(encoder.num_features, centre=True), size)
    method = build_method("scs_supcon")
    labels = torch.arange(images) % 32
    views = torch.randn(2 * images, 3, pixels, pixels)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.0, momentum=0.9)

    def step(batch: Batch) -> float:
        start = time.process_time()
        optimizer.zero_grad()
        torch.stack(tuple(method.training_step(batch, network).values())).sum().backward()
        optimizer.step()
        return time.process_time() - start

    step(Batch(views[:8], labels[:4], torch.arange(4)))  # loads libraries, allocates momentum
    before = int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    seconds = [step(Batch(views, labels, torch.arange(images))) for _ in range(STEPS)]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    np.save(file, torch.cat([p.grad.flatten() for p in network.parameters()]).numpy())
    print(json.dumps({"bytes": peak - before, "seconds": sorted(seconds)[STEPS // 2]}))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        measure(sys.argv[1], *map(int, sys.argv[2:5]), sys.argv[5])
    else:
        main()
