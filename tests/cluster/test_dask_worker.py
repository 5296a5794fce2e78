"""The process that runs a call for a Dask worker."""

import signal
import subprocess
import sys

import pytest

FORKS = """
import multiprocessing, threading, time
from scs_supcon.cluster.dask_worker import _stop_with_worker
threading.Thread(target=_stop_with_worker, daemon=True).start()
time.sleep(0.2)  # the thread waits for the end of standard input
child = multiprocessing.get_context("fork").Process(target=print, args=("forked",))
child.start()
child.join(30)
print("ended" if child.exitcode == 0 else "hangs", flush=True)
child.kill()
time.sleep(60)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="processes are not forked there")
def test_processes_can_be_forked_while_it_waits_for_the_end_of_its_worker():
    command = [sys.executable, "-c", FORKS]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        assert [process.stdout.readline() for _ in range(2)] == ["forked\n", "ended\n"]
        process.stdin.close()  # as when the Dask worker ends
        assert process.wait(30) == -signal.SIGTERM
