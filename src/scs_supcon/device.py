"""Compute settings of a run: device, worker processes, cache. They affect only the last digits."""

import ctypes
import os
import sys
from dataclasses import dataclass
from pathlib import Path

from scs_supcon.errors import UserError

# Parameters of mallopt in glibc's malloc.h.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
KEPT_BYTES = 2**30


@dataclass(frozen=True)
class Compute:
    """Compute settings of a run.

    Attributes:
        device: "auto", "cpu", "cuda", "cuda:1" or "mps".
        workers: number of processes that load images; 0 uses the main process.
        cache: folder for the features of frozen encoders.
        offline: whether downloading weights is forbidden.
    """

    device: str
    workers: int
    cache: Path
    offline: bool


def find_compute(
    device: str = "auto",
    workers: int | None = None,
    cache: str | Path | None = None,
    offline: bool = False,
) -> Compute:
    """Return compute settings; the defaults are one worker per core and the user's cache folder."""
    check_device(device)
    if workers is not None and workers < 0:
        raise UserError(
            f"--workers must be 0 (load images in the main process) or more, got {workers}"
        )
    return Compute(device, cores() if workers is None else workers, cache_folder(cache), offline)


def check_device(device: str) -> None:
    """Raise a `UserError` for a device with an invalid index, such as "cpu:1" or "cuda:x"."""
    kind, colon, number = device.partition(":")
    if colon and (kind in ("auto", "cpu", "mps") or not number.isdecimal()):
        raise UserError(f"unknown device {device!r}: use auto, cpu, cuda, cuda:1 or mps")


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cache_folder(path: str | Path | None = None) -> Path:
    """Return the folder for cached features: `path`, $SCS_CACHE, or the user's cache folder."""
    if path is not None:
        return Path(path)
    if "SCS_CACHE" in os.environ:
        return Path(os.environ["SCS_CACHE"])
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "scs-supcon" / "features"


def keep_freed_memory() -> bool:
    """Let the C library keep freed memory for the next step of training on a CPU.

    By default glibc returns large blocks to the system as soon as they are freed. The feature maps
    of an encoder are such blocks, and the system clears each of them again in every step, which
    takes about 40% of a step. The process keeps its largest size instead. Numbers do not change.

    Returns:
        Whether the C library supports it.
    """
    if sys.platform != "linux":
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # not glibc
        return False
    return all(mallopt(name, KEPT_BYTES) for name in (M_MMAP_THRESHOLD, M_TRIM_THRESHOLD))


def first_process() -> bool:
    """Return whether this is the only process, or the first process of torchrun."""
    return int(os.environ.get("RANK", "0")) == 0


def has_gpu(device: str) -> bool:
    """Return whether a device is a GPU; "auto" counts as a GPU if CUDA is available."""
    if device == "auto":
        import torch  # here, because commands that need no torch import this module

        return torch.cuda.is_available()
    return not device.startswith("cpu")


def torch_device(device: str) -> str:
    """Return the name that torch uses: "auto" becomes "cuda" or "cpu".

    "auto" never becomes Apple's "mps", which can run encoders but not train: it does not support
    float64, in which the losses are summed.
    """
    if device == "auto":
        return "cuda" if has_gpu(device) else "cpu"
    return device


def compute_per_job(jobs: int, device: str, cache: str | Path | None, offline: bool) -> Compute:
    """Return device and data loading of each of several runs that are trained in parallel."""
    workers = cores() // max(1, jobs)
    # With one core per run, images are loaded in its main process.
    return find_compute(device, workers if workers > 1 else 0, cache, offline)
