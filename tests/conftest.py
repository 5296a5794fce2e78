"""Fixtures: deterministic random numbers, process groups, small datasets and small runs."""

import os
import runpy
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

# Some virtual machines advertise AMX but fail with an illegal instruction when oneDNN uses it.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")

# Tests that import onnxruntime must not start its telemetry, which the guard below cannot see.
os.environ["ORT_DISABLE_TELEMETRY"] = "1"

# No test uses the network, and no process that a test starts: see network_guard/sitecustomize.py.
GUARD = str(Path(__file__).with_name("network_guard"))
os.environ["PYTHONPATH"] = os.pathsep.join(
    filter(None, [GUARD, *os.environ.get("PYTHONPATH", "").split(os.pathsep)])
)  # an empty part would be the current folder
runpy.run_path(f"{GUARD}/sitecustomize.py")

import numpy as np
import pytest
import torch
from hypothesis import settings

from command_processes import CommandResult, Processes
from command_processes import deterministic_files as read_deterministic_files

if TYPE_CHECKING:
    from scs_supcon.training.result import RunResult

settings.register_profile("project", derandomize=True, max_examples=50, deadline=None)
settings.load_profile("project")

# The workers of pytest-xdist and their child processes share the cores.
os.environ["OMP_NUM_THREADS"] = "1"
torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def seed_torch() -> None:
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def restore_safe_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """Undo what a command sets for its child processes; scripts of tests import modules beside."""
    monkeypatch.setenv("PYTHONSAFEPATH", "")


Arrays = dict[str, np.ndarray]
OnRanks = Callable[[str, int], list[Arrays]]


@pytest.fixture(scope="session")
def on_ranks(tmp_path_factory: pytest.TempPathFactory) -> OnRanks:
    """`on_ranks(script, world)` runs `script RANK WORLD FOLDER` for each rank of a group.

    Each rank writes `FOLDER/RANK.npz`; the arrays are returned in order of rank.
    """

    def start(script: str, world: int) -> list[Arrays]:
        folder = tmp_path_factory.mktemp("ranks")
        logs = [folder / f"{rank}.log" for rank in range(world)]
        ranks = []
        for rank, log in enumerate(logs):
            command = [sys.executable, script, str(rank), str(world), str(folder)]
            with log.open("w") as file:
                ranks.append(subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT))
        deadline = time.monotonic() + 300
        # If a rank fails, the others would wait for it forever.
        while any(rank.poll() is None for rank in ranks) and time.monotonic() < deadline:
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


@pytest.fixture(scope="session", autouse=True)
def feature_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Cache the features of frozen encoders in a temporary folder."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("cache")
        patch.setenv("SCS_CACHE", str(folder))
        yield folder


@pytest.fixture(scope="session")
def shapes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of four classes with six images of 16 × 16 pixels each."""
    from scs_supcon.data.builtin import shapes

    root = tmp_path_factory.mktemp("data") / "shapes"
    images = shapes(per_class=6)
    for index in np.flatnonzero(images.labels < 4).tolist():
        folder = root / images.classes[images.labels[index]]
        folder.mkdir(parents=True, exist_ok=True)
        images.open(index).resize((16, 16)).save(folder / f"{index:02d}.png")
    return root


Train = Callable[..., "RunResult"]


@pytest.fixture(scope="session")
def train_small() -> Train:
    """`train_small(data, out, **options)`: `train` with settings that take a second."""
    from scs_supcon.training.train import train

    def run(data: Path | str, out: Path | str, settings: Sequence[str] = (), **options: Any):
        small = ("probe.epochs=2", "probe.views=1")
        defaults = {"epochs": 2, "batch_size": 8, "workers": 0, "device": "cpu", "quiet": True}
        defaults |= {"report": False}  # it takes longer than the training
        return train(data, out=out, settings=[*small, *settings], **(defaults | options))

    return run


@pytest.fixture(scope="session")
def finished(shapes: Path, train_small: Train, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run on `shapes`; tests must not change it."""
    run = tmp_path_factory.mktemp("finished") / "run"
    train_small(shapes, run, report=True)
    return run


@pytest.fixture(scope="session")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Random weights of the encoder "tiny" for images of 16 pixels, for frozen runs."""
    from safetensors.torch import save_file

    from scs_supcon.nn.encoder import build_encoder

    torch.manual_seed(0)
    file = tmp_path_factory.mktemp("weights") / "tiny.safetensors"
    save_file(build_encoder("tiny", small_stem=False, in_size=16).body.state_dict(), file)
    return file


@pytest.fixture(scope="session")
def deterministic_files() -> Callable[[Path], dict[str, bytes]]:
    """`deterministic_files(run)` returns the files of a run that do not differ between runs."""

    return read_deterministic_files


Command = Callable[..., CommandResult]


@pytest.fixture
def scs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """`scs("train", ...)` runs the command in this process."""
    from scs_supcon.__main__ import main

    def run(*arguments: str | Path) -> CommandResult:
        capsys.readouterr()
        monkeypatch.setattr(sys, "argv", ["scs", *map(str, arguments)])
        try:
            main()
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
        return CommandResult(code, *capsys.readouterr())

    return run


@pytest.fixture(scope="session")
def processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    """`processes.run("train", ..., signal_at=(SIGKILL, "metrics.csv", 3))`; see `Processes`."""
    processes = Processes(tmp_path_factory.mktemp("processes"))
    yield processes
    processes.close()
