"""Commands in an empty network namespace: the system calls show what native code does, too.

An audit hook sees the sockets of Python only. Here strace lists all of them, those of onnxruntime
and of other native libraries included.
"""

import ipaddress
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

LOCAL = {"AF_UNIX", "AF_INET", "AF_INET6", "AF_NETLINK"}  # the last one asks the own kernel
DNS = 53
LINGER = 12  # seconds; the telemetry of onnxruntime looks up its server after about 9

COMMANDS = """
import json, sys
from scs_supcon.__main__ import main
for arguments in json.loads(sys.argv[1]):
    sys.argv = ["scs", *arguments]
    try:
        main()
        code = 0
    except SystemExit as end:
        code = end.code
    print("exit code of", arguments[0], code, flush=True)
"""

# Starts a server, sends it an image, waits, and stops it.
SERVER = f"""
import json, subprocess, sys, time, urllib.request
image, *command = sys.argv[1:]
server = subprocess.Popen(command)
address = "http://127.0.0.1:8000"
while True:
    try:
        urllib.request.urlopen(address + "/healthz").close()
        break
    except OSError:
        assert server.poll() is None, "the server did not start"
        time.sleep(0.1)
body = open(image, "rb").read()
with urllib.request.urlopen(address + "/api/predict", body) as answer:
    print("predictions", len(json.load(answer)["predictions"]), flush=True)
time.sleep({LINGER})
server.terminate()
server.wait()
"""


@dataclass(frozen=True)
class Traced:
    """A traced process: its output, its system calls, and the home folder that it had."""

    output: str
    calls: list[str]
    home: Path

    def outside(self) -> list[str]:
        """Return the calls that name another computer, or ask for the address of a name."""
        return [call for call in self.calls if any(map(_is_outside, _targets(call)))]

    def families(self) -> set[str]:
        """Return the families of the sockets that were opened."""
        return {match[1] for call in self.calls if (match := re.search(r" socket\((\w+)", call))}


def _targets(call: str) -> Iterator[tuple[str, int]]:
    """Yield the addresses and ports that a process connects to, sends to or listens on."""
    if not re.search(r" (connect|bind|send\w+)\(", call):
        return
    ports = [int(port) for port in re.findall(r"sin6?_port=htons\((\d+)\)", call)]
    hosts = re.findall(r'inet_addr\("([^"]+)"\)|inet_pton\(AF_INET6, "([^"]+)"', call)
    for (old, new), port in zip(hosts, ports, strict=True):
        yield old or new, port


def _is_outside(target: tuple[str, int]) -> bool:
    host, port = target
    return port == DNS or not ipaddress.ip_address(host).is_loopback


def unshare() -> list[str]:
    """Return the command that starts another one without a network, or skip the test."""
    for tool in ("unshare", "strace", "ip"):
        if shutil.which(tool) is None:
            pytest.skip(f"no {tool}: it is needed to see the system calls of native code")
    for options in (["-n"], ["-rn"]):
        probe = ["unshare", *options, "strace", "-f", "-o", os.devnull, "ip", "link", "set", "lo"]
        if subprocess.run([*probe, "up"], capture_output=True, check=False).returncode == 0:
            return ["unshare", *options]
    return pytest.skip("network namespaces or strace are not permitted here")


def start(folder: Path, code: str, *arguments: str) -> subprocess.Popen[bytes]:
    """Start Python code in a namespace with nothing but loopback; see `finish`."""
    namespace = unshare()
    (folder / "home").mkdir(parents=True)
    guard = str(Path(__file__).parents[1] / "network_guard")
    paths = [path for path in os.environ["PYTHONPATH"].split(os.pathsep) if path != guard]
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "HOME": str(folder / "home")}
    for name in ("ORT_DISABLE_TELEMETRY", "XDG_CACHE_HOME", "HF_HOME", "HF_HUB_OFFLINE"):
        variables.pop(name, None)  # what the commands must do by themselves
    trace = ["strace", "-f", "-s", "0", "-e", "trace=network", "-o", str(folder / "calls")]
    script = 'ip link set lo up && exec "$@"'
    command = [*namespace, "sh", "-c", script, "sh", *trace, sys.executable, "-c", code]
    with (folder / "output").open("wb") as output:
        return subprocess.Popen(
            [*command, *arguments], env=variables, cwd=folder, stdout=output, stderr=output
        )


def finish(process: subprocess.Popen[bytes], folder: Path) -> Traced:
    process.wait()
    calls = (folder / "calls").read_text().splitlines()
    return Traced((folder / "output").read_text(), calls, folder / "home")


