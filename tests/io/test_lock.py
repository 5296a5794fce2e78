import os
import signal
import subprocess
import sys
import threading

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

# A child that outlives its killed parent, as data workers may do.
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


def test_a_second_process_gets_an_error_until_the_first_is_killed(tmp_path):
    path = tmp_path / ".lock"
    owner, _ = start(HOLD, path)
    try:
        with pytest.raises(UserError, match=f"{tmp_path} is in use by process {owner.pid} on "):
            Lock(path)
    finally:
        owner.kill()
        owner.wait()
    Lock(path).release()


def test_a_forked_child_that_outlives_the_owner_does_not_hold_the_lock(tmp_path):
    path = tmp_path / ".lock"
    owner, child = start(FORK, path)
    owner.kill()
    owner.wait()
    try:
        Lock(path).release()
    finally:
        os.kill(int(child), signal.SIGKILL)


def test_a_lock_is_exclusive_within_one_process_too(tmp_path):
    lock = Lock(tmp_path / ".lock")
    with pytest.raises(UserError, match=f"in use by process {os.getpid()}"):
        Lock(tmp_path / ".lock")
    lock.release()
    lock.release()
    Lock(tmp_path / ".lock").release()


def test_is_held_neither_keeps_nor_creates_the_lock(tmp_path):
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


def test_a_lock_can_wait_until_it_is_free(tmp_path):
    path = tmp_path / ".lock"
    owner, _ = start(HOLD, path)
    timer = threading.Timer(0.8, owner.kill)  # longer than an attempt without waiting
    timer.start()
    with Lock(path, wait=True):
        assert is_held(path)
    owner.wait()
    assert not is_held(path)


TEST_REPEATEDLY = """
import sys
from pathlib import Path
from scs_supcon.io.lock import is_held
print("ready", flush=True)
while True: is_held(Path(sys.argv[1]))
"""


def test_calls_of_is_held_do_not_prevent_another_process_from_locking(tmp_path):
    path = tmp_path / ".lock"
    Lock(path).release()
    testers = [start(TEST_REPEATEDLY, path)[0] for _ in range(2)]
    try:
        for _ in range(20):
            Lock(path).release()
    finally:
        for tester in testers:
            tester.kill()
            tester.wait()


def test_a_spawned_child_does_not_hold_the_lock(tmp_path):
    path = tmp_path / ".lock"
    lock = Lock(path)
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    lock.release()
    try:
        Lock(path).release()
    finally:
        child.kill()
        child.wait()
