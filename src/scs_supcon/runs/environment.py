"""What a run was computed with: the same bits come out only of the same versions and threads."""

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

LIBRARIES = (
    "scs-supcon",
    "torch",
    "torchvision",
    "timm",
    "numpy",
    "pillow",
    "scikit-learn",
    "lightning-fabric",
    "safetensors",
)


def describe_environment() -> dict[str, Any]:
    """Return versions, processor and thread counts."""
    return {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cpu": _cpu(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "threads": torch.get_num_threads(),
        "processes": int(os.environ.get("WORLD_SIZE", "1")),
        "libraries": {name: _version(name) for name in LIBRARIES},
    }


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
