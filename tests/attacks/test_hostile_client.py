"""A hostile client, and a run from a stranger, against real `scs serve` processes."""

import http.client
import json
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from server_processes import free_port, wait_for

pytest.importorskip("uvicorn", reason="no uvicorn: pip install 'scs-supcon[serve]'")

DIGITS = "9" * 5000  # int() fails for more than 4,300
HALF_A_HEADER = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: "
PATIENCE = 60  # seconds; the server waits 10 s for headers, and 40 s for a body
TOKEN = "secret"


class Server:
    """A `scs serve` process."""

    def __init__(self, port: int, process: subprocess.Popen, run: Path) -> None:
        self.port, self.process, self.run = port, process, run

    def __call__(self, method, path, body=None, **headers):
        """Return status, headers and body of an answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        try:
            connection.request(method, path, body, names)
            answer = connection.getresponse()
            return answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read()
        finally:
            connection.close()

    def send(self, content: bytes) -> bytes:
        """Send bytes, and return what is received until the server closes the connection."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE) as connection:
            connection.sendall(content)
            return received(connection)

    @property
    def memory(self) -> int:
        """Megabytes in use."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+)", status)[1]) // 1024

    @property
    def files(self) -> int:
        """Number of open files and connections."""
        return len(list(Path(f"/proc/{self.process.pid}/fd").iterdir()))


def received(connection: socket.socket) -> bytes:
    content = b""
    try:
        while part := connection.recv(65536):
            content += part
    except TimeoutError:
        pytest.fail("the server did not close the connection")
    except ConnectionResetError:
        pass
    return content


@contextmanager
def serving(run: Path, **variables: str) -> Iterator[Server]:
    port = free_port()
    command = [sys.executable, "-m", "scs_supcon", "serve", str(run), "--port", str(port)]
    process = subprocess.Popen(command, env=os.environ | variables)
    server = Server(port, process, run)

    def answers() -> bool:
        try:
            return server("GET", "/healthz")[0] == 200
        except OSError:
            return process.poll() is not None

    try:
        wait_for(answers)
        assert process.poll() is None
        yield server
    finally:
        process.terminate()
        process.wait()


@pytest.fixture(scope="module")
def run(shapes, train_small, tmp_path_factory) -> Path:
    """A run on shapes; one image of a bar is also labelled as a circle."""
    folder = tmp_path_factory.mktemp("attacked")
    data = shutil.copytree(shapes, folder / "shapes")
    shutil.copyfile(sorted((data / "bar").iterdir())[0], data / "circle" / "copy.png")
    train_small(data, folder / "run", report=True)
    suggest_each_others_label(folder / "run", data)
    return folder / "run"


@pytest.fixture(scope="module")
def server(run) -> Iterator[Server]:
    with serving(run) as server:
        yield server


def suggest_each_others_label(run: Path, data: Path) -> None:
    """Change the stored scores, so that the two copies have each other's label as a suggestion."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    file = run / "label_scores.parquet"
    table = pq.read_table(file)
    rows = table.to_pylist()
    labels = sorted(path.name for path in data.iterdir())
    names = copies(data)
    assert {row["name"] for row in rows} >= set(names)
    for row in rows:
        suggested = labels.index(names[row["name"]]) if row["name"] in names else -1
        row |= {"suggested": suggested, "suspicion": 0.5 * (suggested >= 0)}
    pq.write_table(pa.Table.from_pylist(rows, table.schema), file)


def copies(data: Path) -> dict[str, str]:
    """Return the names of the two copies, with the label of the other one."""
    bar = sorted((data / "bar").iterdir())[0]
    return {f"bar/{bar.name}": "circle", "circle/copy.png": "bar"}


def test_a_report_runs_without_an_origin_and_without_a_network(server):
    status, headers, body = server("GET", "/report")
    policy = {part.split()[0]: part.split()[1:] for part in
              headers["content-security-policy"].split(";")}  # fmt: skip
    assert status == 200
    assert b"<html" in body
    assert policy["sandbox"] == ["allow-scripts"]
    assert policy["default-src"] == ["'none'"]
    assert policy["img-src"] == ["data:"]
    assert not {"connect-src", "frame-src", "object-src"} & policy.keys()
    assert headers["x-content-type-options"] == "nosniff"


def test_a_report_that_is_a_link_out_of_the_run_is_rejected(server, run, tmp_path):
    report, secret = run / "report.html", tmp_path / "secret"
    secret.write_text("a secret")
    kept = report.rename(tmp_path / "report.html")
    try:
        report.symlink_to(secret)
        status, _, body = server("GET", "/report")
    finally:
        report.unlink()
        kept.rename(report)
    assert 400 <= status < 500
    assert b"a secret" not in body


