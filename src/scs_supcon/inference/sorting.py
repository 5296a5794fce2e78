"""Copy classified images into one folder per class."""

import shutil
from collections.abc import Sequence
from pathlib import Path

from scs_supcon.errors import UserError
from scs_supcon.inference.types import Prediction
from scs_supcon.io.atomic import replacing

UNKNOWN = "unknown"


def sort_into(predictions: Sequence[Prediction], folder: Path) -> dict[str, int]:
    """Copy the file of each prediction to FOLDER/CLASS; return the number of copies per class.

    Rejected images go to FOLDER/unknown. The originals are not changed. A file that is already
    there with the same content is left as it is; one with another content gets a numbered name
    beside it, so that nothing is overwritten.

    Raises:
        UserError: a file cannot be read, or the folder cannot be written.
    """
    counts: dict[str, int] = {}
    for prediction in predictions:
        name = UNKNOWN if prediction.unknown else prediction.label
        source = Path(prediction.name)
        target = _free_name(folder / folder_name(name) / source.name, source)
        if target is not None:
            with replacing(target) as temporary:
                shutil.copyfile(source, temporary)
        counts[name] = counts.get(name, 0) + 1
    return counts


def folder_name(label: str) -> str:
    """Return the name of a class as the name of a folder inside another one."""
    cleaned = "".join("_" if char in '/\\:*?"<>|' or ord(char) < 32 else char for char in label)
    return f"_{cleaned.lstrip('.')}" if cleaned.startswith(".") else cleaned or "_"


def _free_name(target: Path, source: Path) -> Path | None:
    """Return a path that is not taken, or None if the same file is already there."""
    content = None
    for number in range(1, 10_000):
        path = target if number == 1 else target.with_stem(f"{target.stem}-{number}")
        if not path.exists():
            return path
        content = source.read_bytes() if content is None else content
        if path.stat().st_size == len(content) and path.read_bytes() == content:
            return None
    raise UserError(f"{target.parent} has too many files called {target.name}")
