"""The OpenAPI document against real servers, by schemathesis; `make test-api` installs it."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import scs_supcon
from scs_supcon.inference.gallery import replacing_gallery
from server_processes import free_port, server_processes, wait_for

FOLDER = Path(__file__).resolve().parents[2]
SCHEMATHESIS = shutil.which(
    "schemathesis", path=os.pathsep.join([str(FOLDER / "build/api-env/bin"), os.environ["PATH"]])
)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(SCHEMATHESIS is None, reason="no schemathesis: run `make test-api`"),
]


def check(port: int) -> None:
    command = [SCHEMATHESIS, "--config-file", str(Path(__file__).with_name("schemathesis.toml"))]
    command += ["run", f"http://127.0.0.1:{port}/api/openapi.json", "--seed", "1"]
    command += ["--max-examples", "60"]
    result = subprocess.run(command, check=False, capture_output=True, text=True, errors="replace")
    assert result.returncode == 0, result.stdout[-20_000:]
    assert "passed" in result.stdout


def test_the_server_of_a_run_does_what_the_document_says(run_copy):
    with server_processes(run_copy) as start:
        check(start().port)


def test_the_server_of_an_exported_model_does_what_the_document_says(
    finished, image_files, tmp_path
):
    pytest.importorskip("onnxruntime", reason="no onnxruntime: pip install 'scs-supcon[onnx]'")
    from scs_supcon.inference.onnx import export_onnx

    model, file, port = scs_supcon.load(finished), tmp_path / "shapes.onnx", free_port()
    with replacing_gallery(model, file):
        export_onnx(model, file, image_files[:4])
    command = [sys.executable, "-m", "scs_supcon", "serve", "--onnx", str(file)]
    server = subprocess.Popen([*command, "--port", str(port)])
    try:
        wait_for(lambda: server.poll() is not None or answers(port))
        check(port)
    finally:
        server.terminate()
        server.wait()


def answers(port: int) -> bool:
    import urllib.request

    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz") as answer:
            return answer.status == 200
    except OSError:
        return False
