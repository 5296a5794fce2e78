"""The web application: API, pages, errors and access control in one ASGI app."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Scope

from scs_supcon.errors import UserError
from scs_supcon.server.api import api_routes
from scs_supcon.server.pages import SiteFacts, page_routes
from scs_supcon.server.security import AccessControl, AccessRules
from scs_supcon.server.service import ModelService


def create_app(
    service: ModelService,
    rules: AccessRules,
    site: SiteFacts,
    routes: Sequence[Route] = (),
    on_close: Callable[[], None] = lambda: None,
) -> ASGIApp:
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

    app = Starlette(
        routes=[*api_routes(service), *routes, *page_routes(site)],
        exception_handlers={HTTPException: _http_error, UserError: _error, Exception: _error},
        lifespan=lifespan,
    )
    paths: dict[object, str] = {
        route.endpoint: route.path_format for route in app.routes if isinstance(route, Route)
    }

    def count(scope: Scope, status: int) -> None:
        # By route, because there is no limit to the paths that can be asked for.
        service.monitor.requests[paths.get(scope.get("endpoint"), "other"), status] += 1

    # Not a middleware of the application: its answer to an unexpected error passes none.
    return AccessControl(app, rules, count)


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code == 405:  # a path can have a route for each method
        routes = [route for route in request.app.routes if route.matches(request.scope)[1]]
        error.headers = {"allow": ", ".join(sorted({m for r in routes for m in r.methods}))}
    return JSONResponse({"error": error.detail}, error.status_code, error.headers)


async def _error(request: Request, error: Exception) -> Response:
    if isinstance(error, UserError):
        return JSONResponse({"error": str(error)}, 400)
    return JSONResponse({"error": "the server failed: its log says why"}, 500)
