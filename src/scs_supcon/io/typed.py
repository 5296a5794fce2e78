"""Check a record with pydantic, with the error of `io.records`."""

from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from scs_supcon.io.records import RecordError

T = TypeVar("T")


def validate(kind: type[T], value: Any, name: str | Path) -> T:
    """Return a value as a pydantic model, or as another type that pydantic can check.

    Raises:
        RecordError: A key is missing, unknown or has an invalid value; the message names it.
    """
    try:
        return TypeAdapter(kind).validate_python(value)
    except ValidationError as error:
        raise RecordError(f"{name} is damaged: {first_problem(error)}") from error


def first_problem(error: ValidationError) -> str:
    """Return the key and the message of the first problem that pydantic found."""
    first = error.errors(include_url=False, include_input=False)[0]
    where = ".".join(map(str, first["loc"]))
    message = first["msg"].removeprefix("Value error, ")
    return f"{where}: {message}" if where else message
