"""Worker processes that load images: how to start them, and an error if one is killed."""

import mmap
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from scs_supcon.errors import UserError

SLOTS, SLOT_BYTES = 64, 1024
# Anonymous memory, which forked workers share: the file that each of them is reading.
_current_files = mmap.mmap(-1, SLOTS * SLOT_BYTES)
_slot: int | None = None


def worker_context(workers: int) -> str | None:
    """Return the `multiprocessing_context` for a `DataLoader` with this many workers.

    On Linux, workers are forked and share the memory of the dataset and the encoder. On other
    systems, forking is unsafe or impossible, so workers are spawned and the dataset is pickled.
    """
    if workers == 0:
        return None
    return "fork" if sys.platform == "linux" else "spawn"


def start_worker(worker: int) -> None:
    """Prepare a worker process (`worker_init_fn`) to announce the files that it reads."""
    global _slot  # noqa: PLW0603 - one per process
    _slot = worker % SLOTS


def announce(path: Path | str) -> None:
    """Note the file that this worker is about to read, in case reading it kills the worker."""
    if _slot is not None:
        text = f"{os.getpid()} {path}".encode("utf-8", "surrogateescape")[:SLOT_BYTES]
        start = _slot * SLOT_BYTES
        _current_files[start : start + SLOT_BYTES] = text.ljust(SLOT_BYTES, b"\0")


@contextmanager
def explain_killed_workers() -> Iterator[None]:
    """Raise a `UserError` with advice if a worker process of a `DataLoader` is killed.

    PyTorch raises the error at any moment, also while another batch is trained on.
    """
    try:
        yield
    except (EOFError, ConnectionError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "DataLoader worker (pid" not in str(error):
            raise
        files = _files_of(re.findall(r"\d+", str(error)))
        reading = f" while it was reading {', '.join(files)}" if files else ""
        check = "check that file, and " if files else ""
        raise UserError(
            f"a worker process that loads images was killed{reading}, possibly because memory ran "
            f"out: {check}run the same command again with fewer --workers"
        ) from error


def _files_of(processes: list[str]) -> list[str]:
    """Return the files that these worker processes announced last."""
    slots = (_current_files[i * SLOT_BYTES : (i + 1) * SLOT_BYTES] for i in range(SLOTS))
    announced = (slot.rstrip(b"\0").decode("utf-8", "replace").partition(" ") for slot in slots)
    return [file for process, _, file in announced if process in processes]