def count_lines(server: Server, **headers: str) -> int:
    return server("GET", "/metrics", **headers)[2].count(b"scs_requests_total{")


def test_requests_are_counted_by_route(server, run):
    before = count_lines(server)
    for number in range(30):
        server("GET", f"/api/images/{number}/")
        server("GET", f"/api/images/{number}x")
        server("GET", f"/static/{number}.js")
        server("TRACE", f"/api/images/{number}")
    assert count_lines(server) <= before + 8
    with serving(run_copy(run), SCS_TOKEN=TOKEN) as closed:
        for number in range(30):
            assert closed("GET", f"/{number}")[0] == 401
        assert count_lines(closed, authorization=f"Bearer {TOKEN}") <= 4


def run_copy(run: Path) -> Path:
    """Return a copy: only one server may serve a run."""
    return Path(shutil.copytree(run, run.with_name("copy"), dirs_exist_ok=True))


def test_a_token_is_accepted_only_after_the_word_bearer(run):
    with serving(run_copy(run), SCS_TOKEN=TOKEN) as closed:
        for given, status in (
            (f"Bearer {TOKEN}", 200),
            (f"bearer {TOKEN}", 200),
            (TOKEN, 401),
            (f"Basic {TOKEN}", 401),
            (f"Bearer{TOKEN}", 401),
        ):
            assert closed("GET", "/api/model", authorization=given)[0] == status


def test_an_origin_of_another_scheme_is_rejected(server):
    for scheme, status in (("http", 200), ("evil", 403), ("https", 403), ("ws", 403)):
        origin = f"{scheme}://127.0.0.1:{server.port}"
        assert server("POST", "/api/corrections/undo", b"", origin=origin)[0] == status


@pytest.mark.parametrize(
    "path",
    [
        f"/api/images/{DIGITS}",
        f"/api/images/0?side={DIGITS}",
        f"/api/neighbours?id={DIGITS}",
        f"/api/neighbours?k={DIGITS}",
    ],
)
def test_long_numbers_are_rejected(server, path):
    check_rejection(*server("GET", path))


@pytest.mark.parametrize("path", [f"/api/predict?topk={DIGITS}", f"/api/explain?k={DIGITS}"])
def test_long_numbers_are_rejected_before_the_image_is_read(server, path):
    check_rejection(*server("POST", path, b"x"))


@pytest.mark.parametrize("charset", ["undefined", "idna", "punycode", "rot13", "zlib", "nothing"])
def test_odd_charsets_of_a_form_are_rejected(server, charset):
    kind = f"multipart/form-data; boundary=x; charset={charset}"
    part = b'--x\r\nContent-Disposition: form-data; name="\xc3\xbc"; filename="a\xff"\r\n\r\n'
    check_rejection(*server("POST", "/api/predict", part + b"y\r\n--x--\r\n", content_type=kind))


def check_rejection(status: int, headers: dict[str, str], body: bytes) -> None:
    assert 400 <= status < 500
    document = json.loads(body)
    assert "error" in document or document["failures"]
    assert "default-src 'none'" in headers["content-security-policy"]


