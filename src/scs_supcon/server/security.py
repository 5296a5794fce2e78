"""Who may talk to the server: checks of Host, Origin and token, and headers of every response.

A page of another site can send requests to a local server through the user's browser. Such requests
carry another Origin (or the attacker's name as Host, if it resolves to 127.0.0.1) and are rejected.
"""

import hmac
import ipaddress
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qs

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

COOKIE = "scs_token"
SAFE_METHODS = {"GET", "HEAD"}
LOCAL_NAMES = ("localhost", "127.0.0.1", "[::1]")
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
# A report can come from anyone. Its scripts run without an origin, so that they cannot use the API,
# and without a network. It needs no other permission: its links stay in the page, and the browser
# prints it.
REPORT_POLICY = (
    "sandbox allow-scripts; default-src 'none'; script-src 'unsafe-inline'; "
    "style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)
HEADERS: Mapping[str, str] = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-store",
}


def is_local(host: str) -> bool:
    """Return whether only this computer can connect to an address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


@dataclass(frozen=True)
class AccessRules:
    """Which requests are answered.

    Attributes:
        hosts: accepted values of Host, in lower case; None accepts all, which needs a token.
        token: required if not empty.
    """

    hosts: frozenset[str] | None
    token: str = ""

    @classmethod
    def for_address(cls, host: str, port: int, token: str = "") -> "AccessRules":
        """Return the rules of a server at this address."""
        if not is_local(host):
            return cls(None, token)
        return cls(frozenset(f"{name}:{port}" for name in LOCAL_NAMES), token)


class AccessControl:
    """ASGI app around another: rejects requests, adds headers, and counts every answer."""

    def __init__(
        self, app: ASGIApp, rules: AccessRules, count: Callable[[Scope, int], None]
    ) -> None:
        self.app, self.rules, self.count = app, rules, count

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
                self.count(scope, message["status"])
            await send(message)

        rejection = self._rejection(scope)
        await (rejection or self.app)(scope, receive, send_with_headers)

    def _rejection(self, scope: Scope) -> Response | None:
        headers = Headers(scope=scope)
        host = headers.get("host", "").lower()
        if self.rules.hosts is not None and host not in self.rules.hosts:
            expected = ", ".join(sorted(self.rules.hosts))
            return _error(403, f"Host is {host!r}, expected one of {expected}")
        if scope["method"] not in SAFE_METHODS:
            origin = headers.get("origin")
            own = [f"http://{host}"]
            if self.rules.hosts is None:
                own.append(f"https://{host}")  # of a proxy with TLS
            if origin is not None and origin.lower() not in own:
                return _error(403, f"Origin is {origin!r}, expected this server ({own[0]})")
            if headers.get("sec-fetch-site", "none") not in ("same-origin", "none"):
                return _error(403, "requests from pages of other sites are rejected")
        if self.rules.token and scope["path"] != "/healthz":
            return self._check_token(scope, headers)
        return None

    def _check_token(self, scope: Scope, headers: Headers) -> Response | None:
        scheme, _, given = headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer":
            given = _cookie(headers)
        if self._matches(given):
            return None
        in_address = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0]
        if scope["method"] == "GET" and self._matches(in_address):
            # The cookie replaces the token, so that it does not stay in the address bar.
            response = RedirectResponse(scope["path"], 303)
            response.set_cookie(COOKIE, self.rules.token, httponly=True, samesite="strict")
            return response
        return _error(
            401,
            "a token is needed: open the address that the server printed, or send the header "
            "'Authorization: Bearer TOKEN'",
        )

    def _matches(self, token: str) -> bool:
        return hmac.compare_digest(token.encode(), self.rules.token.encode())


def _cookie(headers: Headers) -> str:
    try:
        morsel = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
    except CookieError:
        return ""
    return morsel.value if morsel else ""


def _error(status: int, message: str) -> JSONResponse:
    return JSONResponse({"error": message}, status)
