"""A run from somebody else runs no code and reaches no file outside of it."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from scs_supcon.errors import UserError
from server_client import serve_run
from server_processes import free_port, wait_for

CODE = "import pathlib; pathlib.Path({file!r}).write_text('ran')\n"


def write_job(folder, **values):
    (folder / "retrain.json").write_text(json.dumps({"corrections": 0, **values}))


def resume_and_wait(client):
    client.post("/api/retrain/resume", {})
    wait_for(lambda: client.get("/api/retrain").json()["state"] != "running")


def test_resuming_does_not_run_a_stored_command(run_copy, tmp_path):
    proof = tmp_path / "proof"
    code = tmp_path / "x.py"
    code.write_text(CODE.format(file=str(proof)))
    command = ["train", "digits", "--out", str(tmp_path / "o"), "--method", f"{code}:M"]
    write_job(run_copy, run="shapes-2", command=command)
    try:
        with serve_run(run_copy) as client:
            resume_and_wait(client)
            shown = client.get("/api/retrain").json()["command"]
        assert str(code) not in shown
    except UserError:
        pass  # rejected as a whole
    assert not proof.exists()


@pytest.mark.parametrize(
    "name", ["../../outside", "/etc", "shapes-2/../../x", "other-2", "shapes-"]
)
def test_the_name_of_the_new_run_stays_beside_the_served_one(run_copy, tmp_path, name):
    (tmp_path / "outside.log").write_text("private\n")
    write_job(run_copy, run=name, command=["train"])
    with pytest.raises(UserError, match="delete it"), serve_run(run_copy) as client:
        assert "private" not in client.get("/api/retrain").body.decode()
        resume_and_wait(client)
    assert (tmp_path / "outside.log").read_text() == "private\n"


@pytest.mark.slow
def test_retraining_imports_nothing_from_the_current_folder(run_copy, tmp_path):
    folder, proof = tmp_path / "here", tmp_path / "proof"
    folder.mkdir()
    (folder / "tomllib.py").write_text(CODE.format(file=str(proof)))
    port = free_port()
    scs = Path(sys.executable).with_name("scs")
    server = subprocess.Popen([scs, "serve", str(run_copy), "--port", str(port)], cwd=folder)
    try:
        from server_client import Client

        client = Client(port, run_copy)

        def answers():
            assert server.poll() is None
            try:
                return client.get("/healthz").status == 200
            except OSError:
                return False

        wait_for(answers)
        assert client.post("/api/retrain", {}).status == 202
        log = run_copy / "corrected" / "shapes-2.log"
        wait_for(
            lambda: proof.exists() or (log.exists() and b"checking images" in log.read_bytes())
        )
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(60)
    assert not proof.exists()


@pytest.mark.slow
def test_workers_import_nothing_from_the_current_folder(shapes, tmp_path):
    folder, proof = tmp_path / "here", tmp_path / "proof"
    folder.mkdir()
    for name in ("pickle", "runpy", "tempfile"):  # some of them are imported with multiprocessing
        (folder / f"{name}.py").write_text(CODE.format(file=str(proof)))
    scs = Path(sys.executable).with_name("scs")
    command = [scs, "compare", str(shapes), "--methods", "supcon", "--from-scratch", "--encoder"]
    command += ["tiny", "--epochs", "1", "--jobs", "2", "--out", str(tmp_path / "comparison")]
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert not proof.exists(), result.stderr


def test_retraining_does_not_bring_a_moved_run_back(run_copy):
    with serve_run(run_copy) as client:
        moved = run_copy.rename(run_copy.with_name("moved"))
        answer = client.post("/api/retrain", {})
        assert answer.status in (400, 409)
        assert "moved or deleted" in answer.json()["error"]
        assert not run_copy.exists()
        moved.rename(run_copy)
