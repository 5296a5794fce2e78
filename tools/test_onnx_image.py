"""Run the steps of docker/onnx.Dockerfile in a new environment, and compare its answers with torch.

    python tools/test_onnx_image.py [RUN IMAGE...]

Without arguments, a small run on the handwritten digits is trained and its test images are sent.
COPY, ENV, RUN and ENTRYPOINT are taken from the file; the environment is build/onnx-env.
"""

import json
import os
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
import venv
from pathlib import Path

import scs_supcon

ROOT = Path(__file__).parents[1]
DOCKERFILE = ROOT / "docker" / "onnx.Dockerfile"
ENVIRONMENT = ROOT / "build" / "onnx-env"
TOKEN = "secret"
TOLERANCE = 1e-3


def steps():
    """Return the instructions of the Dockerfile as (name, arguments)."""
    lines = [line for line in DOCKERFILE.read_text().splitlines() if line and line[0] != "#"]
    return [tuple(line.split(maxsplit=1)) for line in lines]


def install(folder):
    """Copy and run what the Dockerfile says, in a new environment; return its variables."""
    venv.create(ENVIRONMENT, clear=True, with_pip=True)
    path = f"{ENVIRONMENT / 'bin'}{os.pathsep}{os.environ['PATH']}"
    variables = {name: os.environ[name] for name in os.environ if not name.startswith("PYTHON")}
    variables |= {"PATH": path, "VIRTUAL_ENV": str(ENVIRONMENT), "SCS_TOKEN": TOKEN}
    for name, arguments in steps():
        if name == "COPY":
            *sources, target = arguments.split()
            for source in sources:
                if (ROOT / source).is_dir():
                    shutil.copytree(ROOT / source, folder / target)
                else:
                    shutil.copy(ROOT / source, folder / target)
        elif name == "ENV":
            variables |= dict([arguments.split("=", 1)])
        elif name == "RUN":
            subprocess.run(shlex.split(arguments), cwd=folder, env=variables, check=True)
    return variables


def small_run(folder):
    """Return a run on the digits, and files of some of its test images."""
    run = folder / "run"
    options = {"epochs": 2, "settings": ["probe.epochs=5"], "workers": 0, "quiet": True}
    scs_supcon.train("digits", out=run, report=False, **options)
    from scs_supcon.data.builtin import digits

    images, files = digits(), []
    for index in range(0, 600, 30):
        files.append(folder / f"{index}.png")
        images.open(index).save(files[-1])
    return run, files


def start_server(folder, variables, file):
    """Start the entry point of the Dockerfile; return the process and its address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    (entry,) = [json.loads(arguments) for name, arguments in steps() if name == "ENTRYPOINT"]
    entry[0] = str(ENVIRONMENT / "bin" / entry[0])
    process = subprocess.Popen([*entry, str(file), "--port", str(port)], cwd=folder, env=variables)
    address = f"http://127.0.0.1:{port}"
    while True:
        try:
            request = urllib.request.Request(f"{address}/healthz")
            request.add_header("Authorization", f"Bearer {TOKEN}")
            urllib.request.urlopen(request).close()
            return process, address
        except OSError:
            assert process.poll() is None, "the server did not start"
            time.sleep(0.2)


def predict(address, file):
    request = urllib.request.Request(f"{address}/api/predict", file.read_bytes())
    request.add_header("Authorization", f"Bearer {TOKEN}")
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)["predictions"][0]


def main():
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        given = [Path(argument).absolute() for argument in sys.argv[1:]]
        run, files = (given[0], given[1:]) if given else small_run(folder)
        export = ["export", str(run), "--onnx", "-o", str(folder / "model.onnx")]
        subprocess.run([sys.executable, "-m", "scs_supcon", *export], check=True)
        (folder / "image").mkdir()
        variables = install(folder / "image")
        code = "import importlib.util as u; raise SystemExit(u.find_spec('torch') is not None)"
        subprocess.run([ENVIRONMENT / "bin" / "python", "-c", code], env=variables, check=True)
        server, address = start_server(folder, variables, folder / "model.onnx")
        try:
            answers = [predict(address, file) for file in files]
        finally:
            server.terminate()
            server.wait()
        worst = 0.0
        for answer, record in zip(
            answers, scs_supcon.load(run).predict(files).records, strict=True
        ):
            assert (answer["label"], answer["unknown"]) == (record.label, record.unknown), answer
            top = dict(record.top)
            worst = max(worst, *(abs(answer["top"][key] - top[key]) for key in top))
            worst = max(worst, abs(answer["similarity"] - record.similarity))
        assert worst <= TOLERANCE, worst
    size = sum(file.stat().st_size for file in ENVIRONMENT.rglob("*") if file.is_file())
    print(f"{len(files)} images: the same classes, largest difference {worst:.1e}; "
          f"the environment without torch has {size / 1e6:.0f} MB")  # fmt: skip


if __name__ == "__main__":
    main()
