"""`scs slurm` on a real one-node SLURM cluster."""

import csv
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster_commands import SHORT, needs_root, run, wait_until

CONFIG = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmdPort={port_of_node}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SlurmUser=root
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmdSpoolDir={folder}/spool
StateSaveLocation={folder}/state
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
ReturnToService=2
NodeName={host} NodeAddr=127.0.0.1 CPUs=2 RealMemory=8000 State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def _free_port() -> int:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return int(server.getsockname()[1])


class Cluster:
    """A controller and a node that run as processes of this test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.daemons: dict[str, subprocess.Popen[bytes]] = {}
        for name in ("state", "spool"):
            (folder / name).mkdir()
        host = socket.gethostname()
        ports = {"port": _free_port(), "port_of_node": _free_port()}
        (folder / "slurm.conf").write_text(CONFIG.format(host=host, folder=folder, **ports))
        (folder / "munge.key").write_bytes(os.urandom(1024))
        (folder / "munge.key").chmod(0o400)
        folder.chmod(0o755)
        self.environment = os.environ | {"SLURM_CONF": str(folder / "slurm.conf")}
        self.start(
            "munged",
            "--foreground",
            "--force",
            f"--key-file={folder}/munge.key",
            f"--socket={folder}/munge.socket",
            f"--pid-file={folder}/munge.pid",
            f"--log-file={folder}/munge.log",
            f"--seed-file={folder}/munge.seed",
        )
        self.start("slurmctld", "-D")
        self.start("slurmd", "-D")
        wait_until(lambda: "idle" in self.call("sinfo", "-h", "-o", "%T"), 60, "an idle node")

    def start(self, program: str, *arguments: str) -> None:
        with (self.folder / f"{program}.out").open("ab") as log:
            self.daemons[program] = subprocess.Popen(
                [program, *arguments], env=self.environment, stdout=log, stderr=log
            )

    def stop(self, program: str) -> None:
        daemon = self.daemons.pop(program)
        daemon.kill()
        daemon.wait()

    def call(self, *command: str) -> str:
        result = subprocess.run(
            command, env=self.environment, capture_output=True, text=True, check=False
        )
        return result.stdout


@pytest.fixture
def cluster(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Cluster]:
    needs_root("slurmctld", "slurmd", "munged", "sbatch")
    cluster = Cluster(tmp_path_factory.mktemp("slurm"))
    monkeypatch.setenv("SLURM_CONF", cluster.environment["SLURM_CONF"])
    try:
        yield cluster
    finally:
        cluster.call("scancel", "--user=root")
        for program in list(cluster.daemons):
            cluster.stop(program)


def _python_processes(folder: Path) -> list[int]:
    """Return the processes of `scs compare` that were started in a folder."""
    processes = []
    for entry in Path("/proc").iterdir():
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
            if (
                b"scs_supcon" in words
                and b"compare" in words
                and (entry / "cwd").resolve() == folder
            ):
                processes.append(int(entry.name))
        except (OSError, ValueError):
            continue
    return processes


def _accuracies(folder: Path) -> dict[tuple[str, str], str]:
    with (folder / "table" / "results.csv").open() as file:
        return {(row["method"], row["seed"]): row["accuracy"] for row in csv.DictReader(file)}


def test_jobs_share_a_comparison_and_survive_kills(cluster: Cluster, tmp_path: Path) -> None:
    """One job is killed in a run, the controller is restarted: every run once, equal numbers."""
    command = ["compare", "shapes", "--methods", "supcon", "--seeds", "2", "--no-tune", *SHORT]
    command += ["--out", "table"]
    for name in ("alone", "array"):
        (tmp_path / name).mkdir()
    run(*command, cwd=tmp_path / "alone")
    folder = tmp_path / "array"
    output = run("slurm", "--tasks", "2", *command, cwd=folder)
    assert "Submitted batch job" in output
    runs = folder / "runs" / "compared"
    wait_until(lambda: list(runs.glob("*/checkpoints/*")), 900, "a checkpoint")
    os.kill(_python_processes(folder)[0], signal.SIGKILL)
    cluster.stop("slurmctld")
    cluster.start("slurmctld", "-D")
    wait_until((folder / "table" / "results.csv").exists, 1800, "the end of the comparison")
    assert _accuracies(folder) == _accuracies(tmp_path / "alone")
    finished = {path.parent.name for path in runs.glob("*/finished.json")}
    alone = tmp_path / "alone" / "runs" / "compared"
    assert finished == {path.parent.name for path in alone.glob("*/finished.json")}


def test_a_job_that_is_told_to_stop_is_queued_again(cluster: Cluster, tmp_path: Path) -> None:
    command = ["train", "shapes", "--out", "run", *SHORT, "--epochs", "200"]
    run("slurm", *command, cwd=tmp_path)
    wait_until(lambda: list(tmp_path.glob("run/metrics.csv")), 900, "the first epoch")
    job = cluster.call("squeue", "-h", "-o", "%F").split()[0]
    cluster.call("scancel", "--signal=TERM", "--batch", f"{job}_1")
    wait_until(
        lambda: cluster.call("squeue", "-h", "-o", "%T").strip() == "PENDING", 120, "the requeue"
    )
    assert list(tmp_path.glob("run/checkpoints/*"))
    (log,) = tmp_path.glob("scs-slurm-*.log")
    assert "run the same command again to resume" in log.read_text()
