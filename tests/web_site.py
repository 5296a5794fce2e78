"""A web site on this computer that counts what it is asked for."""

import http.server
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path


@dataclass
class Site:
    """A web site on this computer.

    Attributes:
        folder: what it serves.
        address: of the folder.
        requests: those that have arrived.
        ranges: the sizes of the parts of files that were asked for.
        is_empty: answer that nothing is there.
    """

    folder: Path
    address: str = ""
    requests: list[str] = field(default_factory=list)
    ranges: list[int] = field(default_factory=list)
    is_empty: bool = False


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers with files, or with a range of a file."""

    def __init__(self, site: Site, *arguments: object) -> None:
        self.site = site
        super().__init__(*arguments)  # type: ignore[arg-type]

    def do_GET(self) -> None:
        self.site.requests.append(f"{self.command} {self.path}")
        file = self.site.folder / Path(self.path).name
        if self.site.is_empty or not file.is_file():
            self.send_error(404)
            return
        content, status = file.read_bytes(), 200
        size = len(content)
        if asked := self.headers.get("Range"):
            first, last = asked.removeprefix("bytes=").split("-")
            content, status = content[int(first) : int(last or size) + 1], 206
            self.site.ranges.append(len(content))
        self.send_response(status)
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("Content-Length", str(len(content)))
        if asked:
            self.send_header("Content-Range", f"bytes {first}-{last}/{size}")
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)

    do_HEAD = do_GET

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def serving(site: Site) -> Iterator[Site]:
    """Serve the files of a folder, and set the address of the site."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, site))
    site.address = f"http://127.0.0.1:{server.server_port}/{site.folder.name}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield site
    finally:
        server.shutdown()
        server.server_close()
