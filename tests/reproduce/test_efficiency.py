"""Time and memory of stage 1."""

from scs_supcon.reproduce.efficiency import StepTimer, peak_memory


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


def test_the_memory_of_the_process_grows():
    before = peak_memory("cpu")
    block = bytearray(64 * 2**20)
    assert block
    assert peak_memory("cpu") >= before > 2**20