@pytest.fixture(scope="module")
def onnx_file(finished: Path, shapes: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("onnxscript")
    from scs_supcon import load
    from scs_supcon.inference.onnx import export_onnx

    file = tmp_path_factory.mktemp("exported") / "model.onnx"
    export_onnx(load(finished), file, sorted(shapes.rglob("*.png")))
    return file


def commands(folder: Path, shapes: Path, weights: Path) -> list[list[str]]:
    """Return small examples of the commands."""
    first = sorted(shapes.iterdir())[0]
    image, run, out = str(next(first.iterdir())), str(folder / "run"), str(folder / "out")
    quick = ["--epochs", "1", "--batch-size", "8", "--device", "cpu", "--quiet"]
    for setting in ("probe.epochs=1", "probe.views=1", "data.test_share=0.34"):
        quick += ["--set", setting]
    frozen = ["--encoder", "tiny", "--weights", str(weights), "--frozen"]
    search = ["--trials", "1", "--over", "pretrain.lr=0.01..0.1:log", "--workers", "0"]
    return [
        ["train", str(shapes), "--out", run, *quick, *frozen, "--workers", "1"],
        ["predict", run, image, "--quiet"],
        ["embed", run, str(shapes), "-o", "vectors.parquet", "--quiet"],
        ["search", run, image, "--vectors", "vectors.parquet", "--exact", "--quiet"],
        ["evaluate", run, str(shapes), "--quiet"],
        ["evaluate", run, "--shift", "--workers", "0", "--quiet"],
        ["report", run],
        ["relabel", run, "-o", "labels.csv"],
        ["diff", run, run],
        ["runs", str(folder)],
        ["doctor", str(shapes)],
        ["pack", str(shapes), "packed", "--quiet"],
        ["export", run, "-o", "model.onnx", "--quiet"],
        ["export", run, "-o", "model.int8.onnx", "--int8", "--quiet"],
        ["add-class", run, "star", str(first)],
        ["tune", str(shapes), "--out", "tuned", *search, *quick],
        ["compare", str(shapes), "--methods", "supcon", "--out", out, "--runs", "runs", *quick],
    ]


@pytest.fixture(scope="module")
def traced(
    finished: Path,
    shapes: Path,
    weights: Path,
    onnx_file: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, Traced]:
    """What the commands do, what `serve` does, and what `serve --onnx` does, all at a time."""
    root = tmp_path_factory.mktemp("traced")
    run = shutil.copytree(finished, root / "served")
    image = str(next(shapes.rglob("*.png")))
    serve = (image, sys.executable, "-m", "scs_supcon", "serve")
    lists = json.dumps(commands(root / "commands", shapes, weights))
    processes = {
        "commands": start(root / "commands", COMMANDS, lists),
        "serve": start(root / "serve", SERVER, *serve, str(run)),
        "onnx": start(root / "onnx", SERVER, *serve, "--onnx", str(onnx_file)),
    }
    return {name: finish(process, root / name) for name, process in processes.items()}


def test_the_trace_shows_what_another_computer_is_asked(tmp_path: Path) -> None:
    lookup = "import socket; socket.getaddrinfo('example.org', 443)"
    connection = "import socket; socket.create_connection(('192.0.2.1', 80))"
    local = "import socket; socket.create_server(('127.0.0.1', 0)); socket.socketpair()"
    for code, port in ((connection, 80), (local, None), (lookup, DNS)):
        folder = tmp_path / str(port)
        result = finish(start(folder, code), folder)
        assert result.families(), result.output
        ports = {number for call in result.outside() for _, number in _targets(call)}
        if code is lookup and not ports:
            pytest.skip("another process looks up names here, over a unix socket")
        assert ports == ({port} if port else set()), result.calls


@pytest.mark.parametrize("name", ["commands", "serve", "onnx"])
def test_nothing_leaves_this_computer(traced: dict[str, Traced], name: str) -> None:
    result = traced[name]
    codes = re.findall(r"^exit code of (\S+) (\S+)$", result.output, re.MULTILINE)
    problems = {"doctor": "1"}  # it finds that there are few images
    assert all(code == problems.get(name, "0") for name, code in codes), result.output
    assert len(codes) == 17 if name == "commands" else "predictions 1" in result.output
    assert result.outside() == []
    assert result.families() <= LOCAL
    assert not (result.home / ".cache" / "Microsoft").exists()


def test_the_example_writes_no_identifier(onnx_file: Path, shapes: Path, tmp_path: Path) -> None:
    variables = {name: os.environ[name] for name in os.environ if name != "ORT_DISABLE_TELEMETRY"}
    variables |= {"HOME": str(tmp_path)}
    example = Path(__file__).parents[2] / "examples" / "onnx_predict.py"
    image = next(shapes.rglob("*.png"))
    subprocess.run([sys.executable, example, onnx_file, image], env=variables, check=True)
    assert list(tmp_path.rglob("*onnxruntime*")) == []


@pytest.mark.parametrize("name", ["cpu", "onnx"])
def test_images_of_docker_forbid_telemetry(name: str) -> None:
    file = Path(__file__).parents[2] / "docker" / f"{name}.Dockerfile"
    assert "ENV ORT_DISABLE_TELEMETRY=1\n" in file.read_text()
