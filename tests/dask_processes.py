"""A Dask scheduler and its workers as processes of a test."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import psutil

from cluster_commands import wait_until


class DaskProcesses:
    """A scheduler and workers on this machine; logs are in `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = int(probe.getsockname()[1])
        self.address = f"tcp://127.0.0.1:{self.port}"
        self.scheduler: subprocess.Popen[bytes] | None = None
        self.workers: list[subprocess.Popen[bytes]] = []

    def start_scheduler(self) -> None:
        self.scheduler = self._start(
            *("scheduler", "--host", "127.0.0.1", "--port", str(self.port), "--no-dashboard")
        )
        wait_until(self._answers, 60, "the start of the scheduler")

    def start_worker(self) -> subprocess.Popen[bytes]:
        worker = self._start(
            *("worker", self.address, "--host", "127.0.0.1", "--nthreads", "1", "--no-dashboard"),
            *("--no-nanny", "--local-directory", str(self.folder)),
        )
        self.workers.append(worker)
        return worker

    def stop(self) -> None:
        """Kill all processes, with those that the workers have started."""
        for process in [*self.workers, *([self.scheduler] if self.scheduler else [])]:
            if process.poll() is None:
                members = psutil.Process(process.pid).children(recursive=True)
                process.kill()
                process.wait()
                for member in members:
                    if member.is_running():
                        member.kill()

    def logs(self) -> str:
        return "\n".join(log.read_text()[-3000:] for log in sorted(self.folder.glob("*.log")))

    def _answers(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def _start(self, kind: str, *arguments: str) -> subprocess.Popen[bytes]:
        with (self.folder / f"{kind}.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "dask", kind, *arguments],
                stdout=log,
                stderr=log,
                env=os.environ | {"OMP_NUM_THREADS": "1"},
            )
