"""Workers share the cores, report how they end, and stop with the pool."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from multiprocessing import Pipe
from types import SimpleNamespace

import pytest

from scs_supcon.device import cores
from scs_supcon.training.checkpointing import Stopped
from scs_supcon.training.workers import WorkerPool

SCRIPT = """
import os
import signal
import sys
import time
from pathlib import Path

import torch

from scs_supcon.errors import UserError
from scs_supcon.io.lock import InUse
from scs_supcon.training.workers import WorkerPool


def threads():
    return str(torch.get_num_threads())


def fail():
    raise UserError("no good")


def busy():
    raise InUse("held")


def crash():
    os.kill(os.getpid(), signal.SIGKILL)


def noisy():
    print("hello")
    raise ValueError("odd")


def forever():
    Path("started").touch()
    time.sleep(1000)


def run_all(names):
    with WorkerPool(2) as pool:
        waiting, reports = list(names), {}
        while waiting or pool.workers:
            while waiting and pool.has_room:
                name = waiting.pop()
                pool.start(name, globals()[name], log=Path(name + ".log"))
            reports |= pool.wait(5)
    for name, report in sorted(reports.items()):
        print(name, report.status.value, report.message, sep=": ")


def be_stopped():
    with WorkerPool(1) as pool:
        pool.start("forever", forever)
        while not Path("started").exists():
            pool.wait(0.05)
        os.kill(os.getpid(), signal.SIGTERM)
        pool.wait(60)


if __name__ == "__main__":
    run_all(sys.argv[1:]) if len(sys.argv) > 1 else be_stopped()
"""


@pytest.fixture
def run_script(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)

    def run(*names):
        return subprocess.run(
            [sys.executable, "script.py", *names],
            capture_output=True,
            text=True,
            check=False,
            cwd=tmp_path,
            timeout=120,
        )

    return run


def test_workers_report_how_they_ended(run_script, tmp_path, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    result = run_script("threads", "fail", "busy", "crash", "noisy")
    assert result.stdout.splitlines() == [
        "busy: busy: ",
        "crash: failed: the process ended with signal 9, perhaps out of memory: use fewer --jobs",
        "fail: failed: no good",
        "noisy: failed: ValueError: odd; see noisy.log",
        f"threads: done: {max(1, cores() // 2)}",
    ], result.stderr
    log = (tmp_path / "noisy.log").read_text()
    assert "hello" in log
    assert "Traceback" in log


def test_sigterm_stops_the_workers_and_raises_stopped(run_script):
    result = run_script()
    assert result.returncode == 1
    assert "Stopped" in result.stderr.splitlines()[-1]


@pytest.mark.parametrize(("limit", "threads"), [("", 4), ("1", 1), ("16", 4), ("4,2", 4)])
def test_omp_num_threads_limits_the_threads_of_a_worker(limit, threads, monkeypatch):
    monkeypatch.setattr("scs_supcon.training.workers.cores", lambda: 8)
    monkeypatch.setenv("OMP_NUM_THREADS", limit)
    assert WorkerPool(2).threads == threads


def sleep() -> str:
    time.sleep(100)
    return ""


def test_a_worker_that_starts_when_a_signal_arrives_is_stopped_too(monkeypatch):
    context = multiprocessing.get_context("fork")
    started = []

    class SignalledProcess(context.Process):
        def start(self):
            super().start()
            started.append(self)
            os.kill(os.getpid(), signal.SIGTERM)

    pool = WorkerPool(1)
    # A process that was just forked may not notice SIGTERM; one of a forkserver does.
    monkeypatch.setattr("scs_supcon.training.workers.GRACE_SECONDS", 5.0)
    monkeypatch.setattr(pool, "_context", SimpleNamespace(Process=SignalledProcess, Pipe=Pipe))
    with pytest.raises(Stopped), pool:
        pool.start("sleep", sleep)
    (process,) = started
    assert process.exitcode is not None, "it was known, and is stopped"
