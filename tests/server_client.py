"""A real server on a real socket, in a thread of the test, and a client for it."""

import http.client
import json
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from server_processes import free_port


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


@contextmanager
def serve_run(
    run: Path,
    token: str = "",
    host: str = "127.0.0.1",
    http: type | str = "auto",
    **options: Any,
) -> Iterator[Client]:
    """`with serve_run(run, **options) as client:` runs a server in a thread."""
    import uvicorn

    from scs_supcon.server.run_app import create_run_app
    from scs_supcon.server.security import AccessRules

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
