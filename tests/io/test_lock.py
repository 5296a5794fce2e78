import os
import signal
import subprocess
import sys

import pytest

from scs_supcon.errors import UserError
from scs_supcon.io.lock import InUse, Lock, is_held

HOLD = """
import sys, time
from pathlib import Path
from scs_supcon.io.lock import Lock
lock = Lock(Path(sys.argv[1]))
print("held", flush=True)
time.sleep(600)
"""

# A worker that lives on after its parent was killed, as data workers do for a while.
FORK = """
import os, sys, time
from pathlib import Path
from scs_supcon.io.lock import Lock
lock = Lock(Path(sys.argv[1]))
child = os.fork()
if not child:
    time.sleep(600)
print(child, flush=True)
time.sleep(600)
"""


def start(code, path):
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, text=True
    )
    return process, process.stdout.readline().strip()


def test_a_second_process_is_refused_until_the_first_is_dead(tmp_path):
    path = tmp_path / ".lock"
    owner, _ = start(HOLD, path)
    try:
        with pytest.raises(UserError, match=f"{tmp_path} is in use by process {owner.pid} on "):
            Lock(path)
    finally:
        owner.kill()
        owner.wait()
    Lock(path).release()


def test_a_child_that_outlives_the_owner_holds_nothing(tmp_path):
    path = tmp_path / ".lock"
    owner, child = start(FORK, path)
    owner.kill()
    owner.wait()
    try:
        Lock(path).release()
    finally:
        os.kill(int(child), signal.SIGKILL)


def test_a_folder_is_held_once_within_a_process_too(tmp_path):
    lock = Lock(tmp_path / ".lock")
    with pytest.raises(UserError, match=f"in use by process {os.getpid()}"):
        Lock(tmp_path / ".lock")
    lock.release()
    lock.release()
    Lock(tmp_path / ".lock").release()


def test_asking_whether_it_is_held_takes_nothing(tmp_path):
    path = tmp_path / ".lock"
    assert not is_held(path)
    assert not path.exists()
    process, _ = start(HOLD, path)
    assert is_held(path)
    with pytest.raises(InUse):
        Lock(path)
    process.kill()
    process.wait()
    assert not is_held(path)
    Lock(path).release()
