"""`scs tune` with its study in a real PostgreSQL server."""

import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster_commands import needs_root, run, scs_command, wait_until


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    """The URL of an empty database."""
    needs_root("su")
    pytest.importorskip("pg8000")
    versions = sorted(Path("/usr/lib/postgresql").glob("*/bin/pg_ctl"))
    if not versions:
        pytest.skip("needs postgresql")
    binaries = versions[-1].parent
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    folder = Path(tmp_path.parent / f"{tmp_path.name}-postgresql")
    folder.mkdir()
    shutil.chown(folder, "postgres")
    for parent in folder.parents:
        if parent.stat().st_mode & 0o001 == 0:
            parent.chmod(parent.stat().st_mode | 0o011)

    def as_postgres(command: str) -> None:
        subprocess.run(["su", "postgres", "-c", f"cd / && {command}"], check=True, timeout=120)

    as_postgres(f"{binaries}/initdb -D {folder}/data -A trust -U postgres > {folder}/initdb.log")
    options = f"-c listen_addresses=127.0.0.1 -c port={port} -c unix_socket_directories={folder}"
    as_postgres(
        f"{binaries}/pg_ctl -w -D {folder}/data -o '{options}' -l {folder}/log start > /dev/null"
    )
    try:
        yield f"postgresql+pg8000://postgres@127.0.0.1:{port}/postgres"
    finally:
        as_postgres(f"{binaries}/pg_ctl -D {folder}/data -m immediate stop > /dev/null")


def test_two_workers_share_a_study_and_one_is_killed(server: str, tmp_path: Path) -> None:
    command = ["tune", "shapes", "--out", "search", "--trials", "4", "--storage", server]
    command += ["--over", "pretrain.lr=0.01..1:log", "--epochs", "2", "--workers", "0"]
    command += ["--method", "supcon", "--set", "probe.epochs=2", "--set", "probe.views=1"]
    with (tmp_path / "killed.log").open("w") as log:
        killed = subprocess.Popen(
            scs_command(*command),
            cwd=tmp_path,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    wait_until(lambda: list(tmp_path.glob("search/trials/*/metrics.csv")), 900, "a trial")
    os.killpg(killed.pid, signal.SIGKILL)
    killed.wait()
    output = run(*command, cwd=tmp_path)
    assert "best of 4 trials" in output
    assert len((tmp_path / "search" / "trials.csv").read_text().splitlines()) == 5
    assert not (tmp_path / "search" / "study.journal").exists()
