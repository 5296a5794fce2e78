"""Time and memory of stage 1."""

import subprocess
import sys

from scs_supcon.reproduce.efficiency import StepTimer


def test_the_last_epoch_is_measured(monkeypatch):
    clock = iter([10.0, 11.0, 12.0, 20.0, 29.0])
    monkeypatch.setattr("time.perf_counter", lambda: next(clock))
    timer = StepTimer("cpu")
    with timer.progress("stage 1") as progress:
        for done in range(5):
            progress(done, 4)
    assert timer.seconds_per_epoch(2) == 17.0
    with timer.progress("stage 2") as progress:
        progress(1, 1)  # not recorded
    assert timer.peak >= timer.before > 0


def test_memory_that_a_process_uses_is_counted():
    """In a process of its own, whose peak is not that of earlier tests."""
    code = (
        "from scs_supcon.reproduce.efficiency import peak_memory\n"
        "before = peak_memory('cpu')\n"
        "block = b'1' * (64 * 2**20)\n"
        "print(peak_memory('cpu') - before)\n"
    )
    # A program inherits the peak of the process that starts it: a shell has a small one.
    command = ["sh", "-c", '"$0" -c "$1"; exit $?', sys.executable, code]
    output = subprocess.run(command, capture_output=True, check=True)
    assert 48 * 2**20 < int(output.stdout) < 100 * 2**20
