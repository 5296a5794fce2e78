"""HTTP with time limits, which uvicorn does not have.

A client that does not finish its request, or does not read the answer, must not keep a connection.
"""

import asyncio
import json
from http import HTTPStatus

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from scs_supcon.server.security import HEADERS

CONNECTIONS = 800  # many systems let a process open 1,024 files


class LimitedProtocol(H11Protocol):
    """HTTP/1.1 with time limits and a limited number of connections."""

    head_seconds = 10.0  # for the request line and the headers
    body_seconds = 40.0  # longer than the time of `Limits`, whose error says more
    _expected: object = None
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > CONNECTIONS:
            self._reject(503, "too many connections: try again later")
        self._limit_time()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._limit_time()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._limit_time()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._limit_time()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._limit_time()

    def send_400_response(self, msg: str) -> None:
        self._reject(400, msg)  # with headers, unlike that of uvicorn

    def _limit_time(self) -> None:
        """Start the time anew if something else is expected of the client now."""
        expected: object = "reading" if self.flow.write_paused else self.conn.their_state
        if self.transport.is_closing():
            expected = None
        if expected is self._expected:
            return
        self._expected = expected
        if self._timer is not None:
            self._timer.cancel()
        if expected is h11.IDLE:
            late = "the headers of the request did not arrive in time"
            self._timer = self.loop.call_later(self.head_seconds, self._reject, 408, late)
        elif expected in ("reading", h11.SEND_BODY):
            self._timer = self.loop.call_later(self.body_seconds, self.transport.abort)

    def _reject(self, status: int, message: str) -> None:
        """Answer with an error, unless an answer was sent already, and close the connection."""
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.abort()
            return
        if self.cycle is not None:
            self.cycle.disconnected = True  # nothing else is sent
        body = json.dumps({"error": message}).encode()
        head = {"content-type": "application/json", "content-length": len(body), **HEADERS}
        lines = [f"{name}: {value}" for name, value in {**head, "connection": "close"}.items()]
        start = f"HTTP/1.1 {status} {HTTPStatus(status).phrase}"
        self.transport.write("\r\n".join([start, *lines, "", ""]).encode() + body)
        self.transport.close()
