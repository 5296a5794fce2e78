"""Runs that are killed at random moments end with the same bytes as uninterrupted ones.

Checkpoints are saved after every step, so that a run can be killed while it saves. In test_main.py
runs are stopped between checkpoints.
"""

import random
from signal import SIGKILL

import pytest

pytestmark = pytest.mark.slow

QUICK = (
    *("--epochs", "2", "--batch-size", "64", "--workers", "0", "--device", "cpu", "--no-report"),
    *("--set", "probe.epochs=3", "--set", "probe.views=1"),
)
# Part of a path, and the latest access to such a file at which the process is killed.
WHOLE = (
    *(("pretrain-", 30), ("pretrain-", 15), ("metrics.csv", 1), ("features", 8)),
    *(("probe-", 20), ("linear-", 20), ("model/", 8), ("predictions.parquet", 2)),
)
FROZEN = (
    *(("kept", 8), ("kept", 4), ("pretrain-", 30), ("kept", 4)),
    *(("probe-", 20), ("linear-", 20), ("finished.json", 2)),
)


@pytest.fixture(scope="module")
def lines(weights):
    """`lines(kind, folder)` returns the arguments of a training command."""

    def line(kind, folder):
        frozen = ("--encoder", "tiny", "--weights", weights, "--frozen", "--method", "paco")
        kept = ("--cache", folder / "kept")
        return (
            "train",
            "shapes",
            "--out",
            folder / "run",
            *QUICK,
            *kept,
            *frozen * (kind == FROZEN),
        )

    return line


@pytest.fixture(scope="module")
def unbroken(lines, processes, left_by, tmp_path_factory):
    """`unbroken(kind)` returns the files of an uninterrupted run."""
    files = {}

    def run(kind):
        if kind not in files:
            folder = tmp_path_factory.mktemp("unbroken")
            result = processes.run(*lines(kind, folder))
            assert result.code == 0, result.err
            files[kind] = left_by(folder / "run")
        return files[kind]

    return run


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("kind", [WHOLE, FROZEN], ids=["whole", "frozen"])
def test_a_run_killed_at_any_moment_ends_with_the_same_bytes(
    kind, seed, lines, processes, unbroken, left_by, tmp_path
):
    moments = random.Random(seed)
    line = lines(kind, tmp_path)
    for part, latest in kind:
        fate = (SIGKILL, part, moments.randint(1, latest))
        result = processes.run(*line, eager=True, fate=fate)
        assert result.code == -SIGKILL, f"not killed by {fate}: {result.err}"
    result = processes.run(*line, eager=True)
    assert result.code == 0, result.err
    assert left_by(tmp_path / "run") == unbroken(kind)
    assert not [*(tmp_path / "run").rglob("*.tmp")], "no temporary files are left"
    assert not (tmp_path / "run" / "features").exists()


def test_the_workers_of_a_killed_run_hold_no_lock(shapes, processes, left_by, tmp_path):
    line = ("train", shapes, *QUICK, "--batch-size", "8")
    whole = processes.run(*line, "--out", tmp_path / "whole")
    assert whole.code == 0
    broken = (*line, "--out", tmp_path / "run", "--workers", "2")
    assert processes.run(*broken, fate=(SIGKILL, "metrics.csv", 1)).code == -SIGKILL
    result = processes.run(*broken)
    assert result.code == 0, result.err
    assert left_by(tmp_path / "run") == left_by(tmp_path / "whole")
