"""Parameters of the API: described in the OpenAPI document, and checked before a request."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from scs_supcon.io.values import ValueTree

Endpoint: TypeAlias = Callable[..., Awaitable[Response]]
MAX_SHOWN = 40  # characters of a value in an error
MAX_DIGITS = 18  # int() fails for more than 4,300


@dataclass(frozen=True)
class Parameter:
    """A parameter of the query, or of the path.

    Attributes:
        text: what it is.
        allowed: whole numbers, or texts; empty: any text.
    """

    name: str
    text: str
    default: int | str | None = None
    allowed: range | tuple[str, ...] = ()

    def value(self, text: str) -> int | str | None:
        """Return the value of a text; None if it is not allowed."""
        if not isinstance(self.allowed, range):
            return text if text in (self.allowed or (text,)) else None
        short = text.isascii() and text.isdecimal() and len(text) <= MAX_DIGITS
        return int(text) if short and int(text) in self.allowed else None

    def describe(self, place: str = "query") -> ValueTree:
        """Return the description of the parameter in an OpenAPI document."""
        schema: ValueTree = {"type": "string"}
        if isinstance(self.allowed, range):
            schema = {"type": "integer", "minimum": self.allowed[0], "maximum": self.allowed[-1]}
        elif self.allowed:
            schema["enum"] = list(self.allowed)
        if self.default is not None:
            schema["default"] = self.default
        where: ValueTree = {"in": place, "required": place == "path", "description": self.text}
        return {"name": self.name, **where, "schema": schema}


def api_route(
    method: str, path: str, endpoint: Endpoint, parameters: Sequence[Parameter] = ()
) -> Route:
    """Return a route that rejects unknown, repeated and invalid parameters of the query.

    The endpoint is called with the request, and with the parameters by name.
    """
    known = {parameter.name: parameter for parameter in parameters}

    async def checked(request: Request) -> Response:
        values = {name: parameter.default for name, parameter in known.items()}
        for name, text in request.query_params.multi_items():
            if name not in known or len(request.query_params.getlist(name)) > 1:
                expected = f"unknown or repeated: expected {', '.join(known) or 'none'}"
                raise HTTPException(400, f"parameter {_shorten(name)} is {expected}")
            values[name] = known[name].value(text)
            if values[name] is None:
                allowed = known[name].allowed
                numbers = f"a number from {allowed[0]} to {allowed[-1]}"
                expected = numbers if isinstance(allowed, range) else " or ".join(allowed)
                raise HTTPException(400, f"{name} is {_shorten(text)}, expected {expected}")
        return await endpoint(request, **values)

    return Route(path, checked, methods=[method])


def _shorten(text: str) -> str:
    return repr(text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}…")
