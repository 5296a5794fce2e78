"""Files, folders and patterns, as people name pictures on a command line."""

from collections.abc import Iterable, Iterator
from glob import glob, has_magic
from pathlib import Path

from scs_supcon.data.opening import SUFFIXES
from scs_supcon.errors import UserError


def find_pictures(named: Iterable[str]) -> list[Path]:
    """Return the named files, and every picture in named folders and patterns, each once."""
    found: dict[Path, None] = {}
    for name in named:
        before = len(found)
        found |= dict.fromkeys(_matching(name))
        if len(found) == before and not Path(name).is_file():
            raise UserError(
                f"no pictures at {name}: give files, folders or patterns such as 'x/*.jpg'"
            )
    return list(found)


def _matching(name: str) -> Iterator[Path]:
    path = Path(name)
    if path.is_dir():
        inside = sorted(path.rglob("*"))
        yield from (
            file for file in inside if _is_picture(file.relative_to(path)) and file.is_file()
        )
    elif path.is_file() or not has_magic(name):
        yield path  # a file that is not there is the reader's to name
    else:
        yield from (
            Path(match)
            for match in sorted(glob(name, recursive=True))  # noqa: PTH207 if Path(match).is_file()
        )


def _is_picture(path: Path) -> bool:
    hidden = any(part.startswith(".") for part in path.parts)
    return path.suffix.lower() in SUFFIXES and not hidden
