"""What micro-batches save and cost: one step of stage 1, each setting in a process of its own.

    python benchmarks/micro_batch.py    # writes docs/benchmarks/micro_batch.md

Memory is the most that the process ever held (ru_maxrss) beyond what it held with the network, the
optimiser's momentum and the batch in place. Time is that of the processor, the middle
one of three steps, one thread.
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

INTRODUCTION = """# Micro-batches: what they save and what they cost

`--micro-batch N` lets the encoder work on N views at a time, first without keeping anything but the
features, then once more when the gradient of the whole batch's loss comes back. The loss still sees
every pair of the batch. `benchmarks/micro_batch.py` made this page: one step of `scs_supcon` on
random images (two views of each), each row in a process of its own, one thread; seconds are those
of the processor.

"memory" is the most the process ever held beyond network, momentum and batch; "gradient" is the
distance from the plain step's gradient, relative to its length. Batch normalisation (resnet18)
takes its statistics from each chunk, so there the step is another one; the others differ in the
last bits of float32.

| encoder | images | views at a time | memory, MiB | of plain | seconds | of plain | gradient |
|---|---|---|---|---|---|---|---|
"""

ROUGH = """Where others use the machine,
memory is exact to a few MiB and times are rough. One more forward pass should cost a third; large
maps that are never kept save some of it again."""


def main() -> None:
    """Measure every case and write the page."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for name, pixels, images, sizes in CASES:
            plain = None
            for size in sizes:
                file = Path(folder) / f"{name}-{size}.npy"
                found = json.loads(
                    subprocess.check_output(
                        [sys.executable, __file__, name, *map(str, (pixels, images, size)), file],
                        env=os.environ | {"OMP_NUM_THREADS": "1"},
                    )
                )
                found["gradient"] = np.load(file)
                plain = plain or found
                rows.append(describe((name, pixels, images, size), found, plain))
                print(rows[-1], flush=True)
    versions = f"torch {torch.__version__}, {platform.machine()} CPU, {os.cpu_count()} cores"
    PAGE.write_text(INTRODUCTION + "\n".join(rows) + f"\n\nMeasured with {versions}. {ROUGH}\n")


def describe(case: tuple, found: dict, plain: dict) -> str:
    """One row of the table."""
    name, pixels, images, size = case
    away = np.linalg.norm(found["gradient"] - plain["gradient"]) / np.linalg.norm(plain["gradient"])
    cells = [
        f"{name}, {pixels} px",
        str(images),
        str(size or "all"),
        f"{found['bytes'] / 2**20:,.0f}",
        f"{found['bytes'] / plain['bytes']:.0%}",
        f"{found['seconds']:.2f}",
        f"{found['seconds'] / plain['seconds']:.2f}",
        f"{away:.0e}" if size else "",
    ]
    return f"| {' | '.join(cells)} |"


def measure(name: str, pixels: int, images: int, size: int, file: str) -> None:
    """Take a few steps, print memory and time, keep the gradient."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    encoder = build_encoder(name, small_stem=name != "tiny", in_size=pixels)
    network = Network(encoder, Projection(encoder.num_features, centre=True), size)
    method = build_method("scs_supcon")
    labels = torch.arange(images) % 32
    images = torch.randn(2 * images, 3, pixels, pixels)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.0, momentum=0.9)

    def step(batch: Batch) -> float:
        start = time.process_time()
        optimizer.zero_grad()
        torch.stack(tuple(method.training_step(batch, network).values())).sum().backward()
        optimizer.step()
        return time.process_time() - start

    step(Batch(images[:8], labels[:4], torch.arange(4)))  # loads libraries, makes the momentum
    before = int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    seconds = [step(Batch(images, labels, torch.arange(images))) for _ in range(STEPS)]
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    np.save(file, torch.cat([p.grad.flatten() for p in network.parameters()]).numpy())
    print(json.dumps({"bytes": most - before, "seconds": sorted(seconds)[STEPS // 2]}))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        measure(sys.argv[1], *map(int, sys.argv[2:5]), sys.argv[5])
    else:
        main()
