"""torchrun on two nodes: network namespaces with a cable between them, one node killed."""

import hashlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster_commands import needs_root, wait_until

NODES = ("scs-node-1", "scs-node-2")
ADDRESSES = ("10.213.77.1", "10.213.77.2")
EPOCHS = 300  # longer than the time between two checkpoints, of which the first is waited for
# torchrun counts a node as lost after three missed signs of life, 5 s apart. A new node that comes
# earlier can be mixed up with the lost one.
KEEP_ALIVE_SECONDS = 25


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, timeout=30)


@pytest.fixture
def nodes() -> Iterator[None]:
    needs_root("ip")
    try:
        for node in NODES:
            _ip("netns", "add", node)
    except subprocess.CalledProcessError:
        pytest.skip("needs network namespaces")
    try:
        _ip("link", "add", "scs1", "netns", NODES[0], "type", "veth", "peer", "scs2")
        _ip("link", "set", "scs2", "netns", NODES[1])
        for node, address, link in zip(NODES, ADDRESSES, ("scs1", "scs2"), strict=True):
            _ip("-n", node, "addr", "add", f"{address}/24", "dev", link)
            _ip("-n", node, "link", "set", link, "up")
            _ip("-n", node, "link", "set", "lo", "up")
        yield
    finally:
        for node in NODES:
            _ip("netns", "del", node)


def _start(node: int, out: Path) -> subprocess.Popen[bytes]:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2"]
    torchrun += ["--nproc-per-node", "1", "--max-restarts", "5", "--rdzv-backend", "c10d"]
    torchrun += ["--rdzv-endpoint", f"{ADDRESSES[0]}:29517", "--rdzv-id", out.name]
    # Both namespaces have the host name of the machine, by which torchrun would choose.
    torchrun += ["--local-addr", ADDRESSES[node], "--rdzv-conf", f"is_host={1 - node}"]
    train = ["-m", "scs_supcon", "train", "shapes", "--out", str(out), "--method", "supcon"]
    train += ["--epochs", str(EPOCHS), "--workers", "0", "--no-report", "--batch-size", "64"]
    train += ["--set", "probe.epochs=2", "--set", "probe.views=1"]
    environment = os.environ | {"GLOO_SOCKET_IFNAME": f"scs{node + 1}", "OMP_NUM_THREADS": "1"}
    # Otherwise the agent that survives keeps the address of the first round to itself, and a node
    # that joins later waits for it until it gives up.
    environment |= {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    with (out.parent / f"{out.name}-node{node + 1}.log").open("ab") as log:
        return subprocess.Popen(
            ["ip", "netns", "exec", NODES[node], *torchrun, *train],
            env=environment,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def _logs(folder: Path) -> str:
    return "\n".join(log.read_text()[-3000:] for log in sorted(folder.glob("*.log")))


def _digest(run: Path) -> str:
    return hashlib.sha256((run / "model" / "weights.safetensors").read_bytes()).hexdigest()


def test_a_killed_node_does_not_change_the_result(nodes: None, tmp_path: Path) -> None:
    undisturbed = [_start(node, tmp_path / "undisturbed") for node in (0, 1)]
    assert [process.wait(600) for process in undisturbed] == [0, 0], _logs(tmp_path)

    processes = [_start(node, tmp_path / "disturbed") for node in (0, 1)]
    try:
        metrics = tmp_path / "disturbed" / "metrics.csv"
        wait_until(
            lambda: metrics.exists() and len(metrics.read_text().splitlines()) > 4, 300, "training"
        )
        os.killpg(processes[1].pid, signal.SIGKILL)
        processes[1].wait()
        time.sleep(KEEP_ALIVE_SECONDS)
        processes[1] = _start(1, tmp_path / "disturbed")
        assert [process.wait(600) for process in processes] == [0, 0], _logs(tmp_path)
    finally:
        for process in processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    assert _digest(tmp_path / "disturbed") == _digest(tmp_path / "undisturbed")
