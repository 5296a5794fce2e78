"""The pages of the app with their style sheets and scripts. Nothing is loaded elsewhere."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from scs_supcon.io.records import read_bytes
from scs_supcon.server.security import REPORT_POLICY

if TYPE_CHECKING:
    from jinja2 import Environment

TITLES = {"": "Predict", "data": "Data", "queue": "Label queue", "train": "Retrain"}
TYPES = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}


@dataclass(frozen=True)
class SiteFacts:
    """What the pages show.

    Attributes:
        title: name of the run.
        pages: keys of `TITLES`.
        report: returns the file of the report; None if there are no reports.
    """

    title: str
    pages: Sequence[str] = ("",)
    report: Callable[[], Path] | None = None


def page_routes(site: SiteFacts) -> list[Route]:
    """Return the routes of the pages, their files, and the report."""

    def page(name: str) -> Route:
        async def show(request: Request) -> Response:
            return HTMLResponse(render(name, site))

        return Route(f"/{name}", show, methods=["GET"])

    async def static(request: Request) -> Response:
        files = static_files()
        name = request.path_params["name"]
        if name not in files:
            raise HTTPException(404, "there is no such file")
        return Response(files[name], media_type=TYPES[Path(name).suffix])

    async def report(request: Request) -> Response:
        file = site.report() if site.report else None
        if file is None or not file.is_file():
            raise HTTPException(404, "the run has no report: write it with `scs report`")
        if file.resolve().parent != file.parent.resolve():
            raise HTTPException(404, f"{file.name} is a link out of the run: replace it")
        content = await asyncio.to_thread(read_bytes, file)
        return HTMLResponse(content, headers={"content-security-policy": REPORT_POLICY})

    return [
        *(page(name) for name in site.pages),
        Route("/report", report, methods=["GET"]),
        Route("/static/{name}", static, methods=["GET"]),
    ]


def render(name: str, site: SiteFacts) -> str:
    """Return a page as HTML; all values are escaped."""
    template = _environment().get_template(f"{name or 'predict'}.html.j2")
    return template.render(
        site=site,
        page=name,
        title=TITLES[name],
        links=[(f"/{key}", TITLES[key], key == name) for key in site.pages],
    )


@cache
def static_files() -> dict[str, bytes]:
    """Return the style sheets and scripts by name; the report shares its style sheet."""
    package = resources.files("scs_supcon")
    files = {"page.css": (package / "report" / "page" / "page.css").read_bytes()}
    for entry in (package / "server" / "page").iterdir():
        if Path(entry.name).suffix in TYPES:
            files[entry.name] = entry.read_bytes()
    return files


@cache
def _environment() -> "Environment":
    from jinja2 import Environment, PackageLoader, StrictUndefined

    return Environment(
        loader=PackageLoader("scs_supcon.server", "page"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
