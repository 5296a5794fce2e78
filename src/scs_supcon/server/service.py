"""From uploaded images to decisions: decoding in threads, the model in batches."""

import asyncio
import os
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, Protocol, TypedDict, TypeVar

from starlette.exceptions import HTTPException

from scs_supcon.data.image_io import ImageError, open_image
from scs_supcon.inference.types import Failure
from scs_supcon.server.batching import Batcher, Overloaded
from scs_supcon.server.monitor import Monitor
from scs_supcon.server.predictor import ImageDecision, NearImage, Pixels, Predictor
from scs_supcon.server.uploads import Limits, Upload

Value = TypeVar("Value")


class NeighbourRow(TypedDict):
    """A training image in JSON, with its number (None if it cannot be shown) and similarity."""

    id: int | None
    image: str
    label: str
    similarity: float


class KnownImages(Protocol):
    """The images that clients may ask for, by their number in `names`."""

    names: Sequence[str]

    def number(self, name: str) -> int | None:
        """Return the number of an image."""

    def jpeg(self, number: int, side: int) -> bytes | None:
        """Return an image as a JPEG of at most this side; None if it cannot be read."""


class DecidedImage(NamedTuple):
    """An uploaded image: its name, its prepared pixels and the decision of the model."""

    name: str
    pixels: Pixels
    decision: ImageDecision


class _Task(NamedTuple):
    predictor: Predictor
    pixels: Pixels


class ModelService:
    """The current model, and the threads that decode images and run it.

    Attributes:
        predictor: the current model, which can be replaced at any time.
        images: images that clients may ask for.
        limits: limits of a request.
        monitor: counters.
    """

    def __init__(
        self, predictor: Predictor, images: KnownImages, limits: Limits | None = None
    ) -> None:
        self.predictor, self.images = predictor, images
        self.limits, self.monitor = limits or Limits(), Monitor()
        self._pool = ThreadPoolExecutor(max(2, os.cpu_count() or 1), thread_name_prefix="decode")
        self._batcher: Batcher[_Task, ImageDecision] = Batcher(
            _decide, on_batch=self.monitor.batches.observe, threads=predictor.threads
        )

    @property
    def waiting(self) -> int:
        """Number of images that wait for the model."""
        return self._batcher.waiting

    async def decide(
        self, uploads: Sequence[Upload]
    ) -> tuple[list[DecidedImage], list[Failure], Predictor]:
        """Return the decisions for images, the images that cannot be read, and the model used.

        Raises:
            HTTPException: the server is overloaded, or the answer takes too long.
        """
        predictor = self.predictor

        def prepare(upload: Upload) -> Pixels | Failure:
            try:
                return predictor.prepare(open_image(upload.name, content=upload.content))
            except ImageError as error:
                return Failure(upload.name, str(error))

        async def work() -> tuple[list[DecidedImage], list[Failure]]:
            prepared = await asyncio.gather(*(self.in_thread(prepare, u) for u in uploads))
            usable = [
                (upload.name, pixels)
                for upload, pixels in zip(uploads, prepared, strict=True)
                if not isinstance(pixels, Failure)
            ]
            decisions = await self._batcher.submit([_Task(predictor, p) for _, p in usable])
            decided = [
                DecidedImage(name, pixels, decision)
                for (name, pixels), decision in zip(usable, decisions, strict=True)
            ]
            return decided, [entry for entry in prepared if isinstance(entry, Failure)]

        decided, failures = await self.in_time(work())
        self.monitor.images += len(decided)
        self.monitor.unreadable += len(failures)
        return decided, failures, predictor

    async def in_thread(self, function: Callable[..., Value], *arguments: object) -> Value:
        """Run a function in one of the threads that decode images."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._pool, function, *arguments)

    async def in_time(self, work: Awaitable[Value]) -> Value:
        """Wait for a result for at most the time that a request may take."""
        try:
            async with asyncio.timeout(self.limits.seconds):
                return await work
        except TimeoutError as error:
            message = f"no answer in {self.limits.seconds:g} s: send fewer images, or try later"
            raise HTTPException(504, message) from error
        except Overloaded as error:
            raise HTTPException(503, "too many images are waiting: try again later") from error

    def neighbours(self, predictor: Predictor, near: Sequence[NearImage]) -> list[NeighbourRow]:
        """Return neighbours as JSON."""
        gallery = predictor.gallery
        return [
            {
                "id": self.images.number(gallery.names[position]),
                "image": gallery.names[position],
                "label": predictor.classes[gallery.labels[position]],
                "similarity": similarity,
            }
            for position, similarity in near
        ]

    async def close(self) -> None:
        """Stop the threads."""
        await self._batcher.close()
        self._pool.shutdown(wait=False, cancel_futures=True)


def _decide(tasks: Sequence[_Task]) -> list[ImageDecision]:
    """Return the decisions of tasks, which may be for different models if one was replaced."""
    results: dict[int, ImageDecision] = {}
    for predictor in {id(task.predictor): task.predictor for task in tasks}.values():
        rows = [i for i, task in enumerate(tasks) if task.predictor is predictor]
        decisions = predictor.decide([tasks[i].pixels for i in rows])
        results |= dict(zip(rows, decisions, strict=True))
    return [results[i] for i in range(len(tasks))]
