"""What processes that load images may come to."""

from collections.abc import Iterator
from contextlib import contextmanager

from scs_supcon.errors import UserError


@contextmanager
def killed_loaders_explained() -> Iterator[None]:
    """Inside, the death of a loader's process becomes an error for people."""
    try:
        yield
    except (EOFError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "DataLoader worker (pid" not in str(error):
            raise
        raise UserError(
            "a process that loads images was killed, perhaps for want of memory: "
            "run the same line again with fewer --workers"
        ) from error