def test_an_unexpected_error_has_the_headers_of_every_answer(server, run, tmp_path):
    """Predictions of images that the run does not have make a request fail."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    file = run / "predictions.parquet"
    table, kept = pq.read_table(file), shutil.copyfile(file, tmp_path / file.name)
    other = pa.array([f"other {row}" for row in range(len(table))])
    position = table.column_names.index("name")
    try:
        pq.write_table(table.set_column(position, "name", other), file)
        status, headers, _ = server("GET", "/api/compare")
    finally:
        shutil.copyfile(kept, file)
    assert status >= 400
    for name in ("content-security-policy", "x-content-type-options", "referrer-policy"):
        assert name in headers


def test_what_is_not_http_gets_the_headers_of_every_answer(server):
    answer = server.send(b"nonsense\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b"content-security-policy" in answer
    assert b"nosniff" in answer


def test_unknown_and_repeated_parameters_are_rejected_by_every_route(server):
    for path in ("/api/model", "/api/neighbours", "/api/images/0", "/api/data", "/api/runs",
                 "/api/compare", "/api/corrections", "/healthz"):  # fmt: skip
        status, headers, body = server("GET", f"{path}?false_rejection=0.01")
        check_rejection(status, headers, body)
        assert b"false_rejection" in body
    check_rejection(*server("GET", "/api/neighbours?k=1&k=2"))
    status, _, body = server("POST", "/api/predict?false_rejection=0.01", b"x")
    assert (status, b"topk" in body) == (400, True)


def test_the_document_names_the_limits_of_parameters_and_forms(server):
    paths = json.loads(server("GET", "/api/openapi.json")[2])["paths"]
    numbers = {}
    for methods in paths.values():
        for operation in methods.values():
            assert "4XX" in operation["responses"]
            for parameter in operation.get("parameters", []):
                if parameter["schema"].get("type") == "integer":
                    numbers[parameter["name"]] = parameter["schema"]
    assert numbers.keys() == {"k", "topk", "id", "side", "number"}
    assert all({"minimum", "maximum"} <= schema.keys() for schema in numbers.values())
    for path in ("/api/predict", "/api/embed", "/api/explain", "/api/heat_map", "/api/neighbours"):
        form = paths[path]["post"]["requestBody"]["content"]["multipart/form-data"]["schema"]
        assert form["properties"]["images"]["minItems"] == 1


def test_one_image_means_one_image(server, run):
    content = next((run.parent / "shapes" / "bar").iterdir()).read_bytes()
    part = b'--x\r\nContent-Disposition: form-data; name="i"; filename="a"\r\n\r\n%s\r\n'
    form = part % content + part % b"not an image" + b"--x--\r\n"
    kind = "multipart/form-data; boundary=x"
    assert server("POST", "/api/explain", form, content_type=kind)[0] == 422


def test_all_methods_of_a_path_are_allowed(server):
    status, headers, _ = server("PUT", "/api/neighbours")
    assert status == 405
    assert set(re.split(", *", headers["allow"])) >= {"GET", "POST"}


@pytest.mark.slow
@pytest.mark.parametrize("content", [b"", HALF_A_HEADER], ids=["nothing", "half a header"])
def test_a_request_that_does_not_end_is_not_waited_for(server, content):
    server.send(content)


@pytest.mark.slow
def test_a_body_that_does_not_end_is_not_waited_for(server):
    """The answer is sent before the body has arrived; the rest must not take for ever."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE) as connection:
        host = f"127.0.0.1:{server.port}".encode()
        connection.sendall(b"POST / HTTP/1.1\r\nHost: " + host + b"\r\nContent-Length: 99\r\n\r\n")
        assert b" 405 " in connection.recv(65536)
        connection.sendall(b"x")
        received(connection)


@pytest.mark.slow
def test_requests_are_answered_after_many_half_open_connections(run):
    with serving(run_copy(run)) as server, ExitStack() as stack:
        connections = []
        for _ in range(1020 if many_files() else 400):
            address = ("127.0.0.1", server.port)
            connection = stack.enter_context(socket.create_connection(address, PATIENCE))
            connection.sendall(HALF_A_HEADER)
            connections.append(connection)
        closed = [received(connection) for connection in connections]
        assert len(closed) == len(connections)
        assert server("GET", "/healthz")[0] == 200


def many_files() -> bool:
    """Let this process open 1,200 connections, if the system does."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < 2048 and (hard == resource.RLIM_INFINITY or hard >= 2048):
        resource.setrlimit(resource.RLIMIT_NOFILE, (2048, hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0] >= 2048


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory_and_open_files_stay_level(server, run):
    """Other paths, parameters, hosts and files for every request; 20,000 behave like these."""
    content = next((run.parent / "shapes" / "bar").iterdir()).read_bytes()
    requests: list[Callable[[int], object]] = [
        lambda n: server("GET", f"/{n}" + 4000 * "x"),
        lambda n: server("GET", f"/api/images/{n}/"),
        lambda n: server("GET", f"/api/images/0?side={n % 100 + 16}"),
        lambda n: server("GET", f"/api/model?{n}={n}"),
        lambda n: server("POST", "/api/predict", content),
        lambda n: server("POST", "/api/predict", content[: 8 + n % 50]),
        lambda n: server("GET", "/healthz", host=f"host-{n}"),
        lambda n: server.send(b"nonsense %d\r\n\r\n" % n),
    ]

    def ask(count: int) -> tuple[int, int, int]:
        for number in range(count):
            requests[number % len(requests)](number)
        return server.memory, server.files, len(server("GET", "/metrics")[2])

    memory, files, metrics = ask(800)
    later_memory, later_files, later_metrics = ask(2400)
    assert later_files <= files + 2
    assert later_metrics <= metrics + 500
    assert later_memory <= memory + 10


def test_accepting_all_suggestions_does_not_exchange_the_labels_of_two_copies(server, run):
    data = json.loads(server("GET", "/api/data")[2])
    names = copies(run.parent / "shapes")
    labels = dict(zip(data["names"], data["labels"], strict=True))
    suggested = dict(zip(data["names"], data["suggested"], strict=True))
    first, second = names
    accepted = [suggested[name] if suggested[name] >= 0 else labels[name] for name in names]
    assert accepted != [labels[second], labels[first]]
