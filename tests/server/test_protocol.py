"""Clients that are slow or too many."""

import socket
from contextlib import ExitStack

import pytest

from scs_supcon.server import protocol


class Impatient(protocol.LimitedProtocol):
    head_seconds = body_seconds = 0.5


@pytest.fixture(scope="module")
def client(finished, serve, tmp_path_factory):
    import shutil

    run = shutil.copytree(finished, tmp_path_factory.mktemp("served") / "shapes")
    with serve(run, http=Impatient) as client:
        yield client


@pytest.fixture
def connection(client):
    with socket.create_connection(("127.0.0.1", client.port), timeout=60) as connection:
        yield connection


def read_all(connection):
    content = b""
    try:
        while part := connection.recv(65536):
            content += part
    except ConnectionResetError:
        pass
    return content


def read_answer(connection):
    """Return an answer whose body is a JSON object."""
    content = b""
    while not content.endswith(b"}"):
        part = connection.recv(65536)
        assert part, content
        content += part
    return content


def head(client, line, *headers):
    return "\r\n".join([line, f"Host: 127.0.0.1:{client.port}", *headers, "", ""]).encode()


@pytest.mark.parametrize("part", ["", "GET /healthz HTTP/1.1\r\nHost: x\r\n"])
def test_headers_that_do_not_arrive_are_answered_with_408(connection, part):
    connection.sendall(part.encode())
    answer = read_all(connection)
    assert answer.startswith(b"HTTP/1.1 408 Request Timeout\r\n")
    assert b"content-security-policy: default-src 'none'" in answer


def test_headers_that_arrive_byte_by_byte_have_no_more_time(client, connection):
    connection.settimeout(0.1)
    answer = b""
    with pytest.raises((ConnectionError, StopIteration)):
        for byte in iter(lambda: b"x", None):
            connection.sendall(byte)
            try:
                answer += connection.recv(65536)
            except TimeoutError:
                continue
            if answer:
                raise StopIteration
    assert b" 408 " in answer or not answer


def test_a_second_request_has_its_own_time(client, connection):
    connection.sendall(head(client, "GET /healthz HTTP/1.1"))
    assert b" 200 " in read_answer(connection)
    connection.sendall(b"GET /healthz")
    assert b" 408 " in read_all(connection)


@pytest.mark.parametrize("line", ["POST /api/predict HTTP/1.1", "POST /nothing HTTP/1.1"])
def test_a_body_that_does_not_arrive_ends_the_connection(client, connection, line):
    connection.sendall(head(client, line, "Content-Length: 1000") + b"x")
    assert b" 200 " not in read_all(connection)


def test_a_client_that_does_not_read_is_left(client):
    """Thousands of answers fill the buffers of the connection."""
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.settimeout(60)
        connection.connect(("127.0.0.1", client.port))
        request = head(client, "GET /api/data HTTP/1.1")
        with pytest.raises(ConnectionError):
            while True:
                connection.sendall(request)


def test_a_whole_request_is_answered_and_the_connection_kept(client, connection):
    for _ in range(3):
        connection.sendall(head(client, "GET /healthz HTTP/1.1"))
        assert b'{"status":"ok"}' in read_answer(connection)


def test_a_broken_body_after_the_answer_ends_the_connection(client, connection):
    connection.sendall(head(client, "POST /nothing HTTP/1.1", "Transfer-Encoding: chunked"))
    assert b" 404 " in read_answer(connection)
    connection.sendall(b"not a chunk\r\n")
    assert read_all(connection) == b""


def test_too_many_connections_are_rejected_until_others_end(client, monkeypatch):
    monkeypatch.setattr(protocol, "CONNECTIONS", 5)
    with ExitStack() as stack:
        address = ("127.0.0.1", client.port)
        connections = [
            stack.enter_context(socket.create_connection(address, timeout=60)) for _ in range(20)
        ]
        answers = [read_all(connection) for connection in connections]
    assert b" 503 Service Unavailable" in b"".join(answers)
    assert b" 408 Request Timeout" in b"".join(answers)
    assert client.get("/healthz").status == 200
