"""A real server on a real socket, for a copy of a finished run."""

import http.client
import json
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from server_processes import free_port

uvicorn = pytest.importorskip("uvicorn", reason="no uvicorn: pip install 'scs-supcon[serve]'")


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True)
class Client:
    """Sends requests to a server."""

    port: int
    run: Path

    def __call__(self, method: str, path: str, body: bytes | None = None, **headers: str) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, path, body, names)
        response = connection.getresponse()
        answer = Answer(response.status, {k.lower(): v for k, v in response.getheaders()},
                        response.read())  # fmt: skip
        connection.close()
        return answer

    def get(self, path: str, **headers: str) -> Answer:
        return self("GET", path, **headers)

    def post(self, path: str, document: Any) -> Answer:
        body = json.dumps(document).encode()
        return self("POST", path, body, content_type="application/json")

    def send(self, path: str, *images: tuple[str, bytes], **headers: str) -> Answer:
        """Send images as the files of a form."""
        parts = b"".join(
            b'--x\r\nContent-Disposition: form-data; name="images"; filename="'
            + name.encode() + b'"\r\nContent-Type: image/png\r\n\r\n' + content + b"\r\n"
            for name, content in images
        )  # fmt: skip
        kind = "multipart/form-data; boundary=x"
        return self("POST", path, parts + b"--x--\r\n", content_type=kind, **headers)


@pytest.fixture
def unused_port() -> int:
    return free_port()


@pytest.fixture
def client_of(run_copy: Path) -> Callable[[int], Client]:
    """`client_of(port)` sends requests to a server that another process runs."""
    return lambda port: Client(port, run_copy)


Serve = Callable[..., Any]


@pytest.fixture(scope="session")
def serve() -> Serve:
    """`with serve(run, **options) as client:` runs a server in a thread."""
    from scs_supcon.server.protocol import LimitedProtocol
    from scs_supcon.server.run_app import create_run_app
    from scs_supcon.server.security import AccessRules

    @contextmanager
    def start(
        run: Path,
        token: str = "",
        host: str = "127.0.0.1",
        http: type = LimitedProtocol,
        **options: Any,
    ) -> Iterator[Any]:
        port = free_port()
        app = create_run_app(run, AccessRules.for_address(host, port, token), **options)
        server = uvicorn.Server(uvicorn.Config(app, port=port, http=http, log_level="warning"))
        thread = threading.Thread(target=server.run)
        thread.start()
        while not server.started:
            assert thread.is_alive()
            time.sleep(0.01)
        try:
            yield Client(port, run)
        finally:
            server.should_exit = True
            thread.join()

    return start


@pytest.fixture
def run_copy(finished: Path, tmp_path: Path) -> Path:
    """A copy of the finished run that tests may change."""
    return Path(shutil.copytree(finished, tmp_path / "runs" / "shapes"))


@pytest.fixture(scope="module")
def client(
    finished: Path, serve: Serve, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Client]:
    """A server for a copy of the finished run."""
    run = shutil.copytree(finished, tmp_path_factory.mktemp("served") / "shapes")
    with serve(run) as client:
        yield client


@pytest.fixture(scope="session")
def image_files(shapes: Path) -> list[Path]:
    return sorted(shapes.rglob("*.png"))
