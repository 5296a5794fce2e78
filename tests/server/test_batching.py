"""Requests are joined to batches while the model computes."""

import asyncio
import threading

import pytest

from scs_supcon.server.batching import Batcher, Overloaded


class Model:
    """Computes squares; the first batch waits for `free`."""

    def __init__(self):
        self.free, self.busy = threading.Event(), threading.Event()
        self.batches = []

    def __call__(self, items):
        self.batches.append(list(items))
        self.busy.set()
        assert self.free.wait(30)
        return [item * item for item in items]


async def first_batch(batcher, model, items):
    """Submit items and return the task once the model computes them."""
    task = asyncio.create_task(batcher.submit(items))
    await asyncio.to_thread(model.busy.wait, 30)
    return task


def test_what_arrives_during_a_batch_is_the_next_batch():
    model = Model()
    sizes = []

    async def main():
        batcher = Batcher(model, max_batch=3, on_batch=sizes.append)
        first = await first_batch(batcher, model, [1])
        others = [asyncio.create_task(batcher.submit(items)) for items in ([2, 3], [4, 5], [])]
        while batcher.waiting < 4:
            await asyncio.sleep(0)
        model.free.set()
        results = [await task for task in (first, *others)]
        await batcher.close()
        return results

    assert asyncio.run(main()) == [[1], [4, 9], [16, 25], []]
    assert model.batches == [[1], [2, 3, 4], [5]]
    assert sizes == [1, 3, 1]


def test_too_many_waiting_items_are_rejected():
    model = Model()

    async def main():
        batcher = Batcher(model, max_waiting=2)
        first = await first_batch(batcher, model, [1])
        second = asyncio.create_task(batcher.submit([2, 3]))
        while batcher.waiting < 2:
            await asyncio.sleep(0)
        with pytest.raises(Overloaded):
            await batcher.submit([4])
        model.free.set()
        assert await first == [1]
        assert await second == [4, 9]
        assert await batcher.submit([4]) == [16], "there is room again"
        await batcher.close()

    asyncio.run(main())


def test_an_error_reaches_the_requests_of_its_batch_only():
    def compute(items):
        if 0 in items:
            raise ZeroDivisionError
        return [1 / item for item in items]

    async def main():
        batcher = Batcher(compute)
        with pytest.raises(ZeroDivisionError):
            await batcher.submit([1, 0])
        assert await batcher.submit([2]) == [0.5]
        await batcher.close()

    asyncio.run(main())


def test_a_request_that_was_cancelled_is_not_computed():
    model = Model()

    async def main():
        batcher = Batcher(model)
        first = await first_batch(batcher, model, [1])
        gone, kept = (asyncio.create_task(batcher.submit([item])) for item in (2, 3))
        while batcher.waiting < 2:
            await asyncio.sleep(0)
        gone.cancel()
        await asyncio.gather(gone, return_exceptions=True)
        model.free.set()
        assert await first == [1]
        assert await kept == [9]
        await batcher.close()

    asyncio.run(main())
    assert model.batches == [[1], [3]]


def test_closing_cancels_what_is_computed_and_what_waits():
    model = Model()

    async def main():
        batcher = Batcher(model)
        first = await first_batch(batcher, model, [1])
        second = asyncio.create_task(batcher.submit([2]))
        while not batcher.waiting:
            await asyncio.sleep(0)
        await batcher.close()
        ended = await asyncio.gather(first, second, return_exceptions=True)
        model.free.set()
        return ended

    assert [type(end) for end in asyncio.run(main())] == [asyncio.CancelledError] * 2


def test_several_threads_share_what_waits():
    together = threading.Barrier(2)

    def compute(items):
        together.wait(30)  # broken unless two batches are computed at the same time
        return [item + 1 for item in items]

    async def main():
        batcher = Batcher(compute, threads=2)
        results = await batcher.submit([1, 2])
        await batcher.close()
        return results

    assert asyncio.run(main()) == [2, 3]
