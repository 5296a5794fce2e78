"""Worker processes that load images: how to start them, and an error if one is killed."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from scs_supcon.errors import UserError


def worker_context(workers: int) -> str | None:
    """Return the `multiprocessing_context` for a `DataLoader` with this many workers.

    On Linux, workers are forked and share the memory of the dataset and the encoder. On other
    systems, forking is unsafe or impossible, so workers are spawned and the dataset is pickled.
    """
    if workers == 0:
        return None
    return "fork" if sys.platform == "linux" else "spawn"


@contextmanager
def explain_killed_workers() -> Iterator[None]:
    """Raise a `UserError` with advice if a worker process of a `DataLoader` is killed."""
    try:
        yield
    except (EOFError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "DataLoader worker (pid" not in str(error):
            raise
        raise UserError(
            "a worker process that loads images was killed, possibly because memory ran out: "
            "run the same command again with fewer --workers"
        ) from error
