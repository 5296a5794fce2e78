"""The web application: API, pages, errors and access control in one ASGI app."""

import re
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from scs_supcon.errors import UserError
from scs_supcon.server.api import api_routes
from scs_supcon.server.monitor import Monitor
from scs_supcon.server.pages import SiteFacts, page_routes
from scs_supcon.server.security import AccessControl, AccessRules
from scs_supcon.server.service import ModelService


def create_app(
    service: ModelService,
    rules: AccessRules,
    site: SiteFacts,
    routes: Sequence[Route] = (),
    on_close: Callable[[], None] = lambda: None,
) -> Starlette:
    """Return the application.

    Args:
        service: the model.
        rules: which requests are answered.
        site: what the pages show about the run, and which pages there are.
        routes: further routes, those of the data page and of retraining.
        on_close: called when the server stops.
    """

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield
        await service.close()
        on_close()

    return Starlette(
        routes=[*api_routes(service), *routes, *page_routes(site)],
        middleware=[
            Middleware(_CountRequests, monitor=service.monitor),
            Middleware(AccessControl, rules=rules),
        ],
        exception_handlers={HTTPException: _http_error, UserError: _user_error},
        lifespan=lifespan,
    )


class _CountRequests:
    """ASGI middleware that counts requests by route and status."""

    def __init__(self, app: ASGIApp, monitor: Monitor) -> None:
        self.app, self.monitor = app, monitor

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def count(message: Message) -> None:
            if message["type"] == "http.response.start":
                status = message["status"]
                # Any path can be asked for; known ones only get a counter.
                known = "other" if status in (403, 404, 405) else scope["path"]
                route = re.sub(r"/\d+$", "/{number}", re.sub(r'["\\\n]', "", known))
                self.monitor.requests[route, status] += 1
            await send(message)

        await self.app(scope, receive, count if scope["type"] == "http" else send)


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return JSONResponse({"error": error.detail}, error.status_code, error.headers)


async def _user_error(request: Request, error: Exception) -> Response:
    return JSONResponse({"error": str(error)}, 400)
