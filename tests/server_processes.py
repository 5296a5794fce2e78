"""`scs serve` in processes of its own, which can be killed."""

import http.client
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class ServerProcess:
    """A server that answers."""

    process: subprocess.Popen[bytes]
    port: int

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def kill(self) -> None:
        """Kill the server at once; it cannot save anything."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


@contextmanager
def server_processes(run: Path) -> Iterator[Callable[[], ServerProcess]]:
    """`with server_processes(run) as start:` lets `start()` start a server for a run."""
    servers = []

    def start() -> ServerProcess:
        port = free_port()
        command = [sys.executable, "-m", "scs_supcon", "serve", str(run), "--port", str(port)]
        servers.append(ServerProcess(subprocess.Popen(command), port))
        wait_for(lambda: servers[-1].process.poll() is not None or _answers(port))
        assert servers[-1].process.poll() is None
        return servers[-1]

    yield start
    for server in servers:
        server.kill()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for(condition: Callable[[], object], seconds: float = 300) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def kill_training(run: Path) -> None:
    """Kill the process that trains a run."""
    os.kill(int((run / ".lock").read_text().split()[0]), signal.SIGKILL)


def _answers(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request("GET", "/healthz")
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()
