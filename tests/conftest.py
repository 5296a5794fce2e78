"""Same examples every time, one thread per process, and real groups of processes."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import settings

settings.register_profile("project", derandomize=True, max_examples=50, deadline=None)
settings.load_profile("project")

# Two workers of xdist and the processes they start share the cores.
os.environ["OMP_NUM_THREADS"] = "1"
torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def same_numbers_every_time() -> None:
    torch.manual_seed(0)


Arrays = dict[str, np.ndarray]
OnRanks = Callable[[str, int], list[Arrays]]


@pytest.fixture(scope="session")
def on_ranks(tmp_path_factory: pytest.TempPathFactory) -> OnRanks:
    """`on_ranks(script, world)` starts `script RANK WORLD FOLDER` for each rank of a group.

    Each writes `FOLDER/RANK.npz`; their contents come back in the order of ranks.
    """

    def start(script: str, world: int) -> list[Arrays]:
        folder = tmp_path_factory.mktemp("ranks")
        logs = [folder / f"{rank}.log" for rank in range(world)]
        ranks = []
        for rank, log in enumerate(logs):
            command = [sys.executable, script, str(rank), str(world), str(folder)]
            with log.open("w") as file:
                ranks.append(subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT))
        stop = time.monotonic() + 300
        # A rank that fails leaves the others waiting for it.
        while any(rank.poll() is None for rank in ranks) and time.monotonic() < stop:
            if any(rank.poll() for rank in ranks):
                break
            time.sleep(0.05)
        for rank in ranks:
            rank.kill()
        codes = [rank.wait() for rank in ranks]
        assert not any(codes), "\n".join(log.read_text() for log in logs)
        return [read(folder / f"{rank}.npz") for rank in range(world)]

    return start


def read(path: Path) -> Arrays:
    with np.load(path) as arrays:
        return dict(arrays)
