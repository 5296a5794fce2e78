"""Large tables of features: in memory, or in a file that is mapped into memory.

A mapped table behaves like an array in memory: the system reads the rows that are used and drops
them when memory is short. Its numbers are the same, float32.
"""

import math
import os
import tempfile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from scs_supcon.errors import UserError
from scs_supcon.io.atomic import write_error
from scs_supcon.io.records import memory_bytes

VARIABLE = "SCS_FEATURE_MEMORY"


def feature_memory() -> int:
    """Return the bytes up to which a table is kept in memory.

    $SCS_FEATURE_MEMORY in GiB, or a quarter of the memory of this machine.
    """
    text = os.environ.get(VARIABLE)
    if text is None:
        return memory_bytes() // 4
    try:
        gibibytes = float(text)
    except ValueError:
        gibibytes = math.nan
    if not 0 <= gibibytes < math.inf:
        raise UserError(f"${VARIABLE} must be a number of GiB, such as 4, got {text!r}")
    return int(gibibytes * 2**30)


def empty_table(shape: tuple[int, ...], folder: Path) -> NDArray[np.float32]:
    """Return an array to be filled, mapped to a file if it is larger than `feature_memory`.

    The file has no name, so the system removes it as soon as the table is not used any more, also
    if the process is killed.

    Args:
        shape: of the array.
        folder: for the file; it is created if needed.

    Raises:
        UserError: the disk is full, or the folder cannot be written to.
    """
    size = math.prod(shape) * np.dtype(np.float32).itemsize
    if size <= feature_memory():
        return np.empty(shape, np.float32)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            # A full disk is an error here, and would kill the process when it writes later.
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, size)
            else:
                file.truncate(size)
            return np.memmap(file, np.float32, "r+", shape=shape)
    except OSError as error:
        raise write_error(error, folder) from error
