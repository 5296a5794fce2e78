"""List the run directories on disk, and remove files that finished runs do not need."""

import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from scs_supcon.io.atomic import write_error
from scs_supcon.io.lock import InUse, Lock
from scs_supcon.io.records import RecordError, read_json_object
from scs_supcon.recipe.toml import Values, read_stored_values, section
from scs_supcon.runs.layout import (
    ENVIRONMENT,
    FINISHED,
    RECIPE,
    SPARE,
    SPARE_FOLDERS,
    files_of,
    remove_empty_folders,
)


@dataclass(frozen=True)
class ListedRun:
    """One run directory.

    Attributes:
        path: The directory.
        source: The data.
        method: The method, with its preset.
        accuracy: On the test images, or on the validation images if there are none; None if the
            run is unfinished.
        finished: Whether the run is finished.
        bytes: Size of all files.
        spare: Size of checkpoints and cached features, which a finished run does not need.
    """

    path: Path
    source: str
    method: str
    accuracy: float | None
    finished: bool
    bytes: int
    spare: int


def find_runs(folder: Path) -> list[ListedRun]:
    """Return every run in a folder and its subfolders, sorted by path."""
    paths = sorted(Path(path) for path, _, files in os.walk(folder) if RECIPE in files)
    # A recipe without an environment was not written by a run.
    return [_summarize(path) for path in paths if (path / ENVIRONMENT).exists()]


def remove_spare_files(run: ListedRun) -> int:
    """Remove the files that a finished run does not need, and return the number of bytes freed.

    A run that is in use, or was restarted after it was listed, is not changed.
    """
    try:
        lock = Lock(run.path / ".lock")
    except InUse:
        return 0
    except OSError as error:
        raise write_error(error, run.path) from error
    try:
        if _accuracy(run.path) is None:
            return 0
        files = files_of(run.path, SPARE)
        freed = _bytes(files)
        for file in files:
            file.unlink(missing_ok=True)
        remove_empty_folders(run.path, SPARE_FOLDERS)
    except OSError as error:
        raise write_error(error, run.path) from error
    finally:
        lock.release()
    return freed


def _summarize(path: Path) -> ListedRun:
    recipe = _read_recipe(path / RECIPE)
    method = section(recipe, "method")
    preset = method.get("preset")
    accuracy = _accuracy(path)
    files = (Path(folder) / name for folder, _, names in os.walk(path) for name in names)
    return ListedRun(
        path,
        str(section(recipe, "data").get("source", "?")),
        f"{method.get('name', '?')}@{preset}" if preset else str(method.get("name", "?")),
        accuracy,
        accuracy is not None,
        _bytes(files),
        0 if accuracy is None else _bytes(files_of(path, SPARE)),
    )


def _read_recipe(file: Path) -> Values:
    try:
        return read_stored_values(file)
    except RecordError:
        return {}  # damaged: training reports it; the other runs are still listed


def _accuracy(run: Path) -> float | None:
    """Return the accuracy of a finished run; None if it is unfinished or the file damaged."""
    try:
        accuracy = read_json_object(run / FINISHED).get("accuracy")
    except RecordError:
        return None
    return accuracy if isinstance(accuracy, float | int) else None


def _bytes(files: Iterable[Path]) -> int:
    total = 0
    for file in files:
        with suppress(OSError):  # another process may have removed the file
            total += file.stat().st_size
    return total
