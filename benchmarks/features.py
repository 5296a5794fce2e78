"""Train a head on synthetic features in memory and in a mapped file: time and memory.

    python benchmarks/features.py                     1,000,000 images, 4.6 GB on the disk
    python benchmarks/features.py --images 100000

Each has a process of its own. Private memory is what the system cannot drop: pages of the mapped
file are read again when they are needed.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn

from scs_supcon import SCSSupCon
from scs_supcon.data.dataset import ImageDataset
from scs_supcon.data.feature_table import empty_table
from scs_supcon.data.sampler import plan_epoch
from scs_supcon.recipe import make_recipe
from scs_supcon.training.pretrain import training_set_from_features

VIEWS, WIDTH, CLASSES, BATCH, STEPS = 3, 384, 1000, 256, 200


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=1_000_000)
    parser.add_argument("--kind", choices=("memory", "mapped"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.kind:
        measure(arguments.kind, arguments.images)
        return
    size = arguments.images * VIEWS * WIDTH * 4 / 1e9
    print(
        f"{arguments.images:,} images × {VIEWS} views × {WIDTH} features, {size:.1f} GB, ", end=""
    )
    print(f"load {os.getloadavg()[0]:.1f}\n\n| features | step | private memory |\n|---|---:|---:|")
    for kind in ("memory", "mapped"):
        limit = {"memory": "1000", "mapped": "0"}[kind]
        subprocess.run(
            [sys.executable, __file__, "--kind", kind, "--images", str(arguments.images)],
            env=os.environ | {"SCS_FEATURE_MEMORY": limit},
            check=True,
        )


def measure(kind: str, images: int) -> None:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, CLASSES, images)
    centres = rng.normal(size=(CLASSES, WIDTH)).astype(np.float32)
    with tempfile.TemporaryDirectory() as folder:
        before = private_memory()
        table = empty_table((images, VIEWS, WIDTH), Path(folder))
        for start in range(0, images, 10_000):
            part = table[start : start + 10_000]
            noise = rng.standard_normal(part.shape, dtype=np.float32)
            part[:] = centres[labels[start : start + 10_000], None] + noise
        dataset = ImageDataset(
            names=tuple(map(str, range(images))),
            labels=labels,
            classes=tuple(map(str, range(CLASSES))),
            splits=None,
            groups=None,
            folds=None,
            open=None,
            file_hash=None,
            native_size=0,
        )
        recipe = make_recipe({"data": {"source": "shapes"}})
        training_set = training_set_from_features(
            torch.from_numpy(table), dataset, np.arange(images), recipe, 2
        )
        plan = plan_epoch(labels, BATCH, kind="balanced", per_class=4, seed=0, epoch=0)[:STEPS]
        torch.manual_seed(0)
        head = nn.Sequential(nn.Linear(WIDTH, 512), nn.ReLU(), nn.Linear(512, 256))
        method = SCSSupCon()
        optimizer = torch.optim.SGD([*head.parameters(), *method.parameters()], lr=0.05)
        start = time.perf_counter()
        for batch in training_set.batches(plan, 0, 0, 0):
            optimizer.zero_grad()
            method(head(batch.images), batch.labels.repeat(2)).backward()
            optimizer.step()
        seconds = (time.perf_counter() - start) / len(plan)
        memory = private_memory() - before
    print(f"| {kind} | {seconds * 1e3:.1f} ms | {memory:,.0f} MB |", flush=True)


def private_memory() -> float:
    """Return the memory of this process in MB that is not backed by files."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return int(status.partition("RssAnon:")[2].split()[0]) / 1024


if __name__ == "__main__":
    main()
