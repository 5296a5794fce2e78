"""Several processes: one is killed, falls behind, or has a full disk."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from command_processes import deterministic_files

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).parents[1] / "faulty_rank.py"
COMMAND = (
    *("train", "shapes", "--method", "supcon", "--encoder", "tiny", "--from-scratch", "--quiet"),
    *("--epochs", "2", "--batch-size", "64", "--workers", "0", "--device", "cpu", "--no-report"),
    *("--set", "probe.epochs=1", "--set", "probe.views=1"),
)


def torchrun(out: Path, fault: str, restarts: int = 0, seconds: str = "") -> tuple[int, str]:
    """Train with two processes; return the exit code and the messages of both."""
    launch = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    options = ("--max-restarts", str(restarts), "--monitor-interval", "0.5")
    command = [sys.executable, *launch, *options, str(SCRIPT), *COMMAND, "--out", str(out)]
    environment = os.environ | {"FAULT": fault, "SCS_TIMEOUT": seconds, "OMP_NUM_THREADS": "1"}
    result = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=1200, check=False
    )
    return result.returncode, result.stdout + result.stderr


def test_a_killed_process_restarts_with_the_same_result(tmp_path):
    code, messages = torchrun(tmp_path / "whole", "none:0:0")
    assert code == 0, messages
    code, messages = torchrun(tmp_path / "killed", "kill:1:7", restarts=1)
    assert code == 0, messages
    whole, killed = (deterministic_files(tmp_path / name) for name in ("whole", "killed"))
    assert whole == killed


@pytest.mark.parametrize(
    ("fault", "seconds", "message"),
    [
        # torchrun may tell the other process to stop before that notices the loss itself.
        ("kill:1:5", "", "process 0 lost another process|stopped; run the same command again"),
        ("sleep:1:5", "20", "process 0 lost another process"),
        ("full:0:5", "", "the disk is full"),
    ],
    ids=["killed", "straggler", "full disk"],
)
def test_a_fault_in_one_process_ends_all_with_a_message(tmp_path, fault, seconds, message):
    code, messages = torchrun(tmp_path / "run", fault, seconds=seconds)
    assert code != 0
    assert re.search(message, messages), messages
