"""A server that is killed loses nothing: acknowledged corrections are stored, trainings resume."""

import json
import threading

import pytest

from scs_supcon.io.lock import is_held
from server_processes import kill_training, server_processes, wait_for

pytestmark = pytest.mark.slow


@pytest.fixture
def start(run_copy, client_of):
    """`start()` starts `scs serve` as a process and returns it with a client."""
    with server_processes(run_copy) as start_server:

        def start():
            server = start_server()
            return server, client_of(server.port)

        yield start


def test_nothing_is_lost_if_the_server_is_killed(start, run_copy):
    server, client = start()
    acknowledged = correct_until_killed(server, client)

    server, client = start()
    check_corrections(client, acknowledged)
    new = run_copy.with_name("shapes-2")
    assert client.post("/api/retrain", {}).status == 202
    wait_for(lambda: (new / "metrics.csv").is_file() and (new / "metrics.csv").stat().st_size > 500)
    server.kill()  # in the middle of the training, and the training too, as if the power failed
    kill_training(new)
    wait_for(lambda: not is_held(new / ".lock"))
    assert not (new / "finished.json").exists()

    server, client = start()
    check_corrections(client, acknowledged)
    assert client.get("/api/retrain").json()["state"] == "stopped"
    assert client.post("/api/retrain/resume", {}).status == 202
    wait_for(lambda: is_held(new / ".lock"))
    server.kill()  # only the server: the training continues
    assert is_held(new / ".lock")

    server, client = start()
    assert client.get("/api/retrain").json()["state"] in ("running", "finished")
    wait_for(lambda: client.get("/api/retrain").json()["state"] == "finished")
    assert client.get("/api/runs").json()["runs"] == ["shapes", "shapes-2"]
    assert client.post("/api/promote", {"run": "shapes-2"}).status == 200
    assert json.loads((new / "finished.json").read_text())["images"]
    wait_for(lambda: not is_held(new / ".lock"))  # the report is written last
    assert not [*run_copy.rglob("*.tmp"), *new.rglob("*.tmp")]


def correct_until_killed(server, client):
    """Correct labels until the server is killed; return the corrections that it acknowledged."""
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
    wait_for(lambda: len(acknowledged) >= 40)
    server.kill()
    thread.join()
    return acknowledged


def check_corrections(client, acknowledged):
    data = client.get("/api/data").json()
    last = client.get("/api/corrections").json()["rows"][-1]
    for image, label in dict(acknowledged).items():
        name, stored = data["names"][image], data["classes"][data["labels"][image]]
        # The last row may be stored although its answer did not arrive.
        assert stored == label or (last["image"], last["new_label"]) == (name, stored)
