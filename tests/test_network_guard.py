"""No test can use the network, in this process or in one that it starts."""

import socket
import subprocess
import sys

import pytest

OUTSIDE = "192.0.2.1"  # reserved for documentation: nobody has it

CONNECT = f"""
import socket
try:
    socket.create_connection(("{OUTSIDE}", 80), timeout=1)
except PermissionError as error:
    print(error)
"""


def test_this_process_cannot_connect():
    with pytest.raises(PermissionError, match="must not use the network"):
        socket.create_connection((OUTSIDE, 80), timeout=1)
    with pytest.raises(PermissionError, match=r"getaddrinfo 'example\.org'"):
        socket.getaddrinfo("example.org", 443)
    with (
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams,
        pytest.raises(PermissionError, match="must not use the network"),
    ):
        datagrams.sendto(b"x", (OUTSIDE, 9))


def test_child_processes_cannot_connect():
    nested = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {CONNECT!r}])"
    for code in (CONNECT, nested):
        command = [sys.executable, "-c", code]
        result = subprocess.run(command, capture_output=True, text=True, check=True)
        assert "must not use the network" in result.stdout, result.stderr


def test_loopback_and_unix_sockets_are_allowed(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as server:
        socket.create_connection(server.getsockname(), timeout=5).close()
    with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as client:
        server.bind(str(tmp_path / "s"))
        server.listen()
        client.connect(str(tmp_path / "s"))


def test_an_offline_command_uses_no_network(scs, shapes, tmp_path):
    pretrained = ("--encoder", "resnet18", "--set", "encoder.weights=pretrained", "--offline")
    result = scs("train", shapes, "--out", tmp_path / "run", *pretrained)
    assert result.code == 2
    assert "have not been downloaded yet" in result.err or "no pretrained" in result.err
