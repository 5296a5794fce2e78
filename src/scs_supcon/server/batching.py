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
    """Computes single items in batches, in one or more threads.

    A batch starts as soon as a thread is free, so that a single request does not wait for others.
    Several threads divide the waiting items among them.

    Args:
        compute: returns one result per item, in their order.
        max_batch: largest number of items in a batch.
        max_waiting: number of waiting items above which `submit` raises `Overloaded`.
        on_batch: called with the size of each batch.
        threads: number of batches that are computed at the same time.
    """

    def __init__(
        self,
        compute: Callable[[Sequence[Item]], Sequence[Result]],
        *,
        max_batch: int = 32,
        max_waiting: int = 1024,
        on_batch: Callable[[int], None] = lambda size: None,
        threads: int = 1,
    ) -> None:
        self._compute = compute
        self._max_batch, self._max_waiting, self._on_batch = max_batch, max_waiting, on_batch
        self._waiting: list[tuple[Item, asyncio.Future[Result]]] = []
        self._arrived = asyncio.Event()
        self._threads = threads
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="model")
        self._tasks: list[asyncio.Task[None]] = []

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
        if not self._tasks:
            self._tasks = [asyncio.create_task(self._work()) for _ in range(self._threads)]
        loop = asyncio.get_running_loop()
        futures = [loop.create_future() for _ in items]
        self._waiting += zip(items, futures, strict=True)
        self._arrived.set()
        return list(await asyncio.gather(*futures))

    async def close(self) -> None:
        """Stop computing; items without a result are cancelled."""
        for task in self._tasks:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        for _, future in self._waiting:
            future.cancel()
        self._pool.shutdown(wait=False, cancel_futures=True)

    async def _work(self) -> None:
        while True:
            await self._arrived.wait()
            size = min(self._max_batch, -(-len(self._waiting) // self._threads))
            batch = [pair for pair in self._waiting[:size] if not pair[1].done()]
            del self._waiting[:size]
            if not self._waiting:
                self._arrived.clear()
            if not batch:  # another thread took them, or all of them were cancelled
                continue
            self._on_batch(len(batch))
            await self._compute_batch(batch)

    async def _compute_batch(self, batch: Sequence[tuple[Item, asyncio.Future[Result]]]) -> None:
        loop, items = asyncio.get_running_loop(), [item for item, _ in batch]
        try:
            results = await loop.run_in_executor(self._pool, self._compute, items)
        except asyncio.CancelledError:  # by `close`
            for _, future in batch:
                future.cancel()
            raise
        except Exception as error:
            for _, future in batch:
                if not future.done():
                    future.set_exception(error)
            return
        for (_, future), result in zip(batch, results, strict=True):
            if not future.done():
                future.set_result(result)
