"""Images that clients send: limits of size, and the decoding rules of `scs predict`."""

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import NamedTuple

from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import ClientDisconnect, Request

MAX_NAME = 200  # characters of a file name that are returned


@dataclass(frozen=True)
class Limits:
    """Limits of a request.

    Attributes:
        bytes: size of the body.
        images: number of images.
        seconds: time for receiving and answering.
    """

    bytes: int = 64 * 2**20
    images: int = 64
    seconds: float = 30.0


class Upload(NamedTuple):
    """The bytes of an image and the name that the client gave it, which is only returned."""

    name: str
    content: bytes


async def read_body(request: Request, limits: Limits) -> bytes:
    """Return the body of a request.

    Raises:
        HTTPException: it is too large, or does not arrive in time.
    """
    try:
        async with asyncio.timeout(limits.seconds):
            return b"".join([chunk async for chunk in _limited(request, limits)])
    except TimeoutError as error:
        raise HTTPException(408, f"the body did not arrive in {limits.seconds:g} s") from error


async def read_images(request: Request, limits: Limits) -> list[Upload]:
    """Return the images of a request: the files of a form, or the body as one image.

    Raises:
        HTTPException: the body is empty, too large, malformed, or does not arrive in time.
    """
    if not request.headers.get("content-type", "").startswith("multipart/form-data"):
        content = await read_body(request, limits)
        if not content:
            raise HTTPException(400, "the body is empty: send an image, or files of a form")
        return [Upload("image", content)]
    try:
        async with asyncio.timeout(limits.seconds):
            uploads = await _read_form(request, limits)
    except TimeoutError as error:
        raise HTTPException(408, f"the body did not arrive in {limits.seconds:g} s") from error
    except MultiPartException as error:
        status = 413 if "Too many" in error.message else 400
        raise HTTPException(status, f"the form cannot be read: {error.message}") from error
    except UnicodeError as error:  # of a charset such as "undefined"
        raise HTTPException(400, f"the form cannot be read: {error}") from error
    if not uploads:
        raise HTTPException(400, "the form has no files: send images as files of the form")
    return uploads


async def _read_form(request: Request, limits: Limits) -> list[Upload]:
    parser = MultiPartParser(
        request.headers, _limited(request, limits), max_files=limits.images, max_fields=100
    )
    parser.spool_max_size = limits.bytes + 1  # keep files in memory; nothing is written to disk
    form = await parser.parse()
    uploads = []
    for _, value in form.multi_items():
        if isinstance(value, UploadFile):
            uploads.append(Upload(_plain_name(value.filename), await value.read()))
    await form.close()
    return uploads


async def _limited(request: Request, limits: Limits) -> AsyncGenerator[bytes]:
    """Yield the body in chunks, until the limit."""
    too_large = HTTPException(
        413, f"the body has more than {limits.bytes // 2**20} MB: send fewer or smaller images"
    )
    length = request.headers.get("content-length", "")
    if length.isdecimal() and int(length) > limits.bytes:
        raise too_large
    size = 0
    try:
        async for chunk in request.stream():
            size += len(chunk)
            if size > limits.bytes:
                raise too_large
            yield chunk
    except ClientDisconnect as error:
        raise HTTPException(400, "the connection was closed") from error


def _plain_name(name: str | None) -> str:
    """Return a file name without control characters; it is shown, never opened."""
    visible = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in name or "")
    return visible[:MAX_NAME] or "image"
