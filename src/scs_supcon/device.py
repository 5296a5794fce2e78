"""Where a run computes: device, processes, cache. Changes nothing in a result but its last bits."""

import os
from dataclasses import dataclass
from pathlib import Path

import torch

from scs_supcon.errors import UserError


@dataclass(frozen=True)
class Compute:
    """Where a run computes.

    Attributes:
        device: "auto", "cpu", "cuda", …
        workers: processes that load images.
        cache: folder for the features of frozen encoders.
        offline: never download weights.
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
    """Fill in what was not asked for: one worker per core, the cache of this user."""
    check_device(device)
    if workers is not None and workers < 0:
        raise UserError(f"--workers is {workers}: give 0 (this process loads) or more")
    return Compute(device, cores() if workers is None else workers, cache_folder(cache), offline)


def check_device(device: str) -> None:
    """Refuse a number where there is none to choose, and what is no number."""
    kind, colon, number = device.partition(":")
    if colon and (kind in ("auto", "cpu") or not number.isdecimal()):
        raise UserError(f"there is no device {device!r}: use auto, cpu, cuda or cuda:1")


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cache_folder(given: str | Path | None = None) -> Path:
    """The folder for features: the one given, or SCS_CACHE, or one in the user's own cache."""
    if given is not None:
        return Path(given)
    if "SCS_CACHE" in os.environ:
        return Path(os.environ["SCS_CACHE"])
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "scs-supcon" / "features"


def first_process() -> bool:
    """Whether this process is alone, or the first of those that torchrun started."""
    return int(os.environ.get("RANK", "0")) == 0


def has_gpu(device: str) -> bool:
    """Whether this device is more than a CPU."""
    if device == "auto":
        return torch.cuda.is_available()
    return not device.startswith("cpu")


def torch_device(device: str) -> str:
    """The device by torch's name: "auto" is the accelerator if there is one."""
    if device == "auto":
        return "cuda" if has_gpu(device) else "cpu"
    return device
