"""Join concurrent requests to batches: while one batch is computed, the next one collects."""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Generic, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


class Overloaded(Exception):
    """Too many images wait for the model."""


class Batcher(Generic[Item, Result]):
    """Computes single items in batches, in one thread.

    A batch starts as soon as the model is free, so that a single request does not wait for others.

    Args:
        compute: returns one result per item, in their order.
        max_batch: largest number of items in a batch.
        max_waiting: number of waiting items above which `submit` raises `Overloaded`.
        on_batch: called with the size of each batch.
    """

    def __init__(
        self,
        compute: Callable[[Sequence[Item]], Sequence[Result]],
        *,
        max_batch: int = 32,
        max_waiting: int = 1024,
        on_batch: Callable[[int], None] = lambda size: None,
    ) -> None:
        self._compute = compute
        self._max_batch, self._max_waiting, self._on_batch = max_batch, max_waiting, on_batch
        self._waiting: list[tuple[Item, asyncio.Future[Result]]] = []
        self._arrived = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="model")
        self._task: asyncio.Task[None] | None = None

    @property
    def waiting(self) -> int:
        """Number of items that no batch has taken yet."""
        return len(self._waiting)

    async def submit(self, items: Sequence[Item]) -> list[Result]:
        """Return the results of items, which may be computed together with those of others.

        Raises:
            Overloaded: too many items wait.
        """
        if len(self._waiting) + len(items) > self._max_waiting:
            raise Overloaded
        if self._task is None:
            self._task = asyncio.create_task(self._work())
        loop = asyncio.get_running_loop()
        futures = [loop.create_future() for _ in items]
        self._waiting += zip(items, futures, strict=True)
        self._arrived.set()
        return list(await asyncio.gather(*futures))

    async def close(self) -> None:
        """Stop computing; waiting items are cancelled."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
        for _, future in self._waiting:
            future.cancel()
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._arrived.wait()
            batch = [pair for pair in self._waiting[: self._max_batch] if not pair[1].done()]
            del self._waiting[: self._max_batch]
            if not self._waiting:
                self._arrived.clear()
            if not batch:  # all of them were cancelled
                continue
            self._on_batch(len(batch))
            items = [item for item, _ in batch]
            try:
                results = await loop.run_in_executor(self._thread, self._compute, items)
            except Exception as error:
                for _, future in batch:
                    if not future.done():
                        future.set_exception(error)
                continue
            for (_, future), result in zip(batch, results, strict=True):
                if not future.done():
                    future.set_result(result)
