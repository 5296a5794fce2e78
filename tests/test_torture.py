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
WHOLE = (("pretrain-", 30), ("features", 8), ("linear-", 20), ("/.model.", 5))
FROZEN = (("feature_cache", 8), ("pretrain-", 30), ("probe-", 20), ("finished.json", 2))
UNFREEZE = (("head-", 20), ("metrics.csv", 1), ("pretrain-", 30), ("probe-", 20))
FINE_TUNING = ("pretrain.head_epochs=2", "pretrain.ema=0.9", "pretrain.patience=2")


@pytest.fixture(scope="module")
def commands(weights):
    """`commands(kind, folder)` returns the arguments of a training command."""
    tiny = ("--encoder", "tiny", "--weights", weights)
    mixed = ("pretrain.mixup=0.4", "pretrain.cutmix=1", "data.augment=trivial")
    settings = [part for value in (*FINE_TUNING, *mixed) for part in ("--set", value)]
    options = {
        WHOLE: (),
        FROZEN: (*tiny, "--frozen", "--method", "paco"),
        UNFREEZE: (*tiny, "--unfreeze", "--method", "baseline", *settings),
    }

    def command(kind, folder):
        folders = ("--out", folder / "run", "--cache", folder / "feature_cache")
        return ("train", "shapes", *folders, *QUICK, *options[kind])

    return command


@pytest.fixture(scope="module")
def uninterrupted(commands, processes, deterministic_files, tmp_path_factory):
    """`uninterrupted(kind)` returns the files of an uninterrupted run."""
    files = {}

    def run(kind):
        if kind not in files:
            folder = tmp_path_factory.mktemp("uninterrupted")
            result = processes.run(*commands(kind, folder))
            assert result.code == 0, result.err
            files[kind] = deterministic_files(folder / "run")
        return files[kind]

    return run


@pytest.mark.parametrize("kind", [WHOLE, FROZEN, UNFREEZE], ids=["whole", "frozen", "unfreeze"])
def test_a_run_killed_at_any_moment_ends_with_the_same_bytes(
    kind, commands, processes, uninterrupted, deterministic_files, tmp_path
):
    moments = random.Random(0)
    command = commands(kind, tmp_path)
    for path_part, latest in kind:
        signal_at = (SIGKILL, path_part, moments.randint(1, latest))
        result = processes.run(*command, eager=True, signal_at=signal_at)
        assert result.code == -SIGKILL, f"not killed at {signal_at}: {result.err}"
    result = processes.run(*command, eager=True)
    assert result.code == 0, result.err
    assert deterministic_files(tmp_path / "run") == uninterrupted(kind)
    assert not [*(tmp_path / "run").rglob("*.tmp")], "no temporary files are left"
    assert not (tmp_path / "run" / "features").exists()


def test_the_workers_of_a_killed_run_do_not_hold_its_lock(
    shapes, processes, deterministic_files, tmp_path
):
    command = ("train", shapes, *QUICK, "--batch-size", "8")
    whole = processes.run(*command, "--out", tmp_path / "whole")
    assert whole.code == 0
    killed = (*command, "--out", tmp_path / "run", "--workers", "2")
    assert processes.run(*killed, signal_at=(SIGKILL, "metrics.csv", 1)).code == -SIGKILL
    result = processes.run(*killed)
    assert result.code == 0, result.err
    assert deterministic_files(tmp_path / "run") == deterministic_files(tmp_path / "whole")
