"""What runs there are on disk, how big they are, and what can be thrown away."""

import json
import shutil
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Run:
    """One run folder.

    Attributes:
        path: where it is.
        source: its data.
        method: its method, with the preset.
        accuracy: on the test pictures, or on validation without any; None while unfinished.
        bytes: all its files.
        spare: bytes of checkpoints, which a finished run no longer needs.
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
    places = [recipe.parent for recipe in sorted(folder.rglob("recipe.toml"))]
    return [_describe(path) for path in places if (path / "environment.json").exists()]


def clean(run: Run) -> int:
    """Remove what a finished run no longer needs; return the bytes freed."""
    if not run.finished:
        return 0
    for name in ("checkpoints", "features"):
        shutil.rmtree(run.path / name, ignore_errors=True)
    return run.spare


def _describe(path: Path) -> Run:
    recipe = _read(path / "recipe.toml")
    method = recipe.get("method", {})
    preset = method.get("preset")
    done = path / "finished.json"
    summary = json.loads(done.read_text()) if done.exists() else None
    spare = sum(_size(path / name) for name in ("checkpoints", "features"))
    return Run(
        path,
        str(recipe.get("data", {}).get("source", "?")),
        f"{method.get('name', '?')}@{preset}" if preset else str(method.get("name", "?")),
        None if summary is None else summary.get("accuracy"),
        summary is not None,
        _size(path),
        spare if summary is not None else 0,
    )


def _read(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError):
        return {}  # damaged; training will say so, and the rest of the list is wanted


def _size(path: Path) -> int:
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
