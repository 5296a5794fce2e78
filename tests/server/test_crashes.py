"""A server that is killed loses nothing: acknowledged corrections are stored, trainings resume."""

import json
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from scs_supcon.io.lock import is_held

pytestmark = pytest.mark.slow


@pytest.fixture
def start(run_copy, client_of, unused_port):
    """`start()` starts `scs serve` as a process and returns it with a client."""
    processes = []

    def run():
        command = [sys.executable, "-m", "scs_supcon", "serve", str(run_copy)]
        processes.append(subprocess.Popen([*command, "--port", str(unused_port)]))
        client = client_of(unused_port)
        deadline = time.monotonic() + 240
        while True:
            assert processes[-1].poll() is None
            assert time.monotonic() < deadline
            try:
                if client.get("/healthz").status == 200:
                    return processes[-1], client
            except OSError:
                time.sleep(0.2)

    yield run
    for process in processes:
        process.kill()
        process.wait()


def test_nothing_is_lost_if_the_server_is_killed(start, run_copy, serve):
    server, client = start()
    acknowledged = []

    def correct():
        labels = ("bar", "circle", "cross", "square")
        for step in range(10_000):
            # Every class keeps some images.
            document = {"images": [step % 24], "label": labels[(step + step // 24) % 4]}
            try:
                answer = client.post("/api/corrections", document)
            except OSError:  # killed
                return
            if answer.status == 200:
                acknowledged.append((step % 24, document["label"]))

    thread = threading.Thread(target=correct)
    thread.start()
    while len(acknowledged) < 40:
        time.sleep(0.01)
    server.send_signal(signal.SIGKILL)
    thread.join()
    server.wait()
    with serve(run_copy) as restarted:
        data = restarted.get("/api/data").json()
        rows = restarted.get("/api/corrections").json()["rows"]
        expected = {}
        for image, label in acknowledged:
            expected[data["names"][image]] = label
        last = rows[-1]
        for name, label in expected.items():
            stored = data["classes"][data["labels"][data["names"].index(name)]]
            # The last row may be stored although its answer did not arrive.
            assert stored == label or (last["image"], last["new_label"]) == (name, stored)

        # Kill the server's training, too: it can be resumed.
        assert restarted.post("/api/retrain", {}).status == 202
        new = run_copy.with_name("shapes-2")
        wait(lambda: is_held(new / ".lock"))
        os.kill(int((new / ".lock").read_text().split()[0]), signal.SIGKILL)
        wait(lambda: restarted.get("/api/retrain").json()["state"] in ("stopped", "finished"))
    with serve(run_copy) as again:
        state = again.get("/api/retrain").json()
        if state["state"] == "stopped":
            again.post("/api/retrain/resume", {})
        wait(lambda: again.get("/api/retrain").json()["state"] == "finished")
        assert again.get("/api/runs").json()["runs"] == ["shapes", "shapes-2"]
    assert json.loads((new / "finished.json").read_text())["images"]
    assert not list(run_copy.rglob("*.tmp"))


def wait(condition, seconds=300):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.2)
