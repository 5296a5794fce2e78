"""What runs there are on disk, how big they are, and what can be thrown away."""

import json
import os
import tomllib
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scs_supcon.io.atomic import write_error
from scs_supcon.io.lock import InUse, Lock
from scs_supcon.runs.run_dir import (
    ENVIRONMENT,
    FINISHED,
    RECIPE,
    SPARE,
    SPARE_FOLDERS,
    files_of,
    remove_empty,
)


@dataclass(frozen=True)
class Run:
    """One run folder.

    Attributes:
        path: where it is.
        source: its data.
        method: its method, with the preset.
        accuracy: on the test images, or on validation without any; None while unfinished.
        bytes: all its files.
        spare: bytes of checkpoints and features, which a finished run no longer needs.
    """

    path: Path
    source: str
    method: str
    accuracy: float | None
    finished: bool
    bytes: int
    spare: int


def find_runs(folder: Path) -> list[Run]:
    """Find every run in a folder and below it; a recipe that stands alone is not one."""
    places = sorted(Path(place) for place, _, files in os.walk(folder) if RECIPE in files)
    return [_describe(path) for path in places if (path / ENVIRONMENT).exists()]


def clean(run: Run) -> int:
    """Remove what a finished run no longer needs; return the bytes freed.

    A run that is in use, or was begun again since it was listed, is left alone.
    """
    try:
        lock = Lock(run.path / ".lock")
    except InUse:
        return 0
    except OSError as error:
        raise write_error(error, run.path) from error
    try:
        if _summary(run.path) is None:
            return 0
        files = files_of(run.path, SPARE)
        freed = _bytes(files)
        for file in files:
            file.unlink(missing_ok=True)
        remove_empty(run.path, SPARE_FOLDERS)
    except OSError as error:
        raise write_error(error, run.path) from error
    finally:
        lock.release()
    return freed


def _describe(path: Path) -> Run:
    recipe = _read(path / "recipe.toml")
    method = recipe.get("method", {})
    preset = method.get("preset")
    summary = _summary(path)
    every = (Path(place) / name for place, _, names in os.walk(path) for name in names)
    return Run(
        path,
        str(recipe.get("data", {}).get("source", "?")),
        f"{method.get('name', '?')}@{preset}" if preset else str(method.get("name", "?")),
        None if summary is None else summary.get("accuracy"),
        summary is not None,
        _bytes(every),
        0 if summary is None else _bytes(files_of(path, SPARE)),
    )


def _read(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError):
        return {}  # damaged; training will say so, and the rest of the list is wanted


def _summary(run: Path) -> dict[str, Any] | None:
    """What a finished run says of itself; a damaged word counts as none."""
    try:
        found = json.loads((run / FINISHED).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def _bytes(files: Iterable[Path]) -> int:
    total = 0
    for file in files:
        with suppress(OSError):  # a run that goes on removes its own files
            total += file.stat().st_size
    return total
