"""Runs that are killed again and again, at moments drawn by a seed, and still end the same.

Everything is saved after every step here, so a kill may fall into the midst of any saving; with
the usual two saves a minute the stops of test_main.py fall between saves.
"""

import random
from signal import SIGKILL

import pytest

pytestmark = pytest.mark.slow

QUICK = (
    *("--epochs", "2", "--batch-size", "64", "--workers", "0", "--device", "cpu", "--no-report"),
    *("--set", "probe.epochs=3", "--set", "probe.views=1"),
)
# Which files the process is about to touch, and how often it may before it dies at the latest.
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
    """Arguments of a training line; `place` takes the run and its cache."""

    def line(kind, place):
        frozen = ("--encoder", "tiny", "--weights", weights, "--frozen", "--method", "paco")
        kept = ("--cache", place / "kept")
        return ("train", "drawn", "--out", place / "run", *QUICK, *kept, *frozen * (kind == FROZEN))

    return line


@pytest.fixture(scope="module")
def unbroken(lines, processes, left_by, tmp_path_factory):
    """`unbroken(kind)`: what a run leaves that nothing stops."""
    left = {}

    def run(kind):
        if kind not in left:
            place = tmp_path_factory.mktemp("unbroken")
            said = processes.run(*lines(kind, place))
            assert said.code == 0, said.err
            left[kind] = left_by(place / "run")
        return left[kind]

    return run


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("kind", [WHOLE, FROZEN], ids=["whole", "frozen"])
def test_whenever_it_is_killed_it_ends_with_the_same_bytes(
    kind, seed, lines, processes, unbroken, left_by, tmp_path
):
    moments = random.Random(seed)
    line = lines(kind, tmp_path)
    for part, latest in kind:
        fate = (SIGKILL, part, moments.randint(1, latest))
        said = processes.run(*line, eager=True, fate=fate)
        assert said.code == -SIGKILL, f"not killed by {fate}: {said.err}"
    said = processes.run(*line, eager=True)
    assert said.code == 0, said.err
    assert left_by(tmp_path / "run") == unbroken(kind)
    assert not [*(tmp_path / "run").rglob("*.tmp")], "nothing half written stays"
    assert not (tmp_path / "run" / "features").exists()


def test_the_workers_of_a_killed_run_hold_nothing(shapes, processes, left_by, tmp_path):
    line = ("train", shapes, *QUICK, "--batch-size", "8")
    whole = processes.run(*line, "--out", tmp_path / "whole")
    assert whole.code == 0
    broken = (*line, "--out", tmp_path / "run", "--workers", "2")
    assert processes.run(*broken, fate=(SIGKILL, "metrics.csv", 1)).code == -SIGKILL
    said = processes.run(*broken)
    assert said.code == 0, said.err
    assert left_by(tmp_path / "run") == left_by(tmp_path / "whole")
