"""Measure the search for neighbours: exact in blocks, a plain sort, and an approximate index.

    python benchmarks/neighbours.py                    1,000,000 vectors of 128 numbers
    python benchmarks/neighbours.py --vectors 100000

The vectors are synthetic unit vectors in 1,000 clusters. Each search has a process of its own, so
that its peak of memory can be measured. Times are medians; ratios were taken side by side.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import numpy as np
import torch

from scs_supcon.inference.neighbours import NearestRows, VectorIndex, exact_nearest

WIDTH, CLUSTERS, QUERIES, K = 128, 1000, 20, 10
KINDS = ("plain sort", "exact", "exact, float16", "exact, float16, memory-mapped", "index")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--vectors", type=int, default=1_000_000)
    parser.add_argument("--kind", choices=KINDS, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.kind:
        measure(arguments.kind, arguments.folder)
        return
    load = os.getloadavg()[0]
    print(f"{arguments.vectors:,} vectors of {WIDTH} numbers, k = {K}, load {load:.1f}\n")
    print("| search | one query | 20 queries | memory | build | recall@10 |")
    print("|---|---:|---:|---:|---:|---:|")
    with tempfile.TemporaryDirectory() as folder:
        make_vectors(Path(folder), arguments.vectors)
        for kind in KINDS:
            command = [sys.executable, __file__, "--kind", kind, "--folder", folder]
            subprocess.run(command, check=True)


def make_vectors(folder: Path, count: int) -> None:
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(CLUSTERS, WIDTH))
    rows = np.lib.format.open_memmap(
        folder / "float32.npy", "w+", dtype=np.float32, shape=(count, WIDTH)
    )
    for start in range(0, count, 50_000):
        part = rows[start : start + 50_000]
        noise = rng.normal(size=part.shape)
        part[:] = centres[rng.integers(0, CLUSTERS, len(part))] + noise
        part /= np.linalg.norm(part, axis=1, keepdims=True)
    rows.flush()
    half = np.lib.format.open_memmap(
        folder / "float16.npy", "w+", dtype=np.float16, shape=rows.shape
    )
    for start in range(0, count, 50_000):
        half[start : start + 50_000] = rows[start : start + 50_000]
    half.flush()
    np.save(folder / "queries.npy", rows[rng.integers(0, count, QUERIES)])


def measure(kind: str, folder: Path) -> None:
    queries = np.load(folder / "queries.npy")
    before = peak_memory()
    file = folder / ("float16.npy" if "float16" in kind else "float32.npy")
    vectors = np.load(file, mmap_mode="r" if "mapped" in kind or kind == "index" else None)
    build, recall = "", "1"
    search: Callable[[np.ndarray], object]
    if kind == "plain sort":
        whole = torch.from_numpy(vectors)
        search = lambda q: (whole.double() @ torch.from_numpy(q).double().T).sort(0, True)  # noqa: E731
    elif kind == "index":
        start = time.perf_counter()
        index = VectorIndex.build(vectors)
        build, recall = f"{time.perf_counter() - start:.0f} s", f"{index.recall:.3f}"
        search = lambda q: index.nearest(q, K)  # noqa: E731
    else:

        def search(q: np.ndarray) -> NearestRows:
            return exact_nearest(vectors, q, K)

    one = median(seconds(search, queries[i : i + 1]) for i in range(5))
    many = median(seconds(search, queries) for _ in range(3))
    memory = peak_memory() - before
    print(f"| {kind} | {one * 1e3:.1f} ms | {many * 1e3:.0f} ms | {memory:,.0f} MB |", end="")
    print(f" {build} | {recall} |", flush=True)


def seconds(search: Callable[[np.ndarray], object], queries: np.ndarray) -> float:
    start = time.perf_counter()
    search(queries)
    return time.perf_counter() - start


def peak_memory() -> float:
    """Return the peak resident memory of this process in MB."""
    # Not `ru_maxrss`, which begins with the peak of the process that started this one.
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


if __name__ == "__main__":
    main()
