"""The environment of a run: versions, processor and code, which affect the last digits."""

import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from scs_supcon.io.hashing import code_sha256
from scs_supcon.io.values import Value

LIBRARIES = (
    "scs-supcon",
    "torch",
    "torchvision",
    "timm",
    "numpy",
    "pillow",
    "scikit-learn",
    "scipy",
    "lightning-fabric",
    "safetensors",
)

# The numeric code: together with the recipe, these packages determine the numbers of a run.
NUMERIC_PACKAGES = ("kernels", "nn", "methods", "data", "training", "inference", "evaluation")

# These differ between calls and do not affect the numbers.
NOT_NUMERIC = ("date", "command", "commit")


@dataclass(frozen=True)
class Environment:
    """The content of environment.json; `code` is the digest of the numeric code."""

    python: str
    system: str
    cpu: str
    gpu: str | None
    threads: int
    processes: int
    libraries: dict[str, str | None]
    code: str
    commit: str | None
    date: str
    command: str


def describe_environment() -> Environment:
    """Return versions, processor, thread counts, the digest of the code, and the command line."""
    return Environment(
        python=platform.python_version(),
        system=f"{platform.system()} {platform.machine()}",
        cpu=_cpu(),
        gpu=torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        threads=torch.get_num_threads(),
        processes=int(os.environ.get("WORLD_SIZE", "1")),
        libraries={name: _version(name) for name in LIBRARIES},
        code=numeric_code_digest(),
        commit=_commit(),
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        command=shlex.join(sys.argv),
    )


def environment_changes(then: Mapping[str, Value], now: Mapping[str, Value]) -> list[str]:
    """Return a line for each difference that may change the last digits of a result.

    Values that are missing in `then` are skipped: older versions recorded fewer.
    """
    changes = []
    for key, value in now.items():
        if key in NOT_NUMERIC or key not in then or then[key] == value:
            continue
        before = then[key]
        if isinstance(value, Mapping) and isinstance(before, Mapping):
            changes += [f"{key}.{line}" for line in environment_changes(before, value)]
        elif key == "code":
            changes.append("the numeric code of scs-supcon has changed")
        else:
            changes.append(f"{key}: {before} then, {value} now")
    return changes


@cache
def numeric_code_digest() -> str:
    """Return the SHA-256 digest of the package's numeric code, see `NUMERIC_PACKAGES`.

    Comments, docstrings and formatting do not affect it.
    """
    root = Path(__file__).parents[1]
    return code_sha256(
        (file.relative_to(root).as_posix(), file)
        for package in NUMERIC_PACKAGES
        for file in (root / package).rglob("*.py")
    )


def _commit() -> str | None:
    """Return the git commit if the package runs from a checkout of its repository."""
    root = Path(__file__).parents[3]
    if not (root / ".git").exists() or not (root / "src" / "scs_supcon").is_dir():
        return None
    command = ["git", "-C", str(root), "rev-parse", "HEAD"]
    try:
        result = subprocess.run(command, capture_output=True, text=True, check=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return None
    return result.stdout.strip()


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor())


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
